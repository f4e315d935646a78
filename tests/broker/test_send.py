"""Sends: what is stored, what is refused, and when the answer comes."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.send import Sends
from pocketmq.broker.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    DiskFailure,
    FlushTimeout,
    InvalidArgument,
    InvalidRecord,
    MessageTooLarge,
    NotServed,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    ShuttingDown,
    TopicNotFound,
)
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import (
    FIXED_SIZE_V4,
    MAGIC_V1,
    MAGIC_V2,
    SYS_INNER_BATCH,
    SYS_PREPARED,
    Record,
    encode_record,
)
from pocketmq.proto.record_run import encode_run
from pocketmq.store.message_store import MessageStore
from pocketmq.store.state_files import StateFile
from pocketmq.store.state_tables import TopicConfig

from ..fakes import FaultyDisk
from ..runs import BORN, bodies_of, records_of, small_config

TOPIC = "T"


def run_of(bodies: Sequence[bytes] = (b"one", b"two"), **fields: object) -> pb.ProduceRun:
    records, sizes = encode_run(
        TOPIC, 0, [(body, b"") for body in bodies], born_timestamp_ms=1, born_host=BORN
    )
    return pb.ProduceRun(
        **{"run_id": 1, "topic": TOPIC, "records": records, "sizes": sizes, **fields}  # type: ignore[arg-type]
    )


def run_of_record(record: Record) -> pb.ProduceRun:
    data = encode_record(record)
    return pb.ProduceRun(topic=record.topic, records=data, sizes=[len(data)])


class Rig:
    """Sends over a small store whose flushing thread reports only when the test says so."""

    def __init__(self, path: Path, *, flush: str = "async", **settings: object) -> None:
        self.clock = VirtualClock()
        self.disk = FaultyDisk()
        config = small_config(path / "store", flush=flush)
        self.store = MessageStore.open(config, disk=self.disk, now_ms=self.clock.now_ms)
        self.reports: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.store.start(self.reports.put)
        broker = BrokerConfig(**settings)  # type: ignore[arg-type]
        file = StateFile(self.disk, self.store.config.path, "topics.json")
        self.topics = Topics(file, broker, self.clock.now_ms)
        self.topics.create(TopicConfig(name=TOPIC, read_queues=4, write_queues=4), update=False)
        self.timers = Timers(self.clock)
        self.notified: list[object] = []
        self.sends = Sends(broker, self.topics, self.store, self.timers, self._notify)
        self.replies: list[pb.ProduceReply] = []

    def _notify(self, key: object) -> int:
        self.notified.append(key)
        return 0

    async def send(self, *runs: pb.ProduceRun) -> None:
        """Send RUNS in one turn of the loop, and let it end."""
        for run in runs:
            self.sends.send(run, self.replies.append)
        await asyncio.sleep(0)

    async def refusal(self, run: pb.ProduceRun) -> PocketMQError:
        """Return the error that RUN is answered with, without a wait for the device."""
        await self.send(run)
        reply = self.replies.pop()
        assert reply.HasField("error"), reply
        assert reply.run_id == run.run_id
        return from_wire(reply.error)

    def report(self) -> None:
        """Let the next outcome of a sync reach the loop's thread."""
        self.reports.get(timeout=10)()

    def close(self) -> None:
        self.disk.heal()
        self.store.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


async def test_a_send_to_memory_is_answered_at_once_and_told_to_who_waits(rig: Rig) -> None:
    await rig.send(run_of(durability=pb.MEMORY))

    (reply,) = rig.replies
    assert not reply.HasField("error")
    assert (reply.first_queue_offset, reply.durability) == (0, pb.MEMORY)
    assert rig.notified == [(TOPIC, 0)]
    assert bodies_of(rig.store, TOPIC, 0) == [b"one", b"two"]


