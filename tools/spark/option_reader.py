"""Reads the options that a user gave to a Spark format, by type; errors name the option and its value. Pure.

Names are matched in any case, as Spark does. An unknown option is an error that suggests the nearest known one. Errors
never show the value of an option whose name looks like a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from ...proto.errors import ConfigError, InvalidArgument
from ...proto.time_text import parse_duration

#: Spark's own, which it hands to sources and sinks among the user's.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "triggerinterval"})
_SECRET: Final = re.compile(r"secret|password|passwd|token|access.?key|credential", re.IGNORECASE)
_TRUE: Final = {"true": True, "false": False}
NUMBER_MAX: Final = (1 << 63) - 1


class OptionReader:
    """The options GIVEN, of which those in KNOWN are allowed."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        """Raises ConfigError for an option that is not KNOWN."""
        self._given = {name.lower(): str(value) for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in given:
            if name.lower() not in names and name.lower() not in _SPARKS:
                raise ConfigError(_unknown(name, names), field=name)

    def text(self, name: str) -> str | None:
        """Return the value of option NAME without blanks around it; None where it is not given or empty."""
        return self._given.get(name.lower(), "").strip() or None

    def one_of(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return the one of CHOICES that option NAME says, in whatever case."""
        text = self.text(name)
        if text is None:
            return default
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise self.error(name, f"write one of {', '.join(choices)}")

    def number(self, name: str, *, least: int = 1) -> int | None:
        """Return the whole number from LEAST on that option NAME says; None where it is not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text) if len(text) <= 20 else -1
        except ValueError:
            number = least - 1
        if not least <= number <= NUMBER_MAX:
            raise self.error(name, f"write a whole number from {least} on")
        return number

    def flag(self, name: str, default: bool) -> bool:
        """Return what option NAME says, true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in _TRUE:
            raise self.error(name, "write true or false")
        return _TRUE[text.lower()]

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Return the milliseconds that option NAME says: a number of them, or "15m", "90s"."""
        text = self.text(name)
        if text is None:
            return default_ms
        if text.isascii() and text.isdigit() and len(text) <= 15:
            return int(text)
        try:
            return parse_duration(text, field=name)
        except InvalidArgument:
            raise self.error(name, "write a length of time: 500ms, 30s, 15m") from None

    def error(self, name: str, advice: str) -> ConfigError:
        """Return the error for what option NAME says, with ADVICE; a secret is not shown."""
        value = self._given.get(name.lower(), "")
        shown = "(hidden)" if _SECRET.search(name) else repr(value[:64])
        return ConfigError(f"option {name} is {shown}: {advice}", field=name)


def _unknown(name: str, known: Mapping[str, str]) -> str:
    if _SECRET.search(name):
        return (
            f"option {name} is not known: secrets are never options; set POCKETMQ_USER and POCKETMQ_SECRET_FILE in the"
            " environment of the driver and the executors"
        )
    near = difflib.get_close_matches(name.lower(), known, 1)
    hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(known.values())}"
    return f"option {name[:64]} is not known: {hint}"
