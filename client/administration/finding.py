"""Lookup of single messages: by key, by id, by store time, by offset."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Final

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import decode_offset_message_id
from ...proto.time_text import check_unix_ms
from ...proto.topics import check_topic
from ..claims import check_bounds, check_fetched
from ..connections import Connection
from ..queue import Queue, find_queue, in_parts
from ..received_message import FetchedRun, ReceivedMessage
from ..session import Session
from .brokers import Brokers

if TYPE_CHECKING:
    from ..received_message import ReceivedMessage

#: Errors of a broker that does not have the message.
NOT_HERE = (errors.MessageNotFound, errors.TopicNotFound, errors.OffsetOutOfRange)
_FETCH_BYTES: Final = 1024 * 1024
_FETCH_MESSAGES: Final = 1024
#: Number of queues that are read, or topics that are searched, at the same time.
_READ_AT_ONCE: Final = 16


class Finder:
    """Finds messages on all brokers."""

    def __init__(self, session: Session, brokers: Brokers, timeout_ms: int) -> None:
        self._session = session
        self._brokers = brokers
        self._timeout_ms = timeout_ms

    async def lookup(self, request: pb.LookupRequest) -> list[ReceivedMessage]:
        """Send REQUEST to all brokers; return the newest messages that they find, oldest first. Empty: none."""
        try:
            replies = await self._brokers.ask_all(
                "Lookup", request, pb.LookupReply, passing=NOT_HERE
            )
        except NOT_HERE:
            return []
        found = [
            message
            for broker, reply in replies.items()
            if reply.records
            for message in FetchedRun(broker, reply.records).messages()
        ]
        found.sort(key=lambda message: message.store_timestamp_ms)
        return found[-request.max_messages :] if request.max_messages else found

    async def by_id(
        self, message_id: str, topics: list[str], from_any: bool, *, anywhere: bool
    ) -> ReceivedMessage:
        """Return the message of one of TOPICS with MESSAGE_ID: an offset message id, or the id that a producer set.

        ANYWHERE: an offset message id may also be that of a record outside TOPICS. If the user has no permission for
        this, only TOPICS are searched.
        """
        ids = (message_id, message_id.upper())
        if anywhere and _is_offset_id(message_id):
            with suppress(errors.NotAuthorized):
                request = pb.LookupRequest(message_id=message_id, from_any=from_any)
                if found := await self.lookup(request):
                    return found[0]

        async def find(topic: str) -> list[ReceivedMessage]:
            request = pb.LookupRequest(
                topic=topic, message_id=message_id, max_messages=64, from_any=from_any
            )
            return await self.lookup(request)

        for at in range(0, len(topics), _READ_AT_ONCE):
            for found in await asyncio.gather(*map(find, topics[at : at + _READ_AT_ONCE])):
                for message in found:
                    if message.message_id == message_id or message.offset_message_id in ids:
                        return message
        raise errors.MessageNotFound(
            f"no message has the id {message_id!r}: {len(topics)} topics were searched. Check the id.",
            message_id=message_id,
        )

    async def by_time(
        self, topic: str, begin_ms: int, end_ms: int, max_messages: int, from_any: bool
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of TOPIC stored from BEGIN_MS until before END_MS, oldest first."""
        check_unix_ms(begin_ms, "begin_ms")
        check_unix_ms(end_ms, "end_ms")
        if end_ms <= begin_ms:
            raise errors.InvalidArgument(
                f"end_ms is {end_ms}: it must be after begin_ms ({begin_ms})",
                field="end_ms",
                value=end_ms,
            )
        route = await self._session.routes.find(check_topic(topic))
        begins = await self._offsets_at(route.readable, begin_ms)
        at_once = max(1, min(max_messages, _FETCH_MESSAGES))

        async def read(queue: Queue) -> list[ReceivedMessage]:
            own: list[ReceivedMessage] = []
            async for message in self._from_offset(queue, begins[queue], from_any, at_once):
                if message.store_timestamp_ms >= end_ms:
                    break
                if message.store_timestamp_ms >= begin_ms:
                    own.append(message)
                if len(own) >= max_messages:
                    break
            return own

        found: list[ReceivedMessage] = []
        queues = list(begins)
        for at in range(0, len(queues), _READ_AT_ONCE):
            for own in await asyncio.gather(*map(read, queues[at : at + _READ_AT_ONCE])):
                found += own
            found.sort(key=lambda message: message.store_timestamp_ms)
            del found[max_messages:]
        return found

    async def by_offset(
        self,
        topic: str,
        number: Queue | int,
        offset: int,
        max_messages: int,
        from_any: bool,
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of queue NUMBER of TOPIC, from the message at OFFSET on. Raises MessageNotFound."""
        route = await self._session.routes.find(check_topic(topic))
        queue = find_queue(number, topic, route.readable)
        found: list[ReceivedMessage] = []
        try:
            async for message in self._from_offset(queue, offset, from_any):
                if len(found) == max_messages or (not found and message.queue_offset > offset):
                    break
                found.append(message)
        except errors.OffsetOutOfRange as error:
            raise _not_there(queue, offset, error.message) from error
        if not found:
            raise _not_there(queue, offset, "it was deleted, or it is not stored yet")
        return found

    async def _offsets_at(self, queues: Iterable[Queue], time_ms: int) -> dict[Queue, int]:
        """Return the offset of TIME_MS in those of QUEUES that have a message of this time or later."""
        by_broker = defaultdict[str, list[Queue]](list)
        for queue in queues:
            by_broker[queue.broker].append(queue)

        async def ask(broker: str, some: Sequence[Queue]) -> Iterable[pb.QueueOffsets]:
            ids = [pb.QueueId(topic=queue.topic, queue=queue.number) for queue in some]
            request = pb.QueueOffsetsRequest(queues=ids, time_ms=time_ms)
            reply = await self._brokers.ask(broker, "QueueOffsets", request, pb.QueueOffsetsReply)
            check_bounds(request.queues, reply.offsets, f"broker {broker}")
            return reply.offsets

        parts = [(broker, some) for broker, own in by_broker.items() for some in in_parts(own)]
        replies = await asyncio.gather(*starmap(ask, parts))
        return {
            queue: one.offset_at_time
            for (_, some), offsets in zip(parts, replies, strict=True)
            for queue, one in zip(some, offsets, strict=True)
            if one.offset_at_time < one.max_offset
        }

    async def _from_offset(
        self, queue: Queue, offset: int, from_any: bool, at_once: int = _FETCH_MESSAGES
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of QUEUE from OFFSET on, up to its end at the master. Raises OffsetOutOfRange."""
        master = self._session.connections.to(self._session.routes.address(queue.broker))
        while True:
            fetch = pb.FetchRequest(
                topic=queue.topic,
                queue=queue.number,
                offset=offset,
                max_messages=at_once,
                max_bytes=_FETCH_BYTES,
                check_crcs=True,
                from_any=from_any,
            )
            fetched: pb.FetchReply | None = None
            if from_any:
                ask = partial(self._fetch_more, fetch)
                fetched = await self._brokers.followers.of(queue.broker, queue).ask(ask)
            if fetched is None:
                fetched = await master.fetch(fetch, self._timeout_ms)
            if fetched.records:
                run = FetchedRun(queue.broker, fetched.records)
                check_fetched(fetch, fetched, run, f"broker {queue.broker}")
                for message in run.messages(run.first_at_or_after(offset)):
                    yield message
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset

    async def _fetch_more(
        self, request: pb.FetchRequest, connection: Connection
    ) -> pb.FetchReply | None:
        """Fetch REQUEST from a follower; None: it has nothing."""
        reply = await connection.fetch(request, self._timeout_ms)
        return reply if reply.next_offset > request.offset else None


def _not_there(queue: Queue, offset: int, why: str) -> errors.MessageNotFound:
    return errors.MessageNotFound(
        f"queue {queue} has no message at offset {offset:,}: {why}",
        topic=queue.topic,
        queue=queue.number,
        offset=offset,
    )


def _is_offset_id(text: str) -> bool:
    try:
        decode_offset_message_id(text)
    except errors.InvalidArgument:
        return False
    return True
