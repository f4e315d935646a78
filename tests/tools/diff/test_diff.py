"""Two stores compared: what differs is found and counted, what means nothing is not."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings as hypothesis_settings, strategies as st

from pocketmq.tools.cli import run as command
from pocketmq.tools.diff.command import diff

from ...recorded import by_size, recorded_names, recorded_store, settings
from ...runs import Hand, make_run, open_store
from ...stores import fingerprint

SMALL = [
    word
    for setting in (
        "mappedFileSizeCommitLog=4096",
        "mappedFileSizeConsumeQueue=400",
        "maxHashSlotNum=50",
        "maxIndexNum=200",
    )
    for word in ("--broker-conf", setting)
]

Message = tuple[str, int, bytes, dict[str, str]]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(diff, [str(word) for word in arguments])


def document(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


def store_of(home: Path, messages: list[Message], *, now_ms: int = 1_700_000_000_000) -> Path:
    store = open_store(home, now_ms=Hand(now_ms))
    for topic, queue, body, properties in messages:
        store.append(make_run(topic, queue, [body], properties))
    store.close()
    return home


def some(count: int) -> list[Message]:
    rng = random.Random(1)
    return [
        (
            rng.choice("AB"),
            rng.randrange(2),
            rng.randbytes(rng.randrange(1, 200)),
            {"KEYS": f"k{number}", "TAGS": "t", "UNIQ_KEY": f"u{number}"},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", by_size(recorded_names()))
def test_a_store_is_the_same_as_its_copy(name: str, tmp_path: Path) -> None:
    first = recorded_store(name, tmp_path / "a")
    second = recorded_store(name, tmp_path / "b")
    words = [w for k, v in settings(name).items() for w in ("--broker-conf", f"{k}={v}")]
    before = fingerprint(first)

    result = run(first, second, *words)

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "the same"
    assert fingerprint(first) == before


def test_what_recovery_takes_out_is_only_in_the_other(tmp_path: Path) -> None:
    a = recorded_store("rolled", tmp_path / "a")
    b = recorded_store("damaged-missing-middle-log", tmp_path / "b")

    found = document(a, b)

    assert (found["messages_compared"], found["only_in_a"], found["only_in_b"]) == (2879, 121, 0)
    queues = {(q["topic"], q["queue"]): q["only_in_a"] for q in found["queues"]}
    assert queues["Fill0", 0] == {"count": 34, "spans": [[476, 509]]}
    assert "Fill0/0: 34 only in A: 476–509" in run(a, b).stdout.splitlines()


def test_order_in_the_log_and_time_mean_nothing_unless_asked_for(tmp_path: Path) -> None:
    messages = some(60)
    a = store_of(tmp_path / "a", messages)
    by_queue = sorted(messages, key=lambda message: (message[0], message[1]))
    b = store_of(tmp_path / "b", by_queue, now_ms=1_800_000_000_000)

    assert run(a, b, *SMALL).exit_code == 0
    for option, name in (("--compare-times", "stored_ms"), ("--places", "log_offset")):
        found = document(a, b, option, *SMALL)
        assert found["fields"][name] > 50
    assert run(a, b, "--hosts", *SMALL).exit_code == 0


def test_order_of_properties_means_nothing(tmp_path: Path) -> None:
    a = store_of(tmp_path / "a", [("T", 0, b"x", {"p": "1", "q": "2"})])
    b = store_of(tmp_path / "b", [("T", 0, b"x", {"q": "2", "p": "1"})])

    assert run(a, b, *SMALL).exit_code == 0


@pytest.mark.parametrize(
    ("body", "properties", "field"),
    [
        (b"other", {"KEYS": "k", "TAGS": "t", "p": "1"}, "body"),
        (b"x", {"KEYS": "l", "TAGS": "t", "p": "1"}, "keys"),
        (b"x", {"KEYS": "k", "TAGS": "u", "p": "1"}, "tags"),
        (b"x", {"KEYS": "k", "TAGS": "t", "p": "2"}, "properties"),
        (b"x", {"KEYS": "k", "TAGS": "t"}, "properties"),
    ],
)
def test_what_differs_in_a_message_is_named(
    body: bytes, properties: dict[str, str], field: str, tmp_path: Path
) -> None:
    same = ("T", 0, b"same", {"TAGS": "t"})
    a = store_of(tmp_path / "a", [same, ("T", 0, b"x", {"KEYS": "k", "TAGS": "t", "p": "1"})])
    b = store_of(tmp_path / "b", [same, ("T", 0, body, properties)])

    found = document(a, b, *SMALL)

    assert found["fields"] == {field: 1}
    [queue] = found["queues"]
    assert queue["differing"]["first"] == [{"queue_offset": 1, "fields": [field]}]


def test_tables_are_compared(tmp_path: Path) -> None:
    a = recorded_store("consumption", tmp_path / "a")
    b = recorded_store("consumption", tmp_path / "b")
    path = b / "config/consumerOffset.json"
    text = path.read_text()
    line = '\t\t"Popped@G_pop":{\n\t\t\t0:7,\n\t\t\t1:20\n'
    assert line in text
    path.write_text(text.replace(line, line.replace("1:20", "1:19")))
    topics = (b / "config/topics.json").read_text()
    (b / "config/topics.json").write_text(topics.replace('"perm":7', '"perm":6', 1))

    found = document(a, b)

    tables = {table["table"]: table for table in found["tables"]}
    assert tables["offsets"]["changed"]["first"] == [{"name": "Popped@G_pop/1", "a": 20, "b": 19}]
    assert tables["topics"]["changed"]["count"] == 1
    assert found["queues_different"] == 0
    assert run(a, b, "--topic", "Popped").exit_code == 0


def test_a_limit_bounds_what_is_printed_and_not_what_is_counted(tmp_path: Path) -> None:
    a = store_of(tmp_path / "a", [("T", n % 9, b"a", {}) for n in range(90)])
    b = store_of(tmp_path / "b", [("T", n % 9, b"b", {}) for n in range(90)])

    found = document(a, b, "--limit", "2", *SMALL)

    assert (found["differing"], found["queues_different"], len(found["queues"])) == (90, 9, 2)
    assert all(len(queue["differing"]["first"]) == 2 for queue in found["queues"])
    assert "… and 7 more queues" in run(a, b, "--limit", "2", *SMALL).stdout


@pytest.mark.parametrize(
    "arguments",
    [[], ["{store}"], ["{store}", "/nowhere/at/all"], ["{store}", "{store}", "--limit", "-1"]],
)
def test_wrong_arguments_are_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    assert command(["diff", *(word.format(store=tmp_path) for word in arguments)]) == 2


@pytest.mark.long
@hypothesis_settings(max_examples=15)
@given(
    changed=st.sets(st.integers(0, 79), max_size=6),
    tail_a=st.integers(0, 20),
    tail_b=st.integers(0, 20),
)
def test_counts_are_those_of_a_comparison_one_by_one(
    changed: set[int], tail_a: int, tail_b: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("diff")
    messages = some(80)
    other = [
        (topic, queue, b"!" + body if number in changed else body, properties)
        for number, (topic, queue, body, properties) in enumerate(messages)
    ]
    a = store_of(home / "a", messages[: 80 - tail_a])
    b = store_of(home / "b", other[: 80 - tail_b])
    both = 80 - max(tail_a, tail_b)

    found = document(a, b, *SMALL)

    assert found["messages_compared"] == both
    assert found["differing"] == sum(number < both for number in changed)
    assert found["only_in_a"] == max(0, tail_b - tail_a)
    assert found["only_in_b"] == max(0, tail_a - tail_b)
    shutil.rmtree(home)
