from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.replication.config import ReplicationConfig
from pocketmq.proto.configuration import load_sections, nearest, parse_sections, parse_value
from pocketmq.proto.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Ears:
    count: int = 2
    weight_kg: float = 0.5
    pointed: bool = False
    colour: Literal["grey", "white"] = "grey"
    home: Path | None = None
    names: tuple[str, ...] = ("left", "right")
    limits: dict[str, int] = field(default_factory=dict)

    REMOVED_KEYS: ClassVar[dict[str, str]] = {"length": "ears have one length; leave it out"}

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(f"count: {self.count} is below 0", key="count")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    length_cm: int


SECTIONS = {"ears": Ears}


def ears(text: str) -> Ears:
    value = parse_sections(text, SECTIONS, "x.yaml")["ears"]
    assert isinstance(value, Ears)
    return value


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_sections(text, SECTIONS, "x.yaml")
    return caught.value.message


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("grpc", "own", "builtin"),
        ("replica_ack", "synced", "disk"),
        ("replica_ack", "written", "memory"),
    ],
)
def test_an_old_value_is_refused_with_its_new_name(key: str, old: str, new: str) -> None:
    section: type[Any] = BrokerConfig if key == "grpc" else ReplicationConfig
    message = f"{old!r} is now called {new!r}"

    with pytest.raises(ConfigError, match=message) as caught:
        parse_sections(f"b:\n  {key}: {old}\n", {"b": section}, "x.yaml")
    assert caught.value.message.startswith(f"x.yaml:2: b.{key}: ")
    with pytest.raises(ConfigError, match=message):
        parse_value(section, "b", key, old)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("broker:\n  port: 1\n  topics_max: -3\n", 3),
        ("broker:\n  port: 70000\n  topics_max: 3\n", 2),
        ("broker:\n  topics_max: 3\n  grpc: fast\n", 3),
        ("broker:\n  topics_max: 3\n  metrics_names: odd\n", 3),
        ("broker:\n  topics_max: 3\n  cluster: a/b\n", 3),
        # The rule is about two keys, and the file has the second one.
        ("broker:\n  topics_max: 3\n  fetch_max_bytes: 5000\n", 3),
    ],
)
def test_a_refused_value_is_reported_at_the_line_of_its_key(text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sections(text, {"broker": BrokerConfig}, "x.yaml")

    assert caught.value.message.startswith(f"x.yaml:{line}: broker.")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "ears:\n", "ears: {}\n"])
def test_what_is_left_out_has_its_default(text: str) -> None:
    assert ears(text) == Ears()


def test_every_kind_of_value_is_read() -> None:
    text = """
ears:
  count: 3
  weight_kg: 1
  pointed: true
  colour: white
  home: ~/burrow
  names: [a, b]
  limits: {up: 5}
"""

    assert ears(text) == Ears(
        count=3,
        weight_kg=1.0,
        pointed=True,
        colour="white",
        home=Path.home() / "burrow",
        names=("a", "b"),
        limits={"up": 5},
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("eers: {}", "x.yaml:1: no section 'eers'; did you mean 'ears'?"),
        (
            "ears:\n  length: 1",
            "x.yaml:2: ears.length: no such key any more: ears have one length; leave it out",
        ),
        ("ears:\n  cuont: 1", "x.yaml:2: ears.cuont: no such key; did you mean 'count'?"),
        ("ears:\n  count: many", "x.yaml:2: ears.count: must be a whole number, not 'many'"),
        ("ears:\n  count: 1.5", "x.yaml:2: ears.count: must be a whole number, not 1.5"),
        ("ears:\n  count: true", "x.yaml:2: ears.count: must be a whole number, not True"),
        ("ears:\n  count:", "x.yaml:2: ears.count: must be a whole number, not nothing"),
        ("ears:\n  pointed: 1", "x.yaml:2: ears.pointed: must be true or false, not 1"),
        ("ears:\n  weight_kg: true", "x.yaml:2: ears.weight_kg: must be a number, not True"),
        ("ears:\n  colour: red", "x.yaml:2: ears.colour: must be one of grey, white, not 'red'"),
        ("ears:\n  names: a", "x.yaml:2: ears.names: must be a list, not 'a'"),
        ("ears:\n  names: [a, 2]", "x.yaml:2: ears.names[1]: must be a string, not 2"),
        ("ears:\n  limits: 1", "x.yaml:2: ears.limits: must be keys with values, not 1"),
        ("ears:\n  limits: {up: a}", "x.yaml:2: ears.limits.up: must be a whole number, not 'a'"),
        ("ears: 4", "x.yaml:1: ears: must be keys with values, not 4"),
        ("- ears", "x.yaml: must be sections, not a list"),
        ("ears:\n  count: -1", "x.yaml:2: ears.count: -1 is below 0"),
        ("ears:\n  count: 1\n  count: 2", "x.yaml:3: ears.count: given twice, first in line 2"),
        ("ears: {}\nears: {}", "x.yaml:2: ears: given twice, first in line 1"),
        ("ears: [", "x.yaml:1: not YAML: expected the node content, but found '<stream end>'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, sentence: str) -> None:
    assert refusal(text) == sentence


def test_a_name_like_no_other_is_answered_with_all_known_ones() -> None:
    assert refusal("ears:\n  zzz: 1").endswith(
        "no such key; known are colour, count, home, limits, names, pointed, weight_kg"
    )


def test_an_alias_to_itself_is_refused() -> None:
    assert "ears.limits.up" in refusal("ears:\n  limits: &a {up: *a}")


def test_a_control_character_is_refused() -> None:
    assert refusal("ears: \x01").startswith("x.yaml: not YAML: ")


def test_a_key_without_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml:1: tail\.length_cm: must be given"):
        parse_sections("tail: {}", {"tail": Tail}, "x.yaml")


def test_given_defaults_stand_below_the_file_and_above_the_dataclass() -> None:
    defaults = {"tail": {"length_cm": 7}, "ears": {"count": 4}}
    sections = {"tail": Tail, "ears": Ears}

    read = parse_sections("ears: {count: 5}", sections, "x.yaml", defaults)

    assert read == {"tail": Tail(length_cm=7), "ears": Ears(count=5)}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"

    with pytest.raises(ConfigError, match="cannot be read: No such file") as caught:
        load_sections(missing, SECTIONS)

    assert caught.value.details == {"file": str(missing)}


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pocketmq.yaml"
    path.write_text("ears: {count: 5}")

    assert load_sections(path, SECTIONS) == {"ears": Ears(count=5)}


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pocketmq.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match="it is not UTF-8"):
        load_sections(path, SECTIONS)


def test_old_names_of_settings_are_refused_with_the_new_ones() -> None:
    assert nearest("run_bytes_max", ["batch_max_bytes", "port"]) == (
        "; it is now called 'batch_max_bytes'"
    )
    assert nearest("broker.replicas_need", ["broker.replica_ack"]) == (
        "; it is now called 'broker.replica_ack'"
    )
    # A section that has no such setting suggests its own.
    assert nearest("run_bytes_max", ["count"]) == "; known are count"
