"""Filters from end to end: a real server, real consumers, the command."""

from __future__ import annotations

import pytest

from pocketmq.client import Admin, Filter, Message, Producer, PullConsumer, Sql
from pocketmq.proto.errors import InvalidFilter

from ..served import ServerProcess
from .command import Shell

pytestmark = pytest.mark.processes


def fill(server: ServerProcess, topic: str, count: int) -> None:
    """Send COUNT numbered messages to the one queue of TOPIC: every third has the tag t0, t1, t2."""
    with Admin(server.nameserver) as admin:
        admin.create_topic(topic, queues=1)
    with Producer(server.nameserver) as producer:
        producer.send_many(
            [
                Message(topic, b"%d" % n, tag=f"t{n % 3}", properties={"n": str(n)})
                for n in range(count)
            ]
        )


def read(server: ServerProcess, topic: str, wanted: Filter, group: str) -> list[int]:
    """Return the numbers of what GROUP gets of TOPIC until nothing comes."""
    with PullConsumer(group, {topic: wanted}, server.nameserver) as consumer:
        return [int(message.body) for message in consumer.messages(timeout_ms=1_500)]


@pytest.mark.parametrize(
    ("group", "wanted", "numbers"),
    [
        ("all", None, range(30)),
        ("star", "*", range(30)),
        ("tag", "t1", range(1, 30, 3)),
        ("tags", "t1 || t2 || t9", [n for n in range(30) if n % 3]),
        ("none", "t9", []),
        ("sql", Sql("n BETWEEN 10 AND 19 AND TAGS <> 't0'"), [10, 11, 13, 14, 16, 17, 19]),
    ],
)
def test_a_consumer_gets_what_it_wants(
    server: ServerProcess, group: str, wanted: Filter, numbers: list[int]
) -> None:
    topic = f"Wanted-{group}"
    fill(server, topic, 30)

    assert read(server, topic, wanted, group) == list(numbers)


def test_a_group_goes_on_behind_what_it_does_not_want(server: ServerProcess) -> None:
    fill(server, "Behind", 30)
    assert read(server, "Behind", "t0", "behind") == list(range(0, 30, 3))

    with Admin(server.nameserver) as admin:
        (position,) = admin.group_offsets("behind", "Behind")

    assert position.offset == 30
    assert read(server, "Behind", "t0", "behind") == []


def test_a_filter_that_does_not_parse_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(InvalidFilter, match="character 5"):
        PullConsumer("g", {"T": Sql("n > 'x")}, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("option", "out"), [(("--tag", "t0 || t2"), "0\n2\n3\n5\n"), (("--sql", "n > 3"), "4\n5\n")]
)
def test_the_command_prints_what_is_wanted(
    server: ServerProcess, call: Shell, option: tuple[str, str], out: str
) -> None:
    topic = f"Printed{option[0]}"
    fill(server, topic, 6)

    done = call("consume", topic, "--group", f"printed{option[0]}", "--timeout", "1.5", *option)

    assert (done.code, done.out) == (0, out)


def test_the_command_shows_where_an_expression_is_wrong(call: Shell) -> None:
    done = call("consume", "T", "--group", "g", "--sql", "n > 5 AND")

    assert done.code == 2
    assert done.err.splitlines()[1:3] == ["    n > 5 AND", "             ^"]


def test_the_command_takes_one_filter(call: Shell) -> None:
    done = call("consume", "T", "--group", "g", "--sql", "TRUE", "--tag", "a")

    assert done.code == 2
    assert "Give only one of --tag and --sql" in done.err
