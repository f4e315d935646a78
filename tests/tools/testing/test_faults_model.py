"""Under faults, whatever clients do: what was sent is handed out until it is acknowledged, nothing else is, and
ordered groups stay ordered.

The model knows what was sent and how each call was answered, and drives a whole broker through the handlers that a
carrier would be given, with all kinds of faults at once and single faults in between.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings, strategies as st

from pocketmq.broker.broker import Broker
from pocketmq.broker.config import BrokerConfig
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import LATER, Carrier, MethodTable
from pocketmq.store.config import StoreConfig
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools import faults as faults_module
from pocketmq.tools.faults import SINGLE, Faults, FaultyNetwork

from ...fake_calls import FakeCall, FakeStream

V2 = "/apache.rocketmq.v2.MessagingService/"
V1 = "/pocketmq.v1.Broker/"
CLIENT = {"x-mq-client-id": "c", "x-mq-client-version": "5.1.2"}
TOPIC, GROUP = "T", "G"
INVISIBLE_MS = 10_000
#: Receives after which all must be finished.
ROUNDS_MAX = 400
SMALL: dict[str, Any] = {"log_file_size_bytes": 1 << 20, "index_slots": 100, "index_entries": 400}

chances = st.fixed_dictionaries(
    {},
    optional={
        "redeliver": st.sampled_from([0.2, 1.0]),
        "duplicate": st.sampled_from([0.2, 1.0]),
        "reorder": st.just(1.0),
        "late-ack": st.sampled_from([0.3, 1.0]),
        "cut-streams": st.sampled_from([0.2, 1.0]),
    },
)
steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(["", "a", "b"])),
    st.tuples(st.just("send"), st.sampled_from(["", "a", "b"])),
    st.tuples(st.just("receive"), st.integers(1, 4)),
    st.tuples(st.just("acknowledge"), st.integers(0, 3)),
    st.tuples(st.just("acknowledge"), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.sampled_from([1_000, INVISIBLE_MS])),
    st.tuples(st.just("fault"), st.sampled_from(sorted(SINGLE))),
)


class Captured:
    """A carrier that carries nothing: TABLES are what calls would reach."""

    def __init__(self) -> None:
        self.table = MethodTable()

    def __call__(self, tables: Any, *, limits: Any) -> Carrier:
        (self.table,) = tables
        return self

    async def start(self, host: str, port: int) -> int:
        return 1

    async def stop(self, grace_s: float) -> None:
        pass


class Model:
    """Clients of one topic and group, and what they may see."""

    def __init__(self, table: MethodTable, clock: VirtualClock, *, ordered: bool) -> None:
        self.table = table
        self.clock = clock
        self.ordered = ordered
        #: Bodies whose send was answered OK; those that may be stored; and those that must not be.
        self.sent: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.refused: set[bytes] = set()
        #: The latest delivery of each message that was handed out and has no answer to it, by offset.
        self.in_hand: dict[int, v2.Message] = {}
        self.seen: dict[int, bytes] = {}
        self.acknowledged: set[int] = set()
        #: Offsets that each message group has had.
        self.lanes: defaultdict[str, set[int]] = defaultdict(set)

    def resource(self, name: str) -> v2.Resource:
        return v2.Resource(name=name)

    async def call(self, path: str, request: Any) -> Any:
        call = FakeCall(metadata=CLIENT)
        reply = self.table[path].handler(request, call)
        if asyncio.iscoroutine(reply):
            reply = await reply
        if reply is not LATER:
            return reply
        await until(lambda: bool(call.answers))
        return call.answer

    async def prepare(self, kind: str) -> None:
        topic = pb.TopicConfig(name=TOPIC, read_queues=1, write_queues=1, permission=6, type=kind)
        await self.call(f"{V1}CreateTopic", pb.CreateTopicRequest(topic=topic))
        group = pb.GroupConfig(
            name=GROUP, retry_max_times=100, order=self.ordered, consume_enable=True
        )
        await self.call(f"{V1}CreateGroup", pb.CreateGroupRequest(group=group))

    async def send(self, label: str) -> None:
        body = b"%d" % (len(self.sent) + len(self.perhaps) + len(self.refused))
        system = v2.SystemProperties(message_id=body.decode(), message_type=v2.NORMAL)
        if self.ordered:
            system.message_type, system.message_group = v2.FIFO, label or "c"
        message = v2.Message(topic=self.resource(TOPIC), body=body, system_properties=system)
        reply = await self.call(f"{V2}SendMessage", v2.SendMessageRequest(messages=[message]))
        if not isinstance(reply, v2.SendMessageResponse):
            self.perhaps.add(body)  # Its answer was lost.
        elif reply.status.code == v2.OK:
            self.sent.add(body)
        else:
            assert reply.status.code == v2.TOO_MANY_REQUESTS
            self.refused.add(body)

    async def receive(self, batch: int) -> int:
        stream = FakeStream(metadata=CLIENT)
        request = v2.ReceiveMessageRequest(
            group=self.resource(GROUP),
            message_queue=v2.MessageQueue(topic=self.resource(TOPIC), id=-1),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
            batch_size=batch,
        )
        request.invisible_duration.FromMilliseconds(INVISIBLE_MS)
        request.long_polling_timeout.FromMilliseconds(5_000)
        self.table[f"{V2}ReceiveMessage"].handler(request, stream)
        if not stream.is_over:
            stream.cancel()
            return 0
        messages = [one.message for one in stream.sent if one.HasField("message")]
        assert not messages or stream.error is None
        self.take(messages)
        return len(messages) or (stream.error is not None)

    def take(self, messages: list[v2.Message]) -> None:
        """Check a batch of MESSAGES, and have them in hand."""
        lanes: dict[str, list[int]] = defaultdict(list)
        for message in messages:
            system = message.system_properties
            assert message.body in self.sent | self.perhaps, "handed out, and never sent"
            assert self.seen.setdefault(system.queue_offset, message.body) == message.body
            lanes[system.message_group].append(system.queue_offset)
        if self.ordered:
            for label, offsets in lanes.items():
                self.check_lane(label, offsets)
        for message in messages:
            offset = message.system_properties.queue_offset
            self.acknowledged.discard(offset)
            self.in_hand[offset] = message
            self.lanes[label_of(message)].add(offset)

    def check_lane(self, label: str, offsets: list[int]) -> None:
        """Check that OFFSETS, of one batch, follow what their lane has had."""
        known = self.lanes[label]
        assert offsets == sorted(offsets), "a batch in order"
        assert all(one in self.acknowledged for one in known if one < offsets[0]), (
            "in front: all finished"
        )
        fresh = [one for one in offsets if one not in known]
        assert not fresh or fresh[0] > max(known, default=-1), "first deliveries in order"

    async def acknowledge(self, which: int) -> None:
        if not self.in_hand:
            return
        offset = sorted(self.in_hand)[which % len(self.in_hand)]
        system = self.in_hand.pop(offset).system_properties
        entry = v2.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        request = v2.AckMessageRequest(
            group=self.resource(GROUP), topic=self.resource(TOPIC), entries=[entry]
        )
        reply = await self.call(f"{V2}AckMessage", request)
        if reply.status.code == v2.OK:
            self.acknowledged.add(offset)
        else:
            assert reply.status.code == v2.INVALID_RECEIPT_HANDLE, reply  # Its time was over.

    async def advance(self, by_ms: int) -> None:
        await self.clock.advance(by_ms)
        if by_ms >= INVISIBLE_MS:
            self.in_hand.clear()

    async def drain(self) -> None:
        """Consume until nothing comes any more; check that all was handed out and is finished."""
        for _ in range(ROUNDS_MAX):
            while self.in_hand:
                await self.acknowledge(0)
            if not await self.receive(4):
                await self.advance(INVISIBLE_MS)
                if not await self.receive(4):
                    break
        else:
            raise AssertionError("it does not come to an end")
        assert self.sent <= set(self.seen.values()) <= self.sent | self.perhaps


def label_of(message: v2.Message) -> str:
    return str(message.system_properties.message_group)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  (of what answers a call when its time has come)
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def quick_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_module, "LATE_S", 0.004)


@pytest.mark.long
@given(
    plan=chances,
    seed=st.integers(0, 99),
    ordered=st.booleans(),
    script=st.lists(steps, min_size=5, max_size=30),
)
@settings(max_examples=30)
@pytest.mark.timeout(900)
def test_clients_see_nothing_that_at_least_once_forbids(
    plan: dict[str, float], seed: int, ordered: bool, script: list[tuple[str, Any]]
) -> None:
    asyncio.run(play(Faults(plan, seed), ordered, script))


async def play(faults: Faults, ordered: bool, script: list[tuple[str, Any]]) -> None:
    clock, captured = VirtualClock(), Captured()
    network = FaultyNetwork(faults=faults, make_carrier=captured)
    with tempfile.TemporaryDirectory() as folder:
        store = StoreConfig(path=str(Path(folder) / "store"), **SMALL)
        config = BrokerConfig(nameservers=())
        broker = Broker.build(config, store, disk=OsDisk(), clock=clock, network=network)
        await broker.start()
        try:
            model = Model(captured.table, clock, ordered=ordered)
            await model.prepare("FIFO" if ordered else "NORMAL")
            for name, value in script:
                if name == "fault":
                    faults.next(value)
                else:
                    await getattr(model, name)(value)
            faults.forget_next()
            await model.drain()
            copies = Counter(model.seen.values())
            assert sum(copies.values()) - len(copies) == faults.counts["duplicate"]
            for kind in faults.counts:
                event(kind)
            described = await model.call(
                f"{V1}GroupOffsets",
                pb.GroupOffsetsRequest(group=GROUP, queues=[pb.QueueId(topic=TOPIC, queue=0)]),
            )
            _, end = broker.store.queue_bounds(TOPIC, 0)
            assert described.offsets[0].offset == end or not end
            assert broker.store.queue_bounds(f"%DLQ%{GROUP}", 0) == (0, 0)
        finally:
            await broker.stop()
