"""The reading of one queue: ahead into a sink, one long-polling fetch after the other, until it is stopped; or once, at
an offset that the caller chooses (`pull_once`), independent of what else the consumer reads.

    error                                   what happens
    lease lost                              the source is notified, and reading ends
    offset out of range                     reading continues at the nearest offset that exists, with a warning
    not the master, which is known          retry there, at once
    any, from a follower                    retry at the master (follower_choice.py), at once
    retriable; topic or queue missing       a pause that doubles, a new lookup of the route, retry
    consumption off for the group           a pause, retry
    any other                               the same, and the application gets the error

The master counts what a group's filter skips. The reader reports to it what a follower has filtered, after each reply;
what the master does not receive within _TELL_MS is not counted, and reported as unknown.

A body that does not match its CRC is never delivered (`fetch_run`).
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
from .queue_supply import Supply

logger = logging.getLogger(__name__)

#: The answer to a fetch, and its messages if there are any.
Fetched: TypeAlias = tuple[pb.FetchReply, FetchedRun | None]
#: A fetch may wait long for messages; the name servers are asked that often whether it waits at the master.
_PATIENCE_MS: Final = 5_000
_TELL_MS: Final = 1_000
_DIGITS_MAX: Final = 18
_GONE: Final = (errors.TopicNotFound, errors.QueueNotFound)
_MAY_COME_BACK: Final = (*_GONE, errors.NotReadable)


class Sink(Protocol):
    """Takes what a reader brings."""

    async def room(self) -> None:
        """Return once there is space for another batch: until then nothing is fetched."""
        ...

    def started(self, queue: Queue, offset: int) -> None:
        """Take the offset at which reading begins, before any batch; called again when it continues elsewhere."""
        ...

    def put(self, queue: Queue, run: FetchedRun, begin: int, next_offset: int) -> None:
        """Take in the messages of RUN from index BEGIN; NEXT_OFFSET is after them."""
        ...

    def skip(self, queue: Queue, next_offset: int) -> None:
        """Hear that the filter wants nothing of what is before NEXT_OFFSET and was not put in."""
        ...

    def fail(self, error: errors.PocketMQError) -> None:
        """Have the application meet ERROR."""
        ...


class QueueReader:
    """Reads HELD into SINK, what the filter WANTED leaves of it. Not thread-safe: its event loop owns it."""

    def __init__(
        self,
        held: HeldQueue,
        wanted: pb.Filter | None,
        sink: Sink,
        supply: Supply,
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
        #: Which master was asked last.
        self._address = ""
        #: Has the master hear what was filtered elsewhere.
        self._telling: asyncio.Task[None] | None = None
        #: It did not hear it last, and is not kept waiting for before.
        self._tell_from_ms = 0
        #: Where to fetch next; None: where the settings say.
        self._offset: int | None = None
        self._failures = 0
        #: The end of the queue, as the broker said last.
        self.max_offset = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, offset: int | None = None) -> None:
        """Begin to read, from OFFSET, or where the settings say; or go there from where it reads.

        A fetch that is under way brings nothing any more.
        """
        self.stop()
        self._offset = offset
        self._task = self._session.tasks.spawn(self._run())

    def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def told(self) -> None:
        """Return once the master has heard, or does not hear in time, what was filtered elsewhere."""
        if self._telling is not None:
            await asyncio.wait((self._telling,))

    async def _run(self) -> None:
        while True:
            await self._sink.room()
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
        await self._account(request, found)
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
            for tell in self._parts.on_clock_waits:
                tell()
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

    async def _account(self, request: pb.FetchRequest, found: Fetched | None) -> None:
        """Have the master hear what a follower has FOUND for REQUEST, if one has: before anything later, in order."""
        if self._filter is None:
            return
        if self._telling is not None:
            await asyncio.wait((self._telling,))
            self._telling = None
        if self._session.clock.now_ms() < self._tell_from_ms:
            return
        if found is not None and found[0].next_offset > request.offset:
            self._telling = self._session.tasks.spawn(self._tell(request, found))

    async def _tell(self, request: pb.FetchRequest, found: Fetched) -> None:
        """Have the master note what a follower has FOUND for REQUEST."""
        reply, run = found
        told = pb.FetchRequest()
        told.CopyFrom(request)
        told.max_wait_ms = told.min_bytes = 0
        looked = told.looked_at
        looked.next_offset, looked.filtered_count = reply.next_offset, reply.filtered_count
        if run is not None:
            delivered = run.columns.queue_offset[run.first_at_or_after(request.offset) :]
            looked.steps.extend(np.diff(delivered, prepend=request.offset - 1).tolist())
        session = self._session
        try:
            address = session.routes.address(self._queue.broker)
            await session.connections.to(address).fetch(told, _TELL_MS)
        except errors.PocketMQError as error:
            self._tell_from_ms = session.clock.now_ms() + MASTER_MS
            facts = Facts(group=self._group, queue=self._queue, reason=error.message)
            logger.debug("filtered messages not reported to the master %s", facts)

    def _note_lost(self, offset: int, reply: pb.FetchReply) -> None:
        self._counts.lost += reply.lost_count
        logger.warning(
            "messages are lost: the broker has them damaged, or not any more %s",
            Facts(
                group=self._group,
                queue=self._queue,
                count=reply.lost_count,
                offset=offset,
                next_offset=reply.next_offset,
            ),
        )

    def _nearest(self, error: errors.PocketMQError) -> int | None:
        """Return where to continue after ERROR, if the fetch was out of range; None: another error, or not known."""
        limits = error.details.get("min_offset", ""), error.details.get("max_offset", "")
        is_range = isinstance(error, errors.OffsetOutOfRange) and all(map(_is_offset, limits))
        if self._offset is None or not is_range:
            return None
        least, end = map(int, limits)
        nearest = least if self._offset < least else end
        if nearest == self._offset:
            return None  # It says that this is not there, and there.
        logger.warning(
            "offset does not exist any more, continuing at the nearest %s",
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
        moved = self._session.routes.astray(self._queue.broker, self._address, error)
        if isinstance(error, errors.ConnectionLost | errors.MasterFenced):
            self._supply.doubt(self.held)
        elif isinstance(error, _GONE):
            # The broker, asked to renew its lease, says at once that the queue is nobody's.
            self._supply.source.doubt(self.held)
        if moved:
            return
        self._failures += 1
        self._session.routes.ask_anew(self._queue.topic)
        self._supply.source.look_again()
        passing = error.retriable or isinstance(error, _MAY_COME_BACK)
        if not passing:
            self._sink.fail(error)
        if self._failures == 1:
            logger.warning(
                "queue cannot be read, trying again %s",
                Facts(
                    group=self._group, queue=self._queue, offset=self._offset, reason=error.message
                ),
            )
        longest = self._config.retry_backoff_max_ms
        pause_ms = min(longest, self._config.retry_backoff_ms << min(self._failures - 1, 20))
        clock = self._session.clock
        await clock.sleep_until(clock.now_ms() + pause_ms)

    async def first_offset(self) -> int:
        """Return where reading begins, as the settings say."""
        held, start = self.held, self._config.start
        if self._queue.topic == retry_topic(self._group):
            # The consumer's filters do not apply to messages that it returned: they are redelivered, once.
            start = "committed"
        passes_over = held.from_start and start in ("earliest", "latest")
        if held.committed >= 0 and not passes_over:
            return held.committed
        bounds = await self._parts.bounds.of(self._queue, start_ms(start))
        if not isinstance(start, str):
            return bounds.offset_at_time
        return bounds.max_offset if "latest" in start else bounds.min_offset


def _is_offset(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS_MAX


def start_ms(start: Start) -> int | None:
    """Return START in Unix milliseconds if it is a time; a datetime without a zone is local."""
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
    """Fetch what REQUEST asks for; return the answer, and its messages if there are any.

    Raises BadReply if they are not what was asked for. If there is a wrong body (CHECK_CRCS), or what is no record, the
    broker is asked once more, to compare what it has. It quarantines what is damaged in its store; these messages are
    counted as lost. If the broker's bytes are valid and arrive wrong again, the messages in front of them are returned;
    CorruptRecord if there are none.
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
            "wrong bytes came, the broker is asked again %s",
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
        reply.filtered_count = reply.lost_count = 0  # The reader that continues there counts them.
        return reply, run


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of `pull`: messages, the offset to continue at, and the range of offsets that the queue has."""

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
    """Fetch once from OFFSET of QUEUE; MAX_MESSAGES and MAX_BYTES of 0 mean the consumer's settings.

    Of a follower (`read_from`) min_offset and max_offset are what that knows. Raises OffsetOutOfRange with both.
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
