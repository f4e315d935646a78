"""The client port of a follower: how it answers clients that should ask the master.

pocketmq.v1.Broker       answers MasterFenced, with the master's address and epoch once both are known: PocketMQ's
                         clients connect there then. OWN has the methods that a follower serves itself; READS serves
                         fetches, group offsets and lookups that any replica may answer (`from_any`), of confirmed
                         messages
apache.rocketmq.v2       relayed to the master (relays.py), because official clients do not know such an answer; also
                         their metrics. Streams for traces are held open without an answer, as in the broker

A follower decides and stores nothing here. The number of batches and fetches that wait for an election is limited by
the limit of unanswered requests per stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ...proto.clock import Clock
from ...proto.errors import PocketMQError
from ...proto.errors_wire import to_wire
from ...proto.gen import (
    opencensus_pb2 as census,
    otlp_metrics_pb2 as otlp,
    pocketmq_v1_pb2 as pb,
    rocketmq_v2_pb2 as v2,
)
from ...proto.rpc import Call, Method, MethodKind, MethodTable, Stream
from ...proto.topics import DEAD_LETTERS_GROUP, dead_letter_topic
from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..groups.lag import IN_A_TURN, QUEUES_MAX, add_unread
from ..messages.fetch_reply import limits_of, read_once
from ..messages.filtered_fetch import FilteredFetch
from ..messages.filters import Filters, choice_of
from ..messages.lookup import Lookups, at_once
from ..metrics.opencensus import trace_methods
from ..replication.follower_view import FollowerView
from ..timing.timers import Timers
from .relays import Relays

_RELAYED: Final = (
    v2.DESCRIPTOR.services_by_name["MessagingService"],
    otlp.DESCRIPTOR.services_by_name["MetricsService"],
    census.DESCRIPTOR.services_by_name["MetricsService"],
)
#: Streams in which each request has an answer: the field that pairs them.
_NUMBERED: Final = {"Produce": "run_id", "Fetch": "fetch_id"}
#: Requests of one stream that may wait, for an election or for messages; further ones are not read.
_WAITING_MAX: Final = 1_000
#: Fetches that may wait for messages at a follower.
WAITS_MAX: Final = 1_000
_LOOK_S: Final = 0.05


class FollowerReads:
    """Answers requests with `from_any` at a follower with CONFIG, from its own data, which VIEW returns.

    It answers what the master would have answered a moment ago. It refuses everything else: data that it does not have
    or does not know to exist at the master, damaged messages, and queues whose read permission is unknown.

    A fetch waits, with a check every _LOOK_S, until any message arrives after its offset, matching or not. Limit:
    WAITS_MAX waiting fetches; further ones are answered at once, without messages.
    """

    def __init__(
        self, config: BrokerConfig, view: Callable[[], FollowerView | None], clock: Clock
    ) -> None:
        self._config = config
        self._view = view
        self._filters = Filters(Timers(clock), clock)
        self._waiting = 0
        #: The present store, and lookups in it.
        self._lookups: tuple[MessageStore, Lookups] | None = None

    def serves(self, request: Any) -> bool:
        """Return whether REQUEST may be answered here."""
        if self._view() is None:
            return False
        if isinstance(request, pb.GroupOffsetsRequest):
            # Only the master knows all offsets of a group, and which messages are in flight.
            return request.from_any and len(request.queues) > 0 and not request.with_lent
        return isinstance(request, pb.FetchRequest | pb.LookupRequest) and request.from_any

    async def fetch(self, request: pb.FetchRequest) -> pb.FetchReply | None:
        """Return the answer once there are messages, or when the wait of REQUEST ends; None: the request is refused."""
        loop = asyncio.get_running_loop()
        wait_ms = (
            min(request.max_wait_ms, self._config.fetch_wait_max_ms) if request.min_bytes else 0
        )
        until = loop.time() + (wait_ms / 1000 if self._waiting < WAITS_MAX else 0)
        self._waiting += 1
        try:
            while (view := self._view()) is not None:
                low, high = view.store.queue_bounds(request.topic, request.queue)
                has_queue = view.tables.has_queue(request.topic, request.queue)
                may_consume = view.tables.may_consume(request.group)
                if not has_queue or not may_consume or request.offset < low:
                    return None
                if request.offset >= high and not view.is_current:
                    return None
                if request.offset < high or loop.time() >= until:
                    return await self._read(request, view.store)
                await asyncio.sleep(min(_LOOK_S, max(0.0, until - loop.time())))
        finally:
            self._waiting -= 1
        return None

    async def _read(self, request: pb.FetchRequest, store: MessageStore) -> pb.FetchReply | None:
        """Return the answer of STORE; None for an error, or if records are missing or damaged here."""
        limits = limits_of(request, self._config)
        try:
            choice = choice_of(request.filter) if request.HasField("filter") else None
            if choice is None:
                reply, _ = read_once(store, request, limits)
            else:
                ungrouped = pb.FetchRequest()
                ungrouped.CopyFrom(request)
                # The master has the filter statistics; the client reports to it.
                ungrouped.group = ""
                answer: asyncio.Future[pb.FetchReply] = asyncio.get_running_loop().create_future()
                done = answer.set_result
                FilteredFetch(ungrouped, limits, choice, store, self._filters, done).scan_once()
                reply = await answer
        except PocketMQError:
            return None
        return None if reply.error.name or reply.lost_count else reply

    async def lookup(self, request: pb.LookupRequest) -> pb.LookupReply | None:
        """Return the records; None: refused, also if nothing was found or a record is damaged here."""
        view = self._view()
        if view is None or not view.is_current:
            return None
        store = view.store
        if request.topic and request.topic not in view.tables.topics:
            return None
        if self._lookups is None or self._lookups[0] is not store:
            self._lookups = store, Lookups(lambda topic: None, store)
        try:
            reply = await self._lookups[1].lookup(request)
        except PocketMQError:
            return None
        known = store.damages.known
        damaged = store.damages.count if known is None else len(known)
        return reply if reply.records and not damaged else None

    def group_offsets(self, request: pb.GroupOffsetsRequest) -> pb.GroupOffsetsReply | None:
        """Return the committed offsets of a group, and its queues' offset ranges; None: the request is refused."""
        view = self._view()
        if view is None or not view.is_current:
            return None
        tables, store = view.tables, view.store
        known = all(tables.has_queue(one.topic, one.queue) for one in request.queues)
        most = IN_A_TURN if request.with_times else QUEUES_MAX  # Beyond, the master must answer.
        if tables.offsets_epoch != view.epoch or not known or len(request.queues) > most:
            return None
        offsets, bounds = [], []
        for queue in request.queues:
            low, high = store.queue_bounds(queue.topic, queue.queue)
            bounds.append(
                pb.QueueOffsets(
                    topic=queue.topic, queue=queue.queue, min_offset=low, max_offset=high
                )
            )
            offset, text = tables.committed(queue.topic, request.group, queue.queue)
            one = pb.GroupOffset(topic=queue.topic, queue=queue.queue, offset=offset)
            if queue.topic == dead_letter_topic(request.group):
                mark, _ = tables.committed(queue.topic, DEAD_LETTERS_GROUP, queue.queue)
                one.purged_below = max(0, mark)
            if text:
                one.metadata = text
            offsets.append(one)
        try:
            if request.with_times:
                at_once(add_unread(store, offsets))
        except PocketMQError:
            return None
        return pb.GroupOffsetsReply(offsets=offsets, bounds=bounds, follows=True)

    def stop(self) -> None:
        """Stop all filters."""
        self._filters.stop()


