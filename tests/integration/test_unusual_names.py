"""A store with names and numbers that nobody could give today is served, and none of them hides the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from pocketmq.client import PullConsumer
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ..served import ServerProcess
from .command import Shell
from .v2_caller import Caller

pytestmark = pytest.mark.processes

#: Java's broker makes a topic of its host's name; older brokers and tools made the others.
SERVED = ("localhost.localdomain", "with blank", "café", "t" * 200, "<b>&\"'?#%20")
LEFT_OUT = ("a/b", "../escape", "/absolute", "..", "a@b", "日" * 100, "tab\tname", "half\ud800")
GROUPS = ("with.dot", "with blank", "é", "proxy@broadcast")


def bean(name: str, **fields: Any) -> dict[str, Any]:
    return {"topicName": name, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1, **fields}


def write_tables(config: Path) -> None:
    """Write the tables of a broker that checked less."""
    topics = {name: bean(name) for name in ("plain", *SERVED, *LEFT_OUT)}
    topics |= {
        "priority": bean("priority", perm=15),
        "locked": bean("locked", perm=8),
        "negative": bean("negative", readQueueNums=-1, writeQueueNums=-1),
        "huge": bean("huge", readQueueNums=2**31 - 1, writeQueueNums=2**70, perm=2**40 + 6),
        "wrong": bean("wrong", perm="abc"),
        "a list": [1],  # type: ignore[dict-item]
        "other name": bean("plain"),
        "enum": bean("enum", topicFilterType="FUTURE", topicSysFlag=2**40),
        "half attribute": bean("half attribute", attributes={"x": "\udc00"}),
    }
    groups: dict[str, Any] = {
        name: {"groupName": name} for name in ("plain", "popping.group", *GROUPS, "a/b")
    }
    groups["wrong"] = {"groupName": "wrong", "retryMaxTimes": "x"}
    offsets: dict[str, Any] = {f"plain@{group}": {"0": 0} for group in GROUPS}
    offsets |= {"plain@wrong": {"0": "x"}, "plain@huge": {"0": 2**70}, "plain@list": [1]}
    config.mkdir(parents=True)
    for name, member, table in (
        ("topics.json", "topicConfigTable", topics),
        ("subscriptionGroup.json", "subscriptionGroupTable", groups),
        ("consumerOffset.json", "offsetTable", offsets),
    ):
        (config / name).write_text(json.dumps({member: table}))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unusual") / "store"
    write_tables(folder / "config")
    return folder


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[ServerProcess]:
    with ServerProcess(store, "--clock", "virtual") as running:
        yield running


def test_all_that_a_store_can_hold_is_listed(call: Shell) -> None:
    topics = {topic["name"]: topic for topic in call.done("topic", "list")}

    assert set(SERVED) <= topics.keys()
    assert not {*LEFT_OUT, "wrong", "a list"} & topics.keys()
    assert topics["priority"]["permission"] == 7
    assert (topics["locked"]["permission"], topics["negative"]["read_queues"]) == (0, 0)
    assert {"huge", "other name", "enum", "half attribute"} <= topics.keys()


@pytest.mark.parametrize("topic", SERVED)
def test_a_topic_with_an_unusual_name_is_used_like_any(
    call: Shell, server: ServerProcess, topic: str
) -> None:
    call.done("send", topic, "one", "--key", "k")

    assert [one["body"] for one in call.consumed(topic, 1)] == ["one"]
    assert call.done("topic", "describe", topic)[0]["queues"][0]["max_offset"] >= 1
    assert call.done("find", "--topic", topic, "--key", "k")[0]["topic"] == topic
    assert call.done("topic", "update", topic, "--queues", "2")[0]["write_queues"] == 2
    caller = Caller(
        server.ready["broker"], v2.Resource(name=topic), v2.Resource(name="popping.group")
    )
    route = caller.ask(
        "QueryRoute", v2.QueryRouteRequest(topic=caller.topic), v2.QueryRouteResponse
    )
    assert (route.status.code, len(route.message_queues)) == (v2.OK, 2)
    caller.send(b"two")
    (first, second) = caller.receive()
    assert {first.body, second.body} == {b"one", b"two"}
    caller.acknowledge(first)
    caller.acknowledge(second)
    caller.channel.close()


@pytest.mark.long
def test_what_fails_in_an_unusual_topic_and_group_is_retried(
    call: Shell, server: ServerProcess
) -> None:
    topic, group = "with blank", "é"
    call.done("send", topic, "delayed", "--delay", "1m", "--key", "d")
    with PullConsumer(group, topic, server.nameserver) as consumer:
        call.done("clock", "advance", "1m")
        message = next(one for one in consumer if one.keys == ("d",))
        consumer.send_back(message)
        call.done("clock", "advance", "1m")
        (again,) = consumer.poll(60_000)
    assert (again.body, again.topic, again.reconsume_times) == (b"delayed", "%RETRY%é", 1)


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_with_an_unusual_name_is_used_like_any(call: Shell, group: str) -> None:
    assert call.done("group", "describe", group)[0]["group"] == group
    reset = call("group", "reset-offset", group, "--topic", "plain", "--to-first")
    assert reset.code == 0, reset
    assert any(row["group"] == group for row in call.done("lag"))
    assert call("lint").code in (0, 1)
    assert call("group", "delete", group, "--yes").code == 0


def test_topics_out_of_range_take_no_room_of_others(call: Shell) -> None:
    call.done("topic", "create", "another", "--queues", "3")
    call.done("send", "another", "x")


def test_new_names_keep_the_rules(call: Shell) -> None:
    for wrong in ("new.topic", "new topic", "n" * 128, "a/b"):
        assert call("topic", "create", wrong).code == 2
        assert call("send", wrong, "x").code == 2
        assert call("group", "create", wrong).code == 2


def test_pages_and_metrics_show_every_topic(call: Shell, server: ServerProcess) -> None:
    address = f"http://{server.ready['broker']}"
    for topic in SERVED:
        call.done("send", topic, "page")
        with urlopen(f"{address}/topics/{quote(topic, safe='')}") as page:
            assert page.status == 200
    with urlopen(f"{address}/topics") as page:
        listed = page.read().decode()
    assert "localhost.localdomain" in listed
    assert SERVED[-1] not in listed  # Escaped.
    with urlopen(f"{address}/metrics") as page:
        metrics = page.read().decode()
    assert 'topic="localhost.localdomain"' in metrics