async def test_a_send_to_disk_is_answered_when_the_device_has_it(rig: Rig) -> None:
    await rig.send(run_of(durability=pb.DISK))
    assert rig.replies == []
    assert rig.sends.waiting == 1

    rig.report()

    assert [reply.durability for reply in rig.replies] == [pb.DISK]
    assert rig.store.flushed_offset == rig.store.max_log_offset
    assert rig.sends.waiting == 0


async def test_sends_of_one_turn_share_a_sync(rig: Rig) -> None:
    await rig.send(*(run_of(run_id=run_id, durability=pb.DISK) for run_id in range(50)))

    rig.report()

    assert [reply.run_id for reply in rig.replies] == list(range(50))
    assert rig.reports.empty()


async def test_runs_of_one_turn_keep_their_order_whatever_their_size(rig: Rig) -> None:
    small, large = [b"s" * 50], [b"l" * 900] * 80
    await rig.send(*(run_of(bodies, run_id=n) for n, bodies in enumerate((small, large, small))))

    assert [reply.run_id for reply in rig.replies] == [0, 1, 2]
    assert [reply.first_queue_offset for reply in rig.replies] == [0, 1, 81]
    assert bodies_of(rig.store, TOPIC, 0) == [*small, *large, *small]
    assert rig.notified == [(TOPIC, 0)], "once a turn"


async def test_a_bad_run_among_good_ones_costs_only_itself(rig: Rig) -> None:
    await rig.send(
        run_of([b"a"], run_id=1), run_of([b"b"], run_id=2, queue=3), run_of([b"c"], run_id=3)
    )

    answers = {reply.run_id: reply.HasField("error") for reply in rig.replies}
    assert answers == {1: False, 2: True, 3: False}
    assert bodies_of(rig.store, TOPIC, 0) == [b"a", b"c"]


async def test_a_bug_in_the_store_is_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(runs: object) -> NoReturn:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.store, "append_many", broken)

    refused = await rig.refusal(run_of())

    assert refused.message == "internal error in the store"
    assert "a bug" in caplog.text


async def test_the_stores_own_durability_serves_who_asks_for_none(tmp_path: Path) -> None:
    rig = Rig(tmp_path, flush="sync", flush_waiting_max=1)
    await rig.send(run_of())
    assert rig.replies == []

    assert isinstance(await rig.refusal(run_of()), Overloaded), "its bound counts too"

    rig.report()
    assert [reply.durability for reply in rig.replies] == [pb.DISK]
    rig.close()


async def test_a_device_that_takes_too_long_is_told_and_its_late_answer_is_not(rig: Rig) -> None:
    rig.timers.start()
    await rig.send(run_of(durability=pb.DISK))
    await rig.clock.advance(4_999)
    assert rig.replies == []

    await rig.clock.advance(1)

    (reply,) = rig.replies
    assert isinstance(from_wire(reply.error), FlushTimeout)
    assert "flush_timeout_ms" in reply.error.message
    rig.report()
    assert len(rig.replies) == 1
    assert rig.sends.waiting == 0
    await rig.timers.stop()


async def test_a_failed_sync_fails_who_waits_and_every_later_send(rig: Rig) -> None:
    rig.disk.break_syncs("commitlog")
    await rig.send(*[run_of(durability=pb.DISK)] * 3)
    rig.report()
    rig.disk.heal()

    errors = [from_wire(reply.error) for reply in rig.replies]
    assert [type(error) for error in errors] == [DiskFailure] * 3
    later = await rig.refusal(run_of(durability=pb.MEMORY))

    assert isinstance(later, DiskFailure)
    assert "input/output error" in later.message, "the reason is told"


async def test_more_sends_than_may_wait_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, flush_waiting_max=2)
    for _ in range(2):
        await rig.send(run_of(durability=pb.DISK))

    refused = await rig.refusal(run_of(durability=pb.DISK))

    assert isinstance(refused, Overloaded)
    assert refused.details["limit"] == "2"
    assert len(bodies_of(rig.store, TOPIC, 0)) == 4, "nothing of it was stored"
    await rig.send(run_of(durability=pb.MEMORY))
    assert rig.replies.pop().durability == pb.MEMORY
    rig.report()
    rig.close()


