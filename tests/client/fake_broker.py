"""A broker in memory, for the tests of the client: queues of records, with no more rules than the tests need."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pocketmq.proto.errors import (
    AlreadyDelivered,
    ConnectionLost,
    GroupExists,
    GroupNotFound,
    InvalidArgument,
    MessageNotFound,
    OffsetOutOfRange,
    PocketMQError,
    TopicExists,
    TopicNotFound,
)
from pocketmq.proto.errors_wire import to_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.recall_handle import decode_handle
from pocketmq.proto.record import LOG_OFFSET_AT, QUEUE_OFFSET_AT, decode_record
from pocketmq.proto.rpc import MethodTable, Stream, bidi, service, unary
from pocketmq.proto.run import check_run

from .fake_groups import FakeGroups
from .sequence_table import SequenceTable

#: Queue offset of the first message that is delayed.
WAITING_FROM = 5_000


@dataclass
class FakeBroker:
    """Queues of records as they came, with the broker's offsets filled in."""

    name: str
    address: str
    topics: dict[str, pb.TopicConfig] = field(default_factory=dict)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    #: Texts that go with them.
    metadata: dict[tuple[str, str, int], str] = field(default_factory=dict)
    groups: dict[str, pb.GroupConfig] = field(default_factory=dict)
    #: What the next produced runs meet: an error to answer with, or "lose" (store, then break off).
    faults: deque[PocketMQError | str] = field(default_factory=deque)
    #: Fetches without an answer yet; each is tried again when a run is stored.
    waiting: list[Callable[[], None]] = field(default_factory=list)
    #: Offsets that no filter wants, and what was told of replicas that have filtered.
    unwanted: set[int] = field(default_factory=set)
    told: list[pb.FetchRequest] = field(default_factory=list)
    #: Run sizes in the order of their arrival.
    runs: list[tuple[str, int, int]] = field(default_factory=list)
    #: Set: replies to runs wait for it.
    gate: asyncio.Event | None = None
    #: Over gRPC: runs are stored and not answered.
    holding: bool = False
    #: Set when a run is stored.
    stored: asyncio.Event = field(default_factory=asyncio.Event)
    log_size: int = 0
    min_offset: int = 0
    now_ms: int = 1_700_000_000_000
    #: Outcomes of transactions in the order in which they came.
    ends: list[pb.EndTransactionRequest] = field(default_factory=list)
    #: What the next outcomes meet: an error to answer with.
    end_faults: deque[PocketMQError] = field(default_factory=deque)
    #: Checks that the next listener is sent.
    checks: asyncio.Queue[pb.TransactionCheck] = field(default_factory=asyncio.Queue)
    #: Delayed messages by id: (when they are due, their record).
    pending: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    #: Members and leases.
    sharing: FakeGroups = field(default_factory=FakeGroups)
    #: What numbered runs have brought.
    sequences: SequenceTable = field(default_factory=SequenceTable)

    def produce(self, run: pb.ProduceRun) -> pb.ProduceReply:
        """Store RUN; raise what was planned."""
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, PocketMQError):
            raise fault
        if run.topic not in self.topics:
            raise TopicNotFound(f"topic {run.topic!r} is not here", topic=run.topic)
        sizes = list(run.sizes)
        check_run(run.records, sizes, run.topic, run.queue)
        queue = self.queues.setdefault((run.topic, run.queue), [])
        if part := self.sequences.first_part(run):
            return self._in_parts(run, part)
        repeated = self.sequences.repeated(run)
        if repeated is not None:
            if fault == "lose":
                raise ConnectionLost("the acknowledgement was lost")
            return repeated
        reply = pb.ProduceReply(
            run_id=run.run_id,
            first_queue_offset=len(queue),
            first_log_offset=self.log_size,
            durability=run.durability,
            store_timestamp_ms=self.now_ms,
            store_host="127.0.0.1:8081",
            replicas=2 if run.durability == pb.REPLICAS else 0,
        )
        records = cut(run.records, sizes)
        if any(self._due_ms(record) for record in records):
            self._take_delayed(records, queue, reply)
        else:
            queue += [
                self._patched(record, number) for number, record in enumerate(records, len(queue))
            ]
        self.sequences.stored(run, reply)
        self.stored.set()
        waiting, self.waiting = self.waiting, []
        for try_again in waiting:
            try_again()
        self.runs.append((run.topic, run.queue, len(sizes)))
        if fault == "lose":
            raise ConnectionLost("the acknowledgement was lost")
        return reply

    def _in_parts(self, run: pb.ProduceRun, part: int) -> pb.ProduceReply:
        """Store RUN, of which the first PART records are stored."""
        size = sum(run.sizes[:part])
        replies = []
        for begin, end, rows in ((0, size, slice(0, part)), (size, None, slice(part, None))):
            half = pb.ProduceRun()
            half.CopyFrom(run)
            half.records = run.records[begin:end]
            half.sizes[:] = run.sizes[rows]
            half.first_sequence += rows.start
            replies.append(self.produce(half))
        first, second = replies
        count = len(run.sizes) - part
        reply = pb.ProduceReply()
        reply.CopyFrom(first)
        begin = second.first_queue_offset
        reply.queue_offsets.extend(second.queue_offsets or range(begin, begin + count))
        reply.log_offsets.extend(second.log_offsets or [second.first_log_offset] * count)
        del reply.due_ms[:]
        return reply

    def _take_delayed(
        self, records: list[bytes], queue: list[bytes], reply: pb.ProduceReply
    ) -> None:
        """Store RECORDS, of which some are delayed, and say in REPLY where each lies."""
        for record in records:
            due_ms = self._due_ms(record)
            offset = WAITING_FROM + len(self.pending) if due_ms else len(queue)
            reply.due_ms.append(due_ms)
            reply.queue_offsets.append(offset)
            reply.log_offsets.append(self.log_size)
            stored = self._patched(record, offset)
            if due_ms:
                self.pending[decode_record(record).properties["UNIQ_KEY"]] = due_ms, stored
                self.log_size += 40  # The broker's own properties.
            else:
                queue.append(stored)

    def _due_ms(self, record: bytes) -> int:
        properties = decode_record(record).properties
        if "TIMER_DELAY_MS" in properties:
            return self.now_ms + int(properties["TIMER_DELAY_MS"])
        if "DELAY" in properties:
            return self.now_ms + 1_000 * int(properties["DELAY"])
        return int(properties.get("TIMER_DELIVER_MS", 0))

    def recall(self, request: pb.RecallRequest, _: Any) -> pb.RecallReply:
        message_id = decode_handle(request.handle).message_id
        due_ms, _record = self.pending.get(message_id, (0, b""))
        if not due_ms:
            raise MessageNotFound(f"message {message_id} does not wait here")
        if due_ms <= self.now_ms:
            raise AlreadyDelivered(f"message {message_id} was due at {due_ms}")
        del self.pending[message_id]
        return pb.RecallReply(message_id=message_id)

    def end(self, request: pb.EndTransactionRequest, _: Any) -> pb.EndTransactionReply:
        self.ends.append(request)
        if self.end_faults:
            raise self.end_faults.popleft()
        commit = request.resolution == pb.COMMIT
        return pb.EndTransactionReply(
            topic=request.topic,
            queue=3,
            queue_offset=70 if commit else -1,
            log_offset=7_000 if commit else -1,
            store_timestamp_ms=self.now_ms,
        )

    async def lease(self, request: pb.LeaseRequest, _: Any) -> pb.LeaseReply:
        reply: pb.LeaseReply = await self.sharing.lease(
            request, lambda key: self.committed.get(key, -1)
        )
        return reply

    def _patched(self, record: bytes, queue_offset: int) -> bytes:
        data = bytearray(record)
        data[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = queue_offset.to_bytes(8, "big")
        data[LOG_OFFSET_AT : LOG_OFFSET_AT + 8] = self.log_size.to_bytes(8, "big")
        self.log_size += len(data)
        return bytes(data)

    def fetch(self, request: pb.FetchRequest) -> pb.FetchReply:
        if request.lease:
            self.sharing.renew((request.group, request.topic, request.queue), request.lease)
        queue = self.queues.get((request.topic, request.queue), [])
        reply = pb.FetchReply(
            fetch_id=request.fetch_id,
            min_offset=self.min_offset,
            max_offset=len(queue),
            next_offset=request.offset,
        )
        if not self.min_offset <= request.offset <= len(queue):
            reply.error.CopyFrom(to_wire(OffsetOutOfRange(f"offset {request.offset}")))
            return reply
        if request.HasField("looked_at"):
            self.told.append(request)
            return reply
        taken: list[bytes] = []
        reply.next_offset = min(len(queue), request.offset + request.max_messages)
        for offset, record in enumerate(queue[request.offset : reply.next_offset], request.offset):
            if request.HasField("filter") and offset in self.unwanted:
                reply.filtered_count += 1
                continue
            if taken and sum(map(len, taken)) + len(record) > request.max_bytes:
                reply.next_offset = offset
                break
            taken.append(record)
        reply.records = b"".join(taken)
        return reply

    # ------------------------------------------------------------ unary

    def commit(self, request: pb.CommitOffsetsRequest, _: Any) -> pb.CommitOffsetsReply:
        for item in request.offsets:
            end = len(self.queues.get((item.topic, item.queue), ()))
            if item.offset > end:
                raise InvalidArgument(f"offset {item.offset}: the queue ends at {end}")
            self.sharing.check((request.group, item.topic, item.queue), item.lease)
        for item in request.offsets:
            key = (request.group, item.topic, item.queue)
            if item.HasField("metadata") or self.committed.get(key) != item.offset:
                self.metadata.pop(key, None)
            if item.metadata:
                self.metadata[key] = item.metadata
            self.committed[key] = item.offset
        return pb.CommitOffsetsReply()

    def group_offsets(self, request: pb.GroupOffsetsRequest, _: Any) -> pb.GroupOffsetsReply:
        reply = pb.GroupOffsetsReply()
        wanted = [(item.topic, item.queue) for item in request.queues] or [
            (topic, queue) for group, topic, queue in self.committed if group == request.group
        ]
        for topic, queue in wanted:
            offset = self.committed.get((request.group, topic, queue), -1)
            text = self.metadata.get((request.group, topic, queue))
            reply.offsets.add(topic=topic, queue=queue, offset=offset, metadata=text)
        return reply

    def queue_offsets(self, request: pb.QueueOffsetsRequest, _: Any) -> pb.QueueOffsetsReply:
        reply = pb.QueueOffsetsReply()
        for item in request.queues:
            reply.offsets.append(self._bounds(item.topic, item.queue))
        return reply

    def _bounds(self, topic: str, queue: int) -> pb.QueueOffsets:
        count = len(self.queues.get((topic, queue), []))
        return pb.QueueOffsets(
            topic=topic, queue=queue, min_offset=self.min_offset, max_offset=count
        )

    def create_topic(self, request: pb.CreateTopicRequest, _: Any) -> pb.TopicReply:
        if request.topic.name in self.topics and not request.update:
            raise TopicExists(f"topic {request.topic.name!r} exists", topic=request.topic.name)
        known = self.topics.setdefault(request.topic.name, request.topic)
        _change(known, request.topic, request.fields)
        return pb.TopicReply(topic=known)

    def delete_topic(self, request: pb.DeleteTopicRequest, _: Any) -> pb.DeleteTopicReply:
        if self.topics.pop(request.topic, None) is None:
            raise TopicNotFound(f"topic {request.topic!r} is not here")
        return pb.DeleteTopicReply()

    def describe_topic(self, request: pb.DescribeTopicRequest, _: Any) -> pb.DescribeTopicReply:
        config = self.topics.get(request.topic)
        if config is None:
            raise TopicNotFound(f"topic {request.topic!r} is not here")
        queues = [self._bounds(request.topic, number) for number in range(config.read_queues)]
        return pb.DescribeTopicReply(topic=config, queues=queues)

    def list_topics(self, _: pb.BrokerTopicsRequest, __: Any) -> pb.BrokerTopicsReply:
        return pb.BrokerTopicsReply(topics=self.topics.values())

    def create_group(self, request: pb.CreateGroupRequest, _: Any) -> pb.GroupReply:
        if request.group.name in self.groups and not request.update:
            raise GroupExists(f"group {request.group.name!r} exists", group=request.group.name)
        known = self.groups.setdefault(request.group.name, request.group)
        _change(known, request.group, request.fields)
        return pb.GroupReply(group=known)

    def delete_group(self, request: pb.DeleteGroupRequest, _: Any) -> pb.DeleteGroupReply:
        if self.groups.pop(request.group, None) is None:
            raise GroupNotFound(f"group {request.group!r} is not here")
        return pb.DeleteGroupReply()

    def list_groups(self, _: pb.GroupListRequest, __: Any) -> pb.GroupListReply:
        return pb.GroupListReply(groups=self.groups.values())

    def lookup(self, request: pb.LookupRequest, _: Any) -> pb.LookupReply:
        found = [
            record for rows in self.queues.values() for record in rows if _hit(record, request)
        ]
        return pb.LookupReply(records=b"".join(found[: request.max_messages or 64]))

    def status(self, _: pb.BrokerStatusRequest, __: Any) -> pb.BrokerStatusReply:
        return pb.BrokerStatusReply(broker_name=self.name, address=self.address, writable=True)

    # ------------------------------------------------------------ on the carrier

    def methods(self) -> MethodTable:
        return service(
            "pocketmq.v1.Broker",
            {
                "Produce": bidi(pb.ProduceRun, pb.ProduceReply, lambda s: _Produce(self, s)),
                "Fetch": bidi(pb.FetchRequest, pb.FetchReply, lambda s: _Fetch(self, s)),
                "CommitOffsets": unary(pb.CommitOffsetsRequest, pb.CommitOffsetsReply, self.commit),
                "GroupOffsets": unary(
                    pb.GroupOffsetsRequest, pb.GroupOffsetsReply, self.group_offsets
                ),
                "QueueOffsets": unary(
                    pb.QueueOffsetsRequest, pb.QueueOffsetsReply, self.queue_offsets
                ),
                "CreateTopic": unary(pb.CreateTopicRequest, pb.TopicReply, self.create_topic),
                "DeleteTopic": unary(pb.DeleteTopicRequest, pb.DeleteTopicReply, self.delete_topic),
                "DescribeTopic": unary(
                    pb.DescribeTopicRequest, pb.DescribeTopicReply, self.describe_topic
                ),
                "ListTopics": unary(pb.BrokerTopicsRequest, pb.BrokerTopicsReply, self.list_topics),
                "CreateGroup": unary(pb.CreateGroupRequest, pb.GroupReply, self.create_group),
                "DeleteGroup": unary(pb.DeleteGroupRequest, pb.DeleteGroupReply, self.delete_group),
                "ListGroups": unary(pb.GroupListRequest, pb.GroupListReply, self.list_groups),
                "Lookup": unary(pb.LookupRequest, pb.LookupReply, self.lookup),
                "JoinGroup": bidi(pb.MemberRequest, pb.MemberEvent, self.sharing.stream),
                "LeaseQueues": unary(pb.LeaseRequest, pb.LeaseReply, self.lease),
                "ReleaseQueues": unary(pb.ReleaseRequest, pb.ReleaseReply, self.sharing.release),
                "Recall": unary(pb.RecallRequest, pb.RecallReply, self.recall),
                "EndTransaction": unary(pb.EndTransactionRequest, pb.EndTransactionReply, self.end),
                "Status": unary(pb.BrokerStatusRequest, pb.BrokerStatusReply, self.status),
            },
        )


def _change(known: Any, asked: Any, fields: Iterable[str]) -> None:
    """Take FIELDS of KNOWN from ASKED; none: all."""
    names = list(fields)
    if not names:
        known.CopyFrom(asked)
    for name in names:
        known.ClearField(name)
        known.MergeFrom(type(known)(**{name: getattr(asked, name)}))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return the pieces of DATA, of SIZES each."""
    ends = list(accumulate(sizes))
    return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _hit(record: bytes, request: pb.LookupRequest) -> bool:
    decoded = decode_record(record)
    if request.message_id and not request.topic:
        return decoded.message_id == request.message_id
    words = [*decoded.properties.get("KEYS", "").split(), decoded.properties.get("UNIQ_KEY", "")]
    ids = (decoded.message_id, *words)
    wanted = request.message_id in ids if request.message_id else request.key in words
    return decoded.topic == request.topic and wanted


class _Produce:
    """The receiving half of a produce stream."""

    def __init__(self, broker: FakeBroker, stream: Stream) -> None:
        self._broker = broker
        self._stream = stream

    def on_message(self, message: pb.ProduceRun) -> None:
        try:
            reply = self._broker.produce(message)
            if not self._broker.holding and not message.no_reply:
                self._stream.send(reply)
        except ConnectionLost as error:
            self._stream.fail(error)
        except PocketMQError as error:
            self._stream.send(pb.ProduceReply(run_id=message.run_id, error=to_wire(error)))

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        pass


class _Fetch:
    """The receiving half of a fetch stream. A question without an answer waits for a run, however long."""

    def __init__(self, broker: FakeBroker, stream: Stream) -> None:
        self._broker = broker
        self._stream = stream

    def on_message(self, message: pb.FetchRequest) -> None:
        try:
            reply = self._broker.fetch(message)
        except PocketMQError as error:
            reply = pb.FetchReply(fetch_id=message.fetch_id, error=to_wire(error))
        if reply.records or reply.error.name or not message.max_wait_ms:
            self._stream.send(reply)
        else:
            self._broker.waiting.append(lambda: self.on_message(message))

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        pass


def add_topic(broker: FakeBroker, topic: str, queues: int = 4) -> None:
    """Make TOPIC on BROKER."""
    broker.topics[topic] = pb.TopicConfig(
        name=topic, read_queues=queues, write_queues=queues, permission=6
    )


def bodies(broker: FakeBroker, topic: str) -> list[list[bytes]]:
    """Return the bodies in each queue of TOPIC, in order."""
    rows = sorted(
        (queue, records) for (name, queue), records in broker.queues.items() if name == topic
    )
    return [[decode_record(record).body for record in records] for _, records in rows]


def property_of(broker: FakeBroker, topic: str, name: str) -> list[str]:
    """Return property NAME of every record of TOPIC."""
    rows = [records for (other, _), records in broker.queues.items() if other == topic]
    return [decode_record(record).properties[name] for records in rows for record in records]
