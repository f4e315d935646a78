"""Apache RocketMQ's families on `/metrics`: against a page of 5.5.0, against the docs, and what they count."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.groups.lag import lags, note_lag
from pocketmq.broker.service_v2.service import SERVICE
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.topics import DEAD_LETTERS_GROUP, MARK_GROUPS

from ...fake_calls import FakeStream
from ...numbered import numbered_run
from ...runs import make_run
from ..service_v2.serving import ME, Served
from .busy import GROUP, busy_page, families, make_busy, page_of, receive, values

ROOT = Path(__file__).parents[3]
APACHE = ROOT / "tests/fixtures/metrics-apache-5.5.0.txt"
DOCS = (ROOT / "docs/metrics.md").read_text()
COMMON = {"cluster", "node_id", "node_type", "otel_scope_name"}


def shape(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return type and label keys of each family of a page."""
    return {
        name: (
            family.type,
            frozenset(key for sample in family.samples for key in sample.labels) - {"le"},
        )
        for name, family in families(text).items()
    }


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under HEADING of the docs."""
    section = DOCS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def is_own(name: str) -> bool:
    return name.startswith(("pocketmq_", "process_"))


async def test_every_difference_from_apaches_page_is_listed_with_its_reason(tmp_path: Path) -> None:
    ours, apaches = shape(await busy_page(tmp_path)), shape(APACHE.read_text())
    assert len(apaches) > 30
    found: dict[str, str] = {}
    for name in ours.keys() | apaches.keys():
        if name not in ours:
            found[name] = "not here"
        elif name not in apaches:
            if not is_own(name):
                found[name] = "more"
        elif ours[name] != apaches[name]:
            (kind, labels), (apaches_kind, apaches_labels) = ours[name], apaches[name]
            assert kind == apaches_kind, name
            assert labels > apaches_labels, f"{name} lacks {apaches_labels - labels}"
            found[name] = " ".join(f"label `{label}` more" for label in labels - apaches_labels)

    listed = {cells[0].strip("`"): cells for cells in rows("Differences from Apache RocketMQ")}

    assert {name: cells[1] for name, cells in listed.items()} == found
    assert all(cells[2] for cells in listed.values())


@pytest.mark.slow
async def test_the_docs_tell_of_every_family(tmp_path: Path) -> None:
    text = await busy_page(tmp_path)
    found = {
        name: [
            kind,
            ", ".join(
                f"`{label}`" for label in sorted(labels if is_own(name) else labels - COMMON)
            ),
            families(text)[name].documentation,
        ]
        for name, (kind, labels) in shape(text).items()
    }

    told = {
        cells[0].strip("`"): cells[1:]
        for heading in (
            "RocketMQ families",
            "Client measurements",
            "PocketMQ families",
        )
        for cells in rows(heading)
    }

    assert told == found


async def test_no_number_is_negative_and_no_series_stands_twice(tmp_path: Path) -> None:
    text = await busy_page(tmp_path)
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    names = [line[0] for line in lines]

    assert len(names) == len(set(names))
    assert all(float(line[2]) >= 0 for line in lines)


# --- counters


async def test_what_comes_in_is_counted_by_its_type(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        await make_busy(served)
        text = await page_of(served)

    found = {
        (dict(labels)["topic"], dict(labels)["message_type"]): count
        for labels, count in values(text, "rocketmq_messages_in_total").items()
    }
    assert found == {
        ("orders", "normal"): 3,
        ("fifo", "fifo"): 1,
        ("later", "delay"): 1,
        ("tx", "transaction"): 3,
        ("tagged", "normal"): 1,
        (f"%DLQ%{GROUP}", "normal"): 1,
    }
    by_topic = (("consumer_group", GROUP), ("is_system", "false"), ("topic", "orders"))
    assert values(text, "rocketmq_send_to_dlq_messages_total") == {by_topic: 1}
    for name, count in (("commit", 1), ("rollback", 1)):
        assert values(text, f"rocketmq_{name}_messages_total") == {(("topic", "tx"),): count}
    assert values(text, "rocketmq_half_messages") == {(("topic", "tx"),): 1}


async def send(served: Served, *runs: pb.ProduceRun) -> list[pb.ProduceReply]:
    """Send RUNS as our own clients do."""
    replies: list[pb.ProduceReply] = []
    for run in runs:
        served.parts.sends.send(run, replies.append)
    await served.clock.advance(1)
    return replies


def run_of(topic: str, sizes: list[int], *properties: dict[str, str]) -> pb.ProduceRun:
    """Return a run of messages with bodies of SIZES, and PROPERTIES for each, if any."""
    run = make_run(topic, 0, [bytes(size) for size in sizes], list(properties) or None)
    return pb.ProduceRun(topic=topic, queue=0, records=bytes(run.records), sizes=run.sizes.tolist())


@pytest.mark.parametrize("count", [1, 3, 40])
async def test_a_run_is_counted_by_type_and_size(tmp_path: Path, count: int) -> None:
    """Few messages and many are counted in different ways."""
    keyed = [{"__SHARDINGKEY": "k"} if number % 2 else {} for number in range(count)]
    async with Served(tmp_path) as served:
        served.topic("T")
        plain = run_of("T", [5_000] * count)
        mixed = run_of("T", [10] * count, *keyed)
        replies = await send(served, plain, mixed)
        text = await page_of(served)

    assert not any(reply.HasField("error") for reply in replies)
    fifo = count // 2
    totals = {
        dict(labels)["message_type"]: found
        for labels, found in values(text, "rocketmq_messages_in_total").items()
    }
    assert totals == {"normal": 2 * count - fifo} | ({"fifo": fifo} if fifo else {})
    up_to = {
        (dict(labels)["message_type"], dict(labels)["le"]): found
        for labels, found in values(text, "rocketmq_message_size_bucket").items()
    }
    assert up_to["normal", "1024.0"] == up_to["normal", "4096.0"] == count - fifo
    assert up_to["normal", "524288.0"] == up_to["normal", "+Inf"] == 2 * count - fifo
    size = sum(values(text, "rocketmq_throughput_in_total").values())
    assert size == len(plain.records) + len(mixed.records)


async def test_what_is_refused_or_repeated_did_not_come_in(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        served.topic("T")
        numbered = numbered_run([b"a", b"b"], 0)
        refused = run_of("T", [1])
        refused.queue = 99
        replies = await send(served, numbered, numbered, refused)
        text = await page_of(served)

    assert [reply.HasField("error") for reply in replies].count(True) == 1
    assert sum(values(text, "rocketmq_messages_in_total").values()) == 2


async def test_what_goes_out_is_counted_by_group(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        served.topic("T", queues=1)
        run = run_of("T", [1] * 5)
        await send(served, run)
        for filtered in (False, True):
            request = pb.FetchRequest(topic="T", group="sharing", max_messages=4)
            if filtered:
                request.filter.CopyFrom(pb.Filter(kind=pb.Filter.SQL, expression="a IS NULL"))
            served.parts.fetches.fetch(request, lambda reply: None)
        await served.clock.advance(1)
        receive(served, "T", 2)
        text = await page_of(served)

    out = {
        dict(labels)["consumer_group"]: count
        for labels, count in values(text, "rocketmq_messages_out_total").items()
    }
    assert out == {"sharing": 8, GROUP: 2}
    size = sum(values(text, "rocketmq_throughput_out_total").values())
    assert size == len(run.records) / 5 * 10


async def test_calls_of_official_clients_are_counted_with_what_came_of_them(
    tmp_path: Path,
) -> None:
    async with Served(tmp_path) as served:
        served.topic("T")
        await served.send("T", b"a", message_type=v2.NORMAL)
        await served.send("missing", b"a", message_type=v2.NORMAL)
        text = await page_of(served)

    found: dict[Any, float] = {}
    for labels, count in values(text, "rocketmq_rpc_latency_milliseconds_count").items():
        of = dict(labels)
        assert of["protocol_type"] == "grpc"
        found[of["request_code"], of["response_code"], of["is_long_polling"]] = count
    assert found == {
        ("send_message", "success", "false"): 1,
        ("send_message", "topic_not_found", "false"): 1,
    }


async def test_a_receive_that_waits_is_told_apart_and_one_that_is_left_does_not_count(
    tmp_path: Path,
) -> None:
    async with Served(tmp_path) as served:
        served.topic("T", queues=1)
        receive_message = served.parts.methods()[f"/{SERVICE}/ReceiveMessage"].handler
        request = v2.ReceiveMessageRequest(
            group={"name": GROUP},
            message_queue=v2.MessageQueue(topic=v2.Resource(name="T")),
            batch_size=4,
            invisible_duration={"seconds": 60},
            long_polling_timeout={"seconds": 10},
        )
        left, waits = (FakeStream(metadata=ME) for _ in range(2))
        receive_message(request, left)
        left.cancel()
        receive_message(request, waits)
        await served.clock.advance(50)
        await send(served, run_of("T", [1]))
        receive_message(request, at_once := FakeStream(metadata=ME))
        await served.clock.advance(11_000)
        text = await page_of(served)

    assert [len(stream.sent) for stream in (left, waits, at_once)] == [0, 3, 2]
    counts = {
        (dict(labels)["response_code"], dict(labels)["is_long_polling"]): count
        for labels, count in values(text, "rocketmq_rpc_latency_milliseconds_count").items()
    }
    assert counts == {("success", "true"): 1, ("message_not_found", "true"): 1}
    sums = values(text, "rocketmq_rpc_latency_milliseconds_sum")
    took = {dict(labels)["response_code"]: took for labels, took in sums.items()}
    assert 50 <= took["success"] < 100
    assert took["message_not_found"] >= 10_000


async def test_a_counter_is_forgotten_with_its_topic_and_group(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        await make_busy(served)
        served.parts.topics.delete("fifo")
        served.parts.pops.forget_group(GROUP)
        text = await page_of(served)

    assert 'topic="fifo"' not in text
    assert not values(text, "rocketmq_messages_out_total")


# --- lag


def lag(text: str, group: str = GROUP, *, retry: bool = False) -> dict[str, tuple[float, ...]]:
    """Return lag, in flight, ready, and both latencies of GROUP, by topic; RETRY: of what was delivered before."""
    names = (
        "lag_messages",
        "inflight_messages",
        "ready_messages",
        "lag_latency_milliseconds",
        "queueing_latency_milliseconds",
    )
    columns = [
        {
            dict(labels)["topic"]: value
            for labels, value in values(text, f"rocketmq_consumer_{name}").items()
            if dict(labels)["consumer_group"] == group
            and dict(labels)["is_retry"] == str(retry).lower()
        }
        for name in names
    ]
    return {topic: tuple(column[topic] for column in columns) for topic in columns[0]}


def delivered(text: str, name: str = "rocketmq_messages_out_total") -> dict[str, float]:
    """Return what NAME counts, by is_retry."""
    return {dict(labels)["is_retry"]: value for labels, value in values(text, name).items()}


async def test_names_are_without_units_if_they_are_to_be_plain(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        await make_busy(served)
        with_units = await page_of(served)
        plain = await page_of(served, names="plain")

    def names(text: str) -> set[str]:
        families = (line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
        return {name for name in families if name.startswith("rocketmq_")}

    assert {
        "rocketmq_consumer_lag_latency",
        "rocketmq_consumer_queueing_latency",
        "rocketmq_rpc_latency",
        "rocketmq_storage_size",
        "rocketmq_storage_message_reserve_time",
        "rocketmq_storage_flush_behind_bytes",
        "rocketmq_timer_enqueue_latency",
        "rocketmq_finish_message_latency",
        "rocketmq_consumer_lag_messages",
        "rocketmq_messages_in_total",
    } <= names(plain)
    assert not any(name.endswith("_milliseconds") for name in names(plain))
    assert len(names(plain)) == len(names(with_units))


async def test_lag_of_a_group_that_pops(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        served.topic("T", queues=1)
        await send(served, run_of("T", [1] * 6))
        await served.clock.advance(999)
        await send(served, run_of("T", [1] * 4))
        await served.clock.advance(999)
        handles = [handle for _ in range(4) for handle in receive(served, "T")]
        served.parts.pops.acknowledge(GROUP, "T", handles[2])
        text = await page_of(served)
        # One is finished behind two that are not: it does not count, though it is not committed.
        assert lag(text) == {"T": (9, 3, 6, 2_000, 2_000)}
        assert lag(text, retry=True) == {"T": (0, 0, 0, 0, 0)}

        for handle in (handles[0], handles[1], handles[3]):
            served.parts.pops.acknowledge(GROUP, "T", handle)
        for handle in [handle for _ in range(3) for handle in receive(served, "T")][:2]:
            served.parts.pops.acknowledge(GROUP, "T", handle)
        # The last of three is in flight, and the others were stored a second later.
        assert lag(await page_of(served)) == {"T": (4, 1, 3, 1_000, 1_000)}

        await served.clock.advance(40_000)
        # Its lease is over: it is redelivered.
        text = await page_of(served)
        assert lag(text) == {"T": (3, 0, 3, 41_000, 41_000)}
        assert lag(text, retry=True) == {"T": (1, 0, 1, 41_000, 41_000)}

        (handle,) = receive(served, "T")
        text = await page_of(served)
        assert lag(text) == {"T": (3, 0, 3, 41_000, 41_000)}
        assert lag(text, retry=True) == {"T": (1, 1, 0, 41_000, 0)}
        assert delivered(text) == {"false": 7, "true": 1}
        assert delivered(text, "rocketmq_throughput_out_total")["true"] > 0

        served.parts.pops.acknowledge(GROUP, "T", handle)
        assert lag(await page_of(served), retry=True) == {"T": (0, 0, 0, 0, 0)}


async def test_lag_of_a_group_that_shares_queues(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        served.topic("T", queues=2)
        await send(served, run_of("T", [1] * 6))
        await served.clock.advance(999)
        served.parts.offsets.commit("T", "sharing", 0, 2)
        # In the queue of which it committed nothing there is nothing.
        assert lag(await page_of(served), "sharing") == {"T": (4, 0, 4, 1_000, 1_000)}

        request = pb.FetchRequest(topic="T", group="sharing", offset=5)
        served.parts.fetches.fetch(request, lambda reply: None)
        assert lag(await page_of(served), "sharing") == {"T": (4, 3, 1, 1_000, 1_000)}

        served.parts.offsets.commit("T", "sharing", 0, 6)
        assert lag(await page_of(served), "sharing") == {"T": (0, 0, 0, 0, 0)}


@pytest.mark.parametrize("committed", [-5, 0, 3, 99])
async def test_lag_is_never_negative_wherever_a_group_stands(
    tmp_path: Path, committed: int
) -> None:
    """Offsets may lie outside of the queue: a store was replaced, or messages expired."""
    async with Served(tmp_path) as served:
        served.topic("T", queues=1)
        await send(served, run_of("T", [1] * 3))
        served.parts.offsets.commit("T", "sharing", 0, committed)
        request = pb.FetchRequest(topic="T", group="sharing", offset=3)
        served.parts.fetches.fetch(request, lambda reply: None)
        served.parts.offsets.commit("T", "sharing", 0, committed)
        (found,) = lag(await page_of(served), "sharing").values()

    left = max(0, 3 - max(committed, 0))
    assert found[:3] == (left, left, 0)
    assert min(found) >= 0


async def test_what_a_group_failed_to_process_is_told_apart(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        served.topic("%RETRY%g", queues=1)
        await send(served, run_of("%RETRY%g", [1] * 2))
        served.parts.offsets.commit("%RETRY%g", "g", 0, 0)
        text = await page_of(served)

    labels = (("consumer_group", "g"), ("is_retry", "true"), ("is_system", "false"))
    found = values(text, "rocketmq_consumer_lag_messages")
    assert found == {(*labels, ("topic", "%RETRY%g")): 2}


async def test_more_series_than_the_limit_are_left_out_and_counted(tmp_path: Path) -> None:
    async with Served(tmp_path, metrics_series_max=2) as served:
        for number in range(3):
            served.topic(f"T{number}", queues=1)
            await send(served, run_of(f"T{number}", [1]))
            served.parts.offsets.commit(f"T{number}", "g", 0, 0)
        text = await page_of(served, series_max=2)

    assert len(values(text, "rocketmq_consumer_lag_messages")) == 2
    assert len(values(text, "rocketmq_messages_in_total")) == 2
    left_out = values(text, "pocketmq_metrics_series_dropped")
    assert left_out[("kind", "consumer_lag"),] == left_out[("kind", "messages_in"),] == 1
    assert sum(left_out.values()) == 2


async def test_what_clients_call_themselves_is_bounded(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        sessions = served.parts.clients.sessions
        for number in range(4):
            settings = v2.Settings(publishing=v2.Publishing())
            settings.user_agent.version = f"V{number // 2}" + "x" * 10_000
            sessions.settle(sessions.record_activity(f"c{number}", "JAVA"), settings)
        text = await page_of(served, series_max=1)

    ((labels, count),) = values(text, "rocketmq_producer_connections").items()
    assert (len(dict(labels)["version"]), count) == (255, 2)
    left_out = values(text, "pocketmq_metrics_series_dropped")
    assert left_out[("kind", "producer_connections"),] == 1


@pytest.mark.parametrize("group", sorted(MARK_GROUPS))
async def test_marks_of_the_broker_are_no_consumer_group(tmp_path: Path, group: str) -> None:
    async with Served(tmp_path) as served:
        served.topic("%DLQ%g", queues=1)
        parts = served.parts
        parts.offsets.commit("%DLQ%g", group, 0, 0)
        noted = note_lag(served.store, parts.topics, parts.offsets, parts.pops, 10)

    assert noted.committed == {}


async def test_purged_dead_letters_are_no_lag(tmp_path: Path) -> None:
    async with Served(tmp_path) as served:
        served.topic("%DLQ%g", queues=1)
        await send(served, run_of("%DLQ%g", [1] * 5))
        parts = served.parts
        for group, offset in (("g", 1), ("reader", 1), (DEAD_LETTERS_GROUP, 3)):
            parts.offsets.commit("%DLQ%g", group, 0, offset)
        noted = note_lag(served.store, parts.topics, parts.offsets, parts.pops, 10)

    assert {lag.group: lag.messages for lag in lags(noted)} == {"g": 2, "reader": 4}


async def test_lag_is_of_one_moment(tmp_path: Path) -> None:
    """What the tables say is copied: what changes while the page is made does not come into it."""
    async with Served(tmp_path) as served:
        served.topic("T", queues=1)
        await send(served, run_of("T", [1] * 3))
        parts = served.parts
        parts.offsets.commit("T", "g", 0, 1)
        noted = note_lag(served.store, parts.topics, parts.offsets, parts.pops, 10)
        parts.offsets.commit("T", "g", 0, 3)
        await send(served, run_of("T", [1] * 3))

    assert noted.committed == {("g", "T"): {0: 1}}
    assert noted.bounds == {"T": {0: (0, 3)}}


def test_the_docs_name_the_setting_that_bounds_series() -> None:
    assert re.search(r"`broker\.metrics_series_max` \(20,000\)", DOCS)
