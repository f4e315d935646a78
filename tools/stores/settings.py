"""Settings of a broker as `--set KEY=VALUE` gives them, by Apache's names."""

from __future__ import annotations

from collections.abc import Sequence

from ...proto.errors import ConfigError


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Return GIVEN, each "KEY=VALUE" as in broker.conf, by key; ConfigError for anything else."""
    found: dict[str, str] = {}
    for setting in given:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"--set {setting}: write it as KEY=VALUE, as in broker.conf",
                field="set",
                value=setting,
            )
        found[name] = value
    return found
