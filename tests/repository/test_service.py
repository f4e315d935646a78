"""The unit for systemd fits the project, as far as can be told without systemd."""

from __future__ import annotations

import shlex
from configparser import RawConfigParser

from pocketmq.tools.cli import cli

from .source_tree import ROOT

UNIT = ROOT / "systemd" / "pocketmq.service"


def service() -> dict[str, str]:
    unit = RawConfigParser(comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text(encoding="utf-8"))
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert "file:" not in unit["Unit"].get("Documentation", ""), "no documents are installed"
    return dict(unit["Service"])


def test_what_the_unit_starts_is_a_command_of_ours() -> None:
    words = shlex.split(service()["ExecStart"])
    assert words[:2] == ["/opt/pocketmq/bin/pocketmq", "serve"]
    place = words.index("--config") + 1
    assert words[place].startswith("/etc/pocketmq/")
    words[place] = str(ROOT / "pocketmq.yaml")

    command = cli.get_command(cli.make_context("pocketmq", ["serve"]), "serve")
    assert command is not None
    assert str(command.make_context("serve", words[2:]).params["store"]).startswith(
        f"/var/lib/{service()['StateDirectory']}/"
    )


def test_the_unit_leaves_the_process_what_it_needs_and_no_more() -> None:
    told = service()

    assert told["User"] == "pocketmq"
    assert told["CapabilityBoundingSet"] == ""
    assert told["ProtectSystem"] == "strict"
    assert told["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "AF_INET6" in told["RestrictAddressFamilies"]
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome"):
        assert told[name] == "true"
