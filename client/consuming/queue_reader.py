"""Reads one queue into a sink: one long-polling fetch after the other, until it is stopped.

`pull_once` fetches once, at an offset that the caller chooses, independent of what else the consumer reads.

    error                                   reaction
    lease lost                              notify the source, and end
    offset out of range                     continue at the nearest existing offset, with a warning
    not the master, which is known          retry there at once
    any, from a follower                    retry at the master at once (follower_choice.py)
    retriable; topic or queue missing       pause (doubled each time), look up the route, retry
    consumption disabled for the group      pause, retry
    any other                               pause, retry, and raise the error to the application

The master counts the messages that a group's filter skips. After each reply of a follower, the reader reports to the
master what the follower has filtered out. If the master does not answer within _REPORT_MS, these messages are not
counted, and the filter statistics show them as unknown.

A message whose body does not match its CRC is never delivered (`fetch_run`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Protocol, TypeAlias

import numpy as np

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.time_text import check_unix_ms
from ...proto.topics import check_topic, retry_topic
from ..claims import check_fetched
from ..config import Start
from ..connections import Connection
from ..follower_choice import MASTER_MS
from ..message_batch import NO_MESSAGES, MessageBatch
from ..queue import Queue, find_queue
from ..received_message import Decode, FetchedRun, ReceivedMessage
from ..serialization import value_decoder
from .held_queue import HeldQueue
from .parts import ConsumerParts
from .queue_supply import QueueSupply

logger = logging.getLogger(__name__)

#: The reply to a fetch, and its messages if there are any.
Fetched: TypeAlias = tuple[pb.FetchReply, FetchedRun | None]
#: While a fetch waits for messages, the name servers are asked this often whether its broker is still the master.
_PATIENCE_MS: Final = 5_000
_REPORT_MS: Final = 1_000
_DIGITS_MAX: Final = 18
_GONE: Final = (errors.TopicNotFound, errors.QueueNotFound)
_MAY_COME_BACK: Final = (*_GONE, errors.NotReadable)


class Sink(Protocol):
    """Takes the messages that a reader fetches."""

    async def wait_for_space(self) -> None:
        """Return when there is space for another batch. Until then the reader fetches nothing."""
        ...

    def started(self, queue: Queue, offset: int) -> None:
        """Note the OFFSET at which reading starts, before any batch, or continues after a jump."""
        ...

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Add the messages of RUN from index BEGIN on. NEXT_OFFSET is the queue offset after them."""
        ...

    def skip(self, queue: Queue, next_offset: int) -> None:
        """Note that the messages that were not put in, before NEXT_OFFSET, are filtered out."""
        ...

    def fail(self, error: errors.PocketMQError) -> None:
        """Raise ERROR to the application."""
        ...