def follower_methods(
    relays: Relays, own: MethodTable | None = None, reads: FollowerReads | None = None
) -> MethodTable:
    """Return all methods of a follower: OWN methods are served here, RELAYS relays others, and the rest is refused."""
    served = own or MethodTable()
    paths = {method.path for method in served}
    refused = MethodTable(
        {
            method.path: method
            for described in pb.DESCRIPTOR.services_by_name["Broker"].methods
            if (method := _refused(described, relays, reads)).path not in paths
        }
    )
    return served | refused | relays.methods(*_RELAYED) | trace_methods()


def _refused(described: MethodDescriptor, relays: Relays, reads: FollowerReads | None) -> Method:
    path = f"/{described.containing_service.full_name}/{described.name}"
    types = GetMessageClass(described.input_type), GetMessageClass(described.output_type)
    if not described.client_streaming:

        async def refuse(request: Message, call: Call) -> Message:
            if reads is not None and reads.serves(request):
                found: Message | None = None
                if isinstance(request, pb.GroupOffsetsRequest):
                    found = reads.group_offsets(request)
                elif isinstance(request, pb.LookupRequest):
                    found = await reads.lookup(request)
                if found is not None:
                    return found
            raise await relays.not_master()

        return Method(path, MethodKind.UNARY, *types, refuse)
    field = _NUMBERED.get(described.name)
    refusing = partial(RefusedStream, relays=relays, field=field, reply_type=types[1], reads=reads)
    return Method(path, MethodKind.BIDI, *types, refusing)


class RefusedStream:
    """A stream at a follower: each request is refused by an answer if the stream has answers, else the stream ends."""

    def __init__(
        self,
        stream: Stream,
        relays: Relays,
        field: str | None,
        reply_type: type[Any],
        reads: FollowerReads | None = None,
    ) -> None:
        """FIELD pairs requests and answers of REPLY_TYPE; None: there are no answers. READS answers fetches that it
        may.
        """
        self._stream = stream
        self._relays = relays
        self._field = field
        self._reply_type = reply_type
        self._reads = reads
        self._reading: set[asyncio.Task[None]] = set()
        self._waiting: list[int] = []
        self._answering: asyncio.Task[None] | None = None
        self._has_ended = False

    def on_message(self, message: Message) -> Awaitable[None] | None:
        """Refuse MESSAGE once the master's address is known, unless it may be answered here."""
        if self._reads is not None and self._reads.serves(message):
            assert isinstance(message, pb.FetchRequest), "READS is for fetches only"
            return self._read(message, self._reads)
        return self._refuse(message)

    def _read(self, request: pb.FetchRequest, reads: FollowerReads) -> Awaitable[None] | None:
        async def read() -> None:
            reply = await reads.fetch(request)
            if reply is None:
                self._refuse(request)
            else:
                self._stream.send(reply)

        reading = self._relays.spawn(read())
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return reading if len(self._reading) >= _WAITING_MAX else None

    def _refuse(self, message: Message) -> Awaitable[None] | None:
        self._waiting.append(0 if self._field is None else getattr(message, self._field))
        if self._answering is None:
            self._answering = self._relays.spawn(self._answer())
        return self._answering if len(self._waiting) >= _WAITING_MAX else None

    async def _answer(self) -> None:
        error = await self._relays.not_master()
        self._answering = None
        if self._field is None:
            self._stream.fail(error)
            return
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            self._stream.send(self._reply_type(**{self._field: number}, error=to_wire(error)))
        if self._has_ended:
            self._stream.finish()

    def on_end(self) -> None:
        self._has_ended = True
        if self._answering is None:
            self._stream.finish()

    def on_close(self) -> None:
        for reading in self._reading:
            reading.cancel()
        if self._answering is not None:
            self._answering.cancel()
