"""Recalls: what is taken back is not delivered, and everything that cannot be taken back is told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.delay.deliveries import DelayedDeliveries
from pocketmq.broker.delay.recalls import RECALL_TAG, Recalls
from pocketmq.broker.delay.timed import TimedDeliveries
from pocketmq.broker.delay_rules import DelayLimits, route, timer_out_ms
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    AlreadyDelivered,
    InvalidArgument,
    InvalidDelay,
    MessageNotFound,
    StoreFull,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.recall_handle import encode_handle
from pocketmq.proto.record import Host, Record
from pocketmq.proto.rpc import LATER
from pocketmq.proto.time_text import format_instant
from pocketmq.proto.topics import TIMER_TOPIC
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.format.state_tables import TopicConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...fake_calls import FakeCall
from ...fakes import FaultyDisk
from ...recorded import recorded_store, settings
from ...runs import append_record, bodies_of, make_run, records_of

START_MS = 1_700_000_000_250
DAY_MS = 86_400_000
PEER = "10.0.0.7:4711"


class Rig:
    """Timed messages for T, delivered on a clock that is moved, and their recalls."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.clock = VirtualClock(START_MS)
        self.disk = FaultyDisk()
        sizes: dict[str, Any] = {
            "log_file_size_bytes": 1 << 20,
            "index_slots": 50,
            "index_entries": 200,
        }
        config = StoreConfig(path=str(path), **(sizes | changes))
        now_ms = self.clock.now_ms
        self.store = MessageStore.open(config, disk=self.disk, now_ms=now_ms)
        broker = BrokerConfig()
        self.topics = Topics(StateFile(self.disk, config.path, "topics.json"), broker, now_ms)
        for name in ("T", "Other"):
            self.topics.create(TopicConfig(name=name, read_queues=1, write_queues=1), update=False)
        self.timers = Timers(self.clock)
        self.timers.start()
        self.appends = Appender(self.store, lambda key: None)
        self.timed = TimedDeliveries(
            self.store,
            self.timers,
            self.clock,
            DelayedDeliveries(self.appends),
            self.appends,
            slot_messages_max=1_000_000,
        )
        self.timed.start()
        self.recalls = Recalls(broker, self.topics, self.store, self.appends, now_ms)
        self.rules = DelayLimits(config.delay_levels_ms, 1_000, broker.delay_max_ms)

    def send(self, message_id: str, topic: str = "T", **properties: str) -> int:
        """Send a message with MESSAGE_ID; return when it is due."""
        asked = {"UNIQ_KEY": message_id, **properties}
        run = make_run(topic, 0, [message_id.encode()], asked)
        (part,) = route(run, self.rules, self.clock.now_ms())
        self.appends.append([part.run])
        return 0 if part.due_ms is None else int(part.due_ms[0])

    def recall(
        self, message_id: str, due_ms: int, *, topic: str = "T", broker: str = "broker-a"
    ) -> FakeCall:
        call = FakeCall(PEER)
        handle = encode_handle(topic, broker, due_ms, message_id)
        assert self.recalls.recall(pb.RecallRequest(topic="T", handle=handle), call) is LATER
        return call

    def markers(self) -> list[Record]:
        waiting = records_of(self.store, TIMER_TOPIC, 0)
        return [record for record in waiting if "TIMER_DEL_UNIQKEY" in record.properties]

    async def stop(self) -> None:
        self.disk.heal()
        self.timed.close()
        await self.timers.stop()
        self.store.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path / "s")
    yield rig
    await rig.stop()


# --- what is recalled


@pytest.mark.parametrize("ahead_ms", [1, 700, 1_500, 59_000, 2 * 3_600_000])
async def test_what_is_recalled_is_not_delivered(rig: Rig, ahead_ms: int) -> None:
    due_ms = rig.send("A", TIMER_DELAY_SEC="7200")
    assert rig.send("B", TIMER_DELIVER_MS=str(due_ms)) == due_ms
    await rig.clock.advance(2 * 3_600_000 - ahead_ms)

    call = rig.recall("A", due_ms)
    await rig.clock.advance(2 * DAY_MS)

    assert call.answer == pb.RecallReply(message_id="A")
    assert bodies_of(rig.store, "T", 0) == [b"B"]