class QueueReader:
    """Reads the messages of HELD that match the filter WANTED into SINK. Not thread-safe: its event loop owns it."""

    def __init__(
        self,
        held: HeldQueue,
        wanted: pb.Filter | None,
        sink: Sink,
        supply: QueueSupply,
        parts: ConsumerParts,
    ) -> None:
        self.held = held
        self._queue = held.queue
        self._group = parts.group
        self._filter = None if wanted is None or wanted.kind == pb.Filter.ALL else wanted
        self._sink = sink
        self._supply = supply
        self._parts = parts
        self._config = parts.config
        self._session = parts.session
        self._counts = parts.counts
        self._decode = value_decoder(parts.config.value_deserializer)
        #: The address of the master that was asked last.
        self._address = ""
        #: Reports to the master what a follower has filtered out.
        self._reporting: asyncio.Task[None] | None = None
        #: After a report failed, there is none before this time.
        self._report_from_ms = 0
        #: Where to fetch next; None: where the settings say.
        self._offset: int | None = None
        self._failures = 0
        #: The end of the queue in the last reply of the broker.
        self.max_offset = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, offset: int | None = None) -> None:
        """Start to read, or continue at another offset: OFFSET, or where the settings say (None).

        A fetch that is in flight is dropped.
        """
        self.stop()
        self._offset = offset
        self._task = self._session.tasks.spawn(self._run())

    def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def reported(self) -> None:
        """Return when the last report about filtered messages has ended."""
        if self._reporting is not None:
            await asyncio.wait((self._reporting,))

    async def _run(self) -> None:
        while True:
            await self._sink.wait_for_space()
            try:
                if self._offset is None:
                    self._offset = await self.first_offset()
                    self._sink.started(self._queue, self._offset)
                self._offset = await self._read(self._offset)
                self._failures = 0
                self._parts.note_switch(off=False)
            except errors.LeaseLost:
                self._supply.source.lost(self.held)
                return
            except errors.PocketMQError as error:
                nearest = self._nearest(error)
                if nearest is None:
                    await self._pause(error)
                else:
                    self._offset = nearest
                    self._sink.started(self._queue, nearest)

    async def _read(self, offset: int) -> int:
        """Fetch once from OFFSET; return where to continue."""
        config, queue = self._config, self._queue
        request = pb.FetchRequest(
            topic=queue.topic,
            queue=queue.number,
            offset=offset,
            max_messages=config.fetch_messages_max,
            max_bytes=config.fetch_max_bytes,
            min_bytes=1,
            max_wait_ms=config.fetch_max_wait_ms,
            group=self._group,
            filter=self._filter,
            lease=self.held.token,
        )
        fetch = partial(
            fetch_run,
            request=request,
            timeout_ms=config.fetch_max_wait_ms + config.request_timeout_ms,
            broker=queue.broker,
            decode=self._decode,
            check_crcs=config.check_crcs,
            body_max_bytes=config.body_max_bytes,
        )
        found = await self._parts.from_follower(queue, request, fetch)
        await self._report_filtered(request, found)
        if found is None:
            self._address = self._session.routes.address(queue.broker)
            sent_ms = self._session.clock.now_ms()
            breaks = self._session.routes.breaks(queue.broker)
            asked = fetch(self._session.connections.to(self._address))
            found = await self._session.of_master(queue.broker, self._address, asked, _PATIENCE_MS)
            self._supply.fetched(self.held, sent_ms, breaks)
        reply, run = found
        self.max_offset = reply.max_offset
        self._counts.filtered += reply.filtered_count
        if reply.clock_waits:
            for on_clock_waits in self._parts.on_clock_waits:
                on_clock_waits()
        if reply.lost_count:
            self._note_lost(offset, reply)
        if run is not None:
            self._sink.put(queue, run, run.first_at_or_after(offset), reply.next_offset)
        elif reply.next_offset > offset:
            self._sink.skip(queue, reply.next_offset)
        elif config.fetch_max_wait_ms == 0:
            clock = self._session.clock
            await clock.sleep_until(clock.now_ms() + config.retry_backoff_ms)
        return max(offset, reply.next_offset)

    async def _report_filtered(self, request: pb.FetchRequest, found: Fetched | None) -> None:
        """Start to report to the master what a follower has FOUND for REQUEST, if any, after the report before."""
        if self._filter is None:
            return
        if self._reporting is not None:
            await asyncio.wait((self._reporting,))
            self._reporting = None
        if self._session.clock.now_ms() < self._report_from_ms:
            return
        if found is not None and found[0].next_offset > request.offset:
            self._reporting = self._session.tasks.spawn(self._report(request, found))

    async def _report(self, request: pb.FetchRequest, found: Fetched) -> None:
        """Report to the master what a follower has FOUND for REQUEST."""
        reply, run = found
        report = pb.FetchRequest()
        report.CopyFrom(request)
        report.max_wait_ms = report.min_bytes = 0
        looked = report.looked_at
        looked.next_offset, looked.filtered_count = reply.next_offset, reply.filtered_count
        if run is not None:
            delivered = run.columns.queue_offset[run.first_at_or_after(request.offset) :]
            looked.steps.extend(np.diff(delivered, prepend=request.offset - 1).tolist())
        session = self._session
        try:
            address = session.routes.address(self._queue.broker)
            await session.connections.to(address).fetch(report, _REPORT_MS)
        except errors.PocketMQError as error:
            self._report_from_ms = session.clock.now_ms() + MASTER_MS
            facts = Facts(group=self._group, queue=self._queue, reason=error.message)
            logger.debug("filtered messages not reported to master %s", facts)

    def _note_lost(self, offset: int, reply: pb.FetchReply) -> None:
        self._counts.lost += reply.lost_count
        logger.warning(
            "messages lost, damaged or deleted on the broker %s",
            Facts(
                group=self._group,
                queue=self._queue,
                count=reply.lost_count,
                offset=offset,
                next_offset=reply.next_offset,
            ),
        )

    def _nearest(self, error: errors.PocketMQError) -> int | None:
        """Return where to continue after ERROR, if the offset was out of range. None: another error, or unknown."""
        limits = error.details.get("min_offset", ""), error.details.get("max_offset", "")
        is_range = isinstance(error, errors.OffsetOutOfRange) and all(map(_is_offset, limits))
        if self._offset is None or not is_range:
            return None
        least, end = map(int, limits)
        nearest = least if self._offset < least else end
        if nearest == self._offset:
            return None  # The error contradicts itself: this offset is in the range.
        logger.warning(
            "offset no longer exists, continuing at the nearest %s",
            Facts(
                group=self._group,
                queue=self._queue,
                offset=self._offset,
                nearest=nearest,
                min_offset=least,
                max_offset=end,
            ),
        )
        return nearest

    async def _pause(self, error: errors.PocketMQError) -> None:
        if isinstance(error, errors.NotReadable) and error.details.get("group") == self._group:
            self._parts.note_switch(off=True)
            clock = self._session.clock
            await clock.sleep_until(clock.now_ms() + self._config.retry_backoff_max_ms)
            return
        moved = self._session.routes.note_error(self._queue.broker, self._address, error)
        if isinstance(error, errors.ConnectionLost | errors.MasterFenced):
            self._supply.doubt(self.held)
        elif isinstance(error, _GONE):
            # Renew the lease at once: if the queue was removed, the broker refuses, and the lease is lost.
            self._supply.source.doubt(self.held)
        if moved:
            return
        self._failures += 1
        self._session.routes.refresh(self._queue.topic)
        self._supply.source.look_again()
        passing = error.retriable or isinstance(error, _MAY_COME_BACK)
        if not passing:
            self._sink.fail(error)
        if self._failures == 1:
            logger.warning(
                "queue not readable, retrying %s",
                Facts(
                    group=self._group, queue=self._queue, offset=self._offset, reason=error.message
                ),
            )
        longest = self._config.retry_backoff_max_ms
        pause_ms = min(longest, self._config.retry_backoff_ms << min(self._failures - 1, 20))
        clock = self._session.clock
        await clock.sleep_until(clock.now_ms() + pause_ms)

    async def first_offset(self) -> int:
        """Return where reading starts: the committed offset, or where the setting `start` says."""
        held, start = self.held, self._config.start
        if self._queue.topic == retry_topic(self._group):
            # Messages in the retry topic have to be redelivered exactly once, whatever `start` says.
            start = "committed"
        ignores_committed = held.from_start and start in ("earliest", "latest")
        if held.committed >= 0 and not ignores_committed:
            return held.committed
        bounds = await self._parts.bounds.of(self._queue, start_ms(start))
        if not isinstance(start, str):
            return bounds.offset_at_time
        return bounds.max_offset if "latest" in start else bounds.min_offset


