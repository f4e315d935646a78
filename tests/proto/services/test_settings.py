"""The settings of a process: told, changed one by one, and as the file says them anew."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from pocketmq.proto.access.audit import Audit
from pocketmq.proto.errors import ConfigError, InvalidArgument
from pocketmq.proto.services.settings import LiveSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Ears:
    LIVE: ClassVar[frozenset[str]] = frozenset({"least", "most", "names"})

    least: int = 1
    most: int = 9
    port: int = 80
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ConfigError(f"ears.least is {self.least}: at most {self.most}", field="least")


class Process:
    """A process that holds ears, as the file said them."""

    def __init__(self, origins: Mapping[str, str] | None = None, **ears: Any) -> None:
        self.ears = Ears(**ears)
        self.lines: list[str] = []
        self.changed: list[Ears] = []
        self.live = LiveSettings(
            {"ears": self.ears},
            origins,
            audit=Audit(lambda: 5, self.lines.append),
            on_change={"ears": self.changed.append},
        )

    @property
    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def told(self, key: str) -> tuple[str, str, str, bool]:
        (one,) = (one for one in self.live.tell(["ears"]) if one.key == f"ears.{key}")
        return one.value, one.default_value, one.origin, one.live


def test_each_setting_says_its_value_its_default_and_where_it_came_from() -> None:
    process = Process({"ears.most": "/etc/p.yaml:3"}, most=20, port=81)

    assert process.told("least") == ("1", "1", "default", True)
    assert process.told("most") == ("20", "9", "/etc/p.yaml:3", True)
    assert process.told("port") == ("81", "80", "given at the start", False)
    assert process.told("names") == ("{}", "{}", "default", True)


def test_a_change_is_seen_by_whoever_holds_the_section_and_stands_in_the_audit_log() -> None:
    process = Process()

    before, after = process.live.set("ears.most", "30", ["ears"], user="ada", host="10.0.0.1")

    assert (before.value, after.value, after.origin) == ("9", "30", "set live")
    assert process.ears.most == 30
    assert process.changed == [process.ears]
    assert process.audit == [
        {
            "at_ms": 5,
            "event": "setting changed",
            "key": "ears.most",
            "before": "9",
            "value": "30",
            "user": "ada",
            "host": "10.0.0.1",
        }
    ]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("ears.least", "10", r"ears\.least is 10: at most 9"),
        ("ears.least", "much", r"ears\.least: must be a whole number, not 'much'"),
        ("ears.least", "[", r"ears\.least:\d: not YAML"),
        ("ears.least", "1\nmost: 2", r"ears\.least: must be one value"),
        ("ears.least", "1" * 5_000, "has 5000 characters, the limit is 4096"),
        (
            "ears.port",
            "81",
            r"ears\.port cannot change while the server runs: .* restart the server",
        ),
        ("ears.mots", "1", r"no setting 'ears\.mots' here; did you mean 'ears\.most'\?"),
        ("nose.most", "1", r"no setting 'nose\.most' here"),
        ("", "1", "no setting '' here"),
    ],
)
def test_what_cannot_be_changes_nothing_and_says_why(key: str, value: str, why: str) -> None:
    process = Process()

    with pytest.raises((ConfigError, InvalidArgument), match=why):
        process.live.set(key, value, ["ears"])

    assert process.ears == Ears()
    assert process.lines == []
    assert process.told("least")[2] == "default"


def test_a_port_changes_no_settings_of_another_server_in_the_process() -> None:
    process = Process()

    with pytest.raises(InvalidArgument, match=r"no setting 'ears\.most' here"):
        process.live.set("ears.most", "30", ["nose"])

    assert process.live.tell(["nose"]) == []


def test_the_file_that_is_read_again_holds_also_for_what_was_set_since() -> None:
    process = Process()
    process.live.set("ears.most", "30", ["ears"])
    process.lines.clear()

    process.live.reload({"ears": Ears(least=2)}, {"ears.least": "/etc/p.yaml:7"})

    assert process.ears == Ears(least=2)
    assert process.told("least") == ("2", "1", "/etc/p.yaml:7", True)
    assert process.told("most") == ("9", "9", "default", True)
    assert [(one["key"], one["before"], one["value"], one["by"]) for one in process.audit] == [
        ("ears.least", "1", "2", "SIGHUP"),
        ("ears.most", "30", "9", "SIGHUP"),
    ]


def test_sections_that_a_process_does_not_hold_are_those_of_others() -> None:
    process = Process()
    process.live.reload({"ears": Ears(least=2), "nose": Ears(least=5)}, {})
    process.live.hold({"ears": process.ears, "nose": Ears(least=5)}, {})
    process.live.reload({"ears": Ears(least=2), "nose": Ears(least=6)}, {})

    assert [one["key"] for one in process.audit] == ["ears.least"]
    assert process.live.tell(["nose"]) == []


def test_a_number_that_nothing_could_count_is_refused() -> None:
    process = Process()
    with pytest.raises(ConfigError, match=f"a number of 401 digits, the limit is {2**53}"):
        process.live.set("ears.most", "1" + "0" * 400, ["ears"])
    process.live.set("ears.most", str(2**53), ["ears"])
    assert process.ears.most == 2**53


def test_what_needs_a_restart_is_logged_and_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    process = Process(port=81)
    with caplog.at_level(logging.WARNING):
        process.live.reload({"ears": Ears(port=82, most=10)}, {})

    assert (process.ears.port, process.ears.most) == (81, 10)
    assert [one.message for one in caplog.records] == [
        "settings that need a restart were not changed keys=ears.port"
    ]


def test_a_setting_that_a_start_completed_is_not_taken_for_a_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process(port=0)
    completed = Ears(port=4711)
    process.live.hold({"ears": completed}, {"ears.port": "a free one"})
    with caplog.at_level(logging.WARNING):
        process.live.reload({"ears": Ears(port=0, most=10)}, {})

    assert (completed.port, completed.most) == (4711, 10)
    assert process.told("port") == ("4711", "80", "a free one", False)
    assert caplog.records == []


def test_a_file_that_does_not_fit_what_stays_changes_nothing() -> None:
    process = Process(least=5)
    # A section that a start completed is another one than the file's: together they have to be sound.
    held = Ears(least=5)
    process.live.hold({"ears": held}, {})
    wrong = Ears(most=9)
    object.__setattr__(wrong, "most", 3)
    object.__setattr__(wrong, "least", 4)

    with pytest.raises(ConfigError, match=r"ears\.least is 4: at most 3"):
        process.live.reload({"ears": wrong}, {})

    assert held == Ears(least=5)
    assert process.lines == []