async def test_apaches_handle_of_the_slots_first_millisecond_holds_until_it_is_due(
    rig: Rig,
) -> None:
    due_ms = rig.send("A", TIMER_DELIVER_MS=str(START_MS + 5_600))
    out_ms = timer_out_ms(due_ms, 1_000)
    await rig.clock.advance(due_ms - START_MS - 1)
    assert rig.clock.now_ms() > out_ms + 1

    call = rig.recall("A", out_ms + 1)
    await rig.clock.advance(DAY_MS)

    assert call.answer == pb.RecallReply(message_id="A")
    assert bodies_of(rig.store, "T", 0) == []


@pytest.mark.slow
async def test_any_number_of_others_of_the_same_hash_hide_no_message(rig: Rig) -> None:
    ids = ["".join(parts) for parts in product(("Aa", "BB"), repeat=9)]
    due_ms = rig.send(ids[0], TIMER_DELAY_MS="60000")
    for other in ids[1:]:
        rig.send(other, TIMER_DELAY_MS="60000")

    calls = [rig.recall(ids[0], due_ms)]
    assert not calls[0].answers
    for _ in range(20):
        await asyncio.sleep(0)
    calls.append(rig.recall(ids[0], due_ms))
    await rig.clock.advance(DAY_MS)

    assert [call.answer for call in calls] == [pb.RecallReply(message_id=ids[0])] * 2
    assert len(bodies_of(rig.store, "T", 0)) == len(ids) - 1
    assert ids[0].encode() not in bodies_of(rig.store, "T", 0)


async def test_recalled_twice_there_is_one_marker(rig: Rig) -> None:
    due_ms = rig.send("A", TIMER_DELAY_MS="60000")
    for _ in range(3):
        assert rig.recall("A", due_ms).answer == pb.RecallReply(message_id="A")

    assert len(rig.markers()) == 1


async def test_a_recall_is_repeated_after_the_time_of_the_message(rig: Rig) -> None:
    """The first answer may have been lost."""
    due_ms = rig.send("A", TIMER_DELAY_MS="60000")
    rig.recall("A", due_ms)
    await rig.clock.advance(DAY_MS)

    assert rig.recall("A", due_ms).answer == pb.RecallReply(message_id="A")

    assert bodies_of(rig.store, "T", 0) == []


async def test_a_second_message_of_the_same_id_at_another_time_is_its_own(rig: Rig) -> None:
    first = rig.send("A", TIMER_DELAY_MS="60000")
    second = rig.send("A", TIMER_DELAY_MS="90000")

    rig.recall("A", second)
    await rig.clock.advance(DAY_MS)

    (delivered,) = records_of(rig.store, "T", 0)
    assert delivered.store_timestamp_ms == first


async def test_an_answer_waits_for_the_device_where_flushing_does(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "s", flush="sync")
    waiters: list[Any] = []
    due_ms = rig.send("A", TIMER_DELAY_MS="60000")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.store, "request_sync", lambda end, done: waiters.append((end, done)))
        call = rig.recall("A", due_ms)
        again = rig.recall("A", due_ms)
    assert call.answer is None
    assert [end for end, _ in waiters] == [rig.store.max_log_offset] * 2

    waiters[0][1](None)
    waiters[1][1](StoreFull("no"))

    assert call.answer == pb.RecallReply(message_id="A")
    assert isinstance(again.answer, StoreFull)
    await rig.stop()


async def test_without_an_index_a_recall_is_taken_on_trust(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "s", index=False)
    due_ms = rig.send("A", TIMER_DELAY_MS="60000")

    rig.recall("A", due_ms)
    rig.recall("of-nobody", due_ms)
    await rig.clock.advance(DAY_MS)

    assert bodies_of(rig.store, "T", 0) == []
    with pytest.raises(AlreadyDelivered):
        rig.recall("A", due_ms)
    await rig.stop()


# --- what cannot be recalled


async def test_what_was_due_is_too_late(rig: Rig) -> None:
    due_ms = rig.send("A", TIMER_DELAY_MS="5000")
    await rig.clock.advance(5_000)

    with pytest.raises(AlreadyDelivered, match=f"was due at {format_instant(due_ms)}"):
        rig.recall("A", due_ms)

    assert rig.markers() == []