def _is_offset(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS_MAX


def start_ms(start: Start) -> int | None:
    """Return START in Unix milliseconds if it is a time, else None. A datetime without a time zone is local time."""
    if isinstance(start, str):
        return None
    if isinstance(start, datetime):
        return round(start.timestamp() * 1000)
    return check_unix_ms(start, "the time to start at")


async def fetch_run(
    connection: Connection,
    request: pb.FetchRequest,
    timeout_ms: int,
    *,
    broker: str,
    decode: Decode,
    check_crcs: bool,
    body_max_bytes: int,
) -> Fetched:
    """Send REQUEST; return the reply, and its messages if there are any.

    Raises BadReply if the messages are not those that were requested. If a record does not parse, or a body does not
    match its CRC (CHECK_CRCS), the request is repeated once, with the instruction to check the store. The broker
    quarantines messages that are damaged in its store, and they are counted as lost. If a record is valid on the broker
    but arrives damaged again, the messages before it are returned. CorruptRecord is raised if there are none.
    """
    reply = await connection.fetch(request, timeout_ms)
    if not reply.records:
        check_fetched(request, reply, None, f"broker {broker}")
        return reply, None
    read = partial(
        FetchedRun, broker, decode=decode, check_crcs=check_crcs, body_max_bytes=body_max_bytes
    )
    try:
        run = read(reply.records)
        check_fetched(request, reply, run, f"broker {broker}")
        return reply, run
    except errors.CorruptRecord as error:
        logger.warning(
            "fetched messages are damaged, retrying %s",
            Facts(
                group=request.group,
                topic=request.topic,
                queue=request.queue,
                offset=request.offset,
                reason=error.message,
            ),
        )
    again = pb.FetchRequest()
    again.CopyFrom(request)
    again.check_crcs = True
    reply = await connection.fetch(again, timeout_ms)
    if not reply.records:
        check_fetched(request, reply, None, f"broker {broker}")
        return reply, None
    try:
        run = read(reply.records)
        check_fetched(request, reply, run, f"broker {broker}")
        return reply, run
    except errors.CorruptRecord as error:
        sound_bytes = int(error.details["sound_bytes"])
        if not sound_bytes:
            raise
        run = read(reply.records[:sound_bytes])
        reply.next_offset = int(error.details.get("queue_offset", run.queue_offsets[-1] + 1))
        reply.filtered_count = reply.lost_count = 0  # The next fetch counts them.
        return reply, run


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of `pull`: messages, the offset to continue at, and the offset range of the queue."""

    messages: Sequence[ReceivedMessage]
    """The messages."""
    next_offset: int
    """Offset to continue at: after the last message examined, matching or not."""
    min_offset: int
    """Offset of the oldest message of the queue."""
    max_offset: int
    """Offset after the newest message of the queue."""


async def pull_once(
    parts: ConsumerParts,
    topic: str,
    queue: Queue | int,
    offset: int,
    *,
    max_messages: int,
    max_bytes: int,
    wait_ms: int,
) -> PullResult:
    """Fetch once from OFFSET of QUEUE. MAX_MESSAGES=0 and MAX_BYTES=0 mean the settings of the consumer.

    If a follower answers (`read_from`), min_offset and max_offset are those of the follower. Raises OffsetOutOfRange
    with both offsets.
    """
    session, config = parts.session, parts.config
    route = await session.routes.find(check_topic(topic))
    place = find_queue(queue, topic, route.readable)
    request = pb.FetchRequest(
        topic=topic,
        queue=place.number,
        offset=offset,
        max_messages=max_messages or config.fetch_messages_max,
        max_bytes=max_bytes or config.fetch_max_bytes,
        min_bytes=1 if wait_ms else 0,
        max_wait_ms=wait_ms,
        group=parts.group,
    )
    fetch = partial(
        fetch_run,
        request=request,
        timeout_ms=wait_ms + config.request_timeout_ms,
        broker=place.broker,
        decode=value_decoder(config.value_deserializer),
        check_crcs=config.check_crcs,
        body_max_bytes=config.body_max_bytes,
    )
    found = await parts.from_follower(place, request, fetch)
    if found is None:
        found = await fetch(session.connections.to(session.routes.address(place.broker)))
    reply, run = found
    parts.counts.lost += reply.lost_count
    messages: MessageBatch = NO_MESSAGES
    if run is not None:
        messages = MessageBatch(run, run.first_at_or_after(offset))
    return PullResult(messages, reply.next_offset, reply.min_offset, reply.max_offset)
