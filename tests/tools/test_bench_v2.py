from dataclasses import replace
from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.bench import official_client
from pocketmq.tools.bench.handler_costs import handler_costs_us


def test_every_method_is_measured_on_messages_that_it_serves(tmp_path: Path) -> None:
    found = handler_costs_us(tmp_path, 64)

    assert list(found) == ["SendMessage", "ReceiveMessage", "AckMessage"]
    assert all(cost > 0 for cost in found.values())


def test_without_a_checkout_the_programs_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official_client, "_PROGRAMS", tmp_path / "programs.py")

    with pytest.raises(ConfigError, match="checkout"):
        official_client.OfficialClient("127.0.0.1:1")


def test_what_cannot_be_built_is_told_as_something_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = official_client._programs()
    monkeypatch.setattr(programs, "BUILD", tmp_path)

    def fail(folder: Path) -> None:
        raise programs.BuildFailed("no network")

    java = replace(programs.PROGRAMS["java"], tools=(), build=fail)
    monkeypatch.setitem(programs.PROGRAMS, "java", java)
    monkeypatch.setattr(official_client, "_programs", lambda: programs)

    with pytest.raises(ConfigError, match="not built: no network"):
        official_client.OfficialClient("127.0.0.1:1", "java")