@pytest.mark.parametrize(
    ("run", "error", "field"),
    [
        (run_of(durability=7), InvalidArgument, "durability"),
        (run_of(topic="a b"), InvalidArgument, "topic"),
        (run_of(topic="Other"), InvalidRecord, "topic"),
        (run_of(queue=1), InvalidRecord, "queueId"),
        (run_of(records=bytes(200), sizes=[200]), InvalidRecord, "magicCode"),
        (
            run_of_record(Record(topic=TOPIC, body=b"x", sys_flag=SYS_PREPARED)),
            NotServed,
            "sysFlag",
        ),
        (
            run_of_record(Record(topic=TOPIC, body=b"x", sys_flag=SYS_INNER_BATCH)),
            InvalidRecord,
            "sysFlag",
        ),
    ],
    ids=["durability", "name", "topic", "queue", "magic", "prepared", "inner batch"],
)
async def test_a_bad_run_is_refused_by_field(
    rig: Rig, run: pb.ProduceRun, error: type[PocketMQError], field: str
) -> None:
    refused = await rig.refusal(run)

    assert isinstance(refused, error), refused
    assert refused.details["field"] == field
    assert rig.store.max_log_offset == 0


async def test_a_bad_run_makes_no_topic(rig: Rig) -> None:
    assert isinstance(await rig.refusal(run_of(topic="New")), InvalidRecord)

    with pytest.raises(TopicNotFound):
        rig.topics.get("New")


async def test_a_queue_that_is_not_there_is_named(rig: Rig) -> None:
    refused = await rig.refusal(run_of_record(Record(topic=TOPIC, body=b"x", queue_id=4)))

    assert isinstance(refused, InvalidRecord), "the run says 0, its record 4"
    data = encode_record(Record(topic=TOPIC, body=b"x", queue_id=4))
    refused = await rig.refusal(
        pb.ProduceRun(topic=TOPIC, queue=4, records=data, sizes=[len(data)])
    )
    assert isinstance(refused, QueueNotFound)


async def test_a_run_that_is_too_large_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, run_bytes_max=1024)

    refused = await rig.refusal(run_of([b"x" * 500] * 2))

    assert isinstance(refused, MessageTooLarge)
    assert refused.details["limit"] == "1024"
    rig.close()


async def test_a_run_that_crosses_files_tells_where_each_record_is(rig: Rig) -> None:
    await rig.send(run_of([b"x" * 1000] * 8))

    (reply,) = rig.replies
    stored = records_of(rig.store, TOPIC, 0)
    assert list(reply.log_offsets) == [record.log_offset for record in stored]
    assert len(stored) == 8


async def test_a_long_topic_in_a_short_form_is_stored_in_the_long_one(rig: Rig) -> None:
    topic = "%RETRY%" + "g" * 190
    rig.topics.create(TopicConfig(name=topic, read_queues=1, write_queues=1), update=False)
    long = encode_record(Record(topic=topic, body=b"x", properties={"KEYS": "k"}))
    at = FIXED_SIZE_V4 - 3 + 1  # behind the body of one byte: the topic's length in two bytes
    short = bytearray(long[:at] + long[at + 1 :])
    short[0:4] = len(short).to_bytes(4, "big")
    short[4:8] = MAGIC_V1.to_bytes(4, "big", signed=True)

    await rig.send(pb.ProduceRun(topic=topic, records=bytes(short), sizes=[len(short)]))

    (stored,) = records_of(rig.store, topic, 0)
    assert (stored.magic, stored.topic, stored.properties) == (MAGIC_V2, topic, {"KEYS": "k"})
    (reply,) = rig.replies
    assert list(reply.log_offsets) == [stored.log_offset]


async def test_a_broker_that_stops_refuses(rig: Rig) -> None:
    rig.sends.refusal = ShuttingDown("soon")

    assert isinstance(await rig.refusal(run_of()), ShuttingDown)