@pytest.mark.parametrize(
    ("message_id", "moved_ms", "topic_of_message"),
    [("B", 0, "T"), ("A", 1_000, "T"), ("A", -1_000, "T"), ("A", 0, "Other")],
)
async def test_what_does_not_wait_is_not_found(
    rig: Rig, message_id: str, moved_ms: int, topic_of_message: str
) -> None:
    due_ms = rig.send("A", topic_of_message, TIMER_DELAY_MS="60000")

    with pytest.raises(MessageNotFound):
        rig.recall(message_id, due_ms + moved_ms)

    assert rig.markers() == []


async def test_what_waits_for_a_level_is_not_found(rig: Rig) -> None:
    due_ms = rig.send("A", DELAY="5")

    with pytest.raises(MessageNotFound):
        rig.recall("A", due_ms)


async def test_a_handle_of_another_broker_or_topic_or_of_none_is_refused(rig: Rig) -> None:
    due_ms = rig.send("A", TIMER_DELAY_MS="60000")
    for names in ({"topic": "Other"}, {"broker": "broker-b"}):
        with pytest.raises(InvalidArgument, match="the handle is of") as caught:
            rig.recall("A", due_ms, **names)
        assert caught.value.details["field"] == "handle"
    with pytest.raises(InvalidArgument, match="not a recall handle"):
        rig.recalls.recall(pb.RecallRequest(topic="T", handle="nonsense"), FakeCall(PEER))
    with pytest.raises(TopicNotFound):
        rig.recalls.recall(pb.RecallRequest(topic="Nowhere", handle="nonsense"), FakeCall(PEER))
    with pytest.raises(InvalidDelay):
        rig.recall("A", START_MS + 4 * DAY_MS)
    assert rig.markers() == []


async def test_a_full_store_takes_no_recall(rig: Rig) -> None:
    due_ms = rig.send("A", TIMER_DELAY_MS="60000")
    rig.disk.run_full("commitlog")

    with pytest.raises(StoreFull):
        rig.recall("A", due_ms)


# --- the marker


async def test_a_marker_is_that_of_apache(tmp_path: Path, rig: Rig) -> None:
    config = StoreConfig(path=str(recorded_store("delays", tmp_path / "recorded")))
    config = apply_apache_settings(config, settings("delays"))
    recorded = MessageStore.open(config, disk=OsDisk(), now_ms=lambda: 0, read_only=True)
    theirs = records_of(recorded, TIMER_TOPIC, 0)
    recorded.close()
    markers = [record for record in theirs if "TIMER_DEL_UNIQKEY" in record.properties]
    assert len(markers) == 4
    by_id = {record.properties["UNIQ_KEY"]: record for record in theirs if record not in markers}
    rig.topics.create(TopicConfig(name="Timed", read_queues=1, write_queues=1), update=False)

    for marker in markers:
        message_id = marker.properties["UNIQ_KEY"]
        rig.clock.start_at(marker.born_timestamp_ms)
        append_record(rig.store, by_id[message_id])
        instant_ms = int(marker.properties["TIMER_DELIVER_MS"])
        handle = encode_handle("Timed", "broker-a", instant_ms, message_id)
        call = FakeCall(str(marker.born_host))
        rig.recalls.recall(pb.RecallRequest(topic="Timed", handle=handle), call)

        assert call.answer == pb.RecallReply(message_id=message_id)
        ours = rig.markers()[-1]
        # The group of the producer that asks is not told here.
        wanted = {name: value for name, value in marker.properties.items() if name != "PGROUP"}
        assert dict(ours.properties) == wanted
        assert ours.properties["TAGS"] == RECALL_TAG
        for field in ("topic", "queue_id", "body", "flag", "sys_flag", "born_timestamp_ms"):
            assert getattr(ours, field) == getattr(marker, field), field
        assert ours.born_host == marker.born_host


async def test_a_marker_says_where_from_it_came(rig: Rig) -> None:
    due_ms = rig.send("A", TIMER_DELAY_MS="60000", PGROUP="G")
    for number, peer in enumerate(["[::1]:7", "10.0.0.7:4711", "nonsense"]):
        due_ms = rig.send(f"A{number}", TIMER_DELAY_MS="60000", PGROUP="G")
        handle = encode_handle("T", "broker-a", due_ms, f"A{number}")
        rig.recalls.recall(pb.RecallRequest(topic="T", handle=handle), FakeCall(peer))

    hosts = [record.born_host for record in rig.markers()]
    assert hosts == [Host.parse("::1", 7), Host.parse("10.0.0.7", 4711), Host(bytes(4), 0)]
    assert {record.properties["PGROUP"] for record in rig.markers()} == {"G"}
