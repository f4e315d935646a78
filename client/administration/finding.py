"""Finding single messages: by key, by id, by the time when they were stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import decode_offset_message_id
from ...proto.time_text import check_unix_ms
from ...proto.topics import check_topic
from ..claims import check_bounds, check_fetched
from ..connections import Connection
from ..queue import Queue, find_queue
from ..received_message import FetchedRun, ReceivedMessage
from ..session import Session
from .brokers import Brokers

if TYPE_CHECKING:
    from ..received_message import ReceivedMessage

#: What a broker answers when the message is not on it.
NOT_HERE = (errors.MessageNotFound, errors.TopicNotFound, errors.OffsetOutOfRange)
_FETCH_BYTES = 1024 * 1024


class Finder:
    """Finds messages on all brokers."""

    def __init__(self, session: Session, brokers: Brokers, timeout_ms: int) -> None:
        self._session = session
        self._brokers = brokers
        self._timeout_ms = timeout_ms

    async def lookup(self, request: pb.LookupRequest) -> list[ReceivedMessage]:
        """Return what REQUEST finds, the newest of all brokers, oldest first; nowhere a hit is an empty list."""
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
        """Return the message with MESSAGE_ID, an offset message id or the producer's, in one of TOPICS.

        ANYWHERE: an offset message id may also be that of a record in no topic of these. Not every user may ask so;
        then TOPICS are asked.
        """
        ids = (message_id, message_id.upper())
        if anywhere and _is_offset_id(message_id):
            with suppress(errors.NotAuthorized):
                request = pb.LookupRequest(message_id=message_id, from_any=from_any)
                if found := await self.lookup(request):
                    return found[0]
        for topic in topics:
            request = pb.LookupRequest(
                topic=topic, message_id=message_id, max_messages=64, from_any=from_any
            )
            for message in await self.lookup(request):
                if message.message_id == message_id or message.offset_message_id in ids:
                    return message
        raise errors.MessageNotFound(
            f"no message has the id {message_id!r} (searched {len(topics)} topics)",
            message_id=message_id,
        )

    async def by_time(
        self, topic: str, begin_ms: int, end_ms: int, max_messages: int, from_any: bool
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of TOPIC stored from BEGIN_MS up to and without END_MS, oldest first."""
        check_unix_ms(begin_ms, "begin_ms")
        check_unix_ms(end_ms, "end_ms")
        if end_ms <= begin_ms:
            raise errors.InvalidArgument(
                f"end_ms {end_ms} is not behind begin_ms {begin_ms}", field="end_ms", value=end_ms
            )
        route = await self._session.routes.find(check_topic(topic))
        found: list[ReceivedMessage] = []
        for queue in route.readable:
            own = 0
            async for message in self._from_time(queue, begin_ms, from_any):
                if message.store_timestamp_ms >= end_ms or own == max_messages:
                    break
                if message.store_timestamp_ms >= begin_ms:
                    found.append(message)
                    own += 1
        found.sort(key=lambda message: message.store_timestamp_ms)
        return found[:max_messages]

    async def by_offset(
        self,
        topic: str,
        number: Queue | int,
        offset: int,
        max_messages: int,
        from_any: bool,
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of queue NUMBER of TOPIC from OFFSET on, which must be there."""
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
            raise _not_there(queue, offset, "it is gone, or yet to come")
        return found

    async def _from_time(
        self, queue: Queue, begin_ms: int, from_any: bool
    ) -> AsyncIterator[ReceivedMessage]:
        request = pb.QueueOffsetsRequest(
            queues=[pb.QueueId(topic=queue.topic, queue=queue.number)], time_ms=begin_ms
        )
        reply = await self._brokers.ask(queue.broker, "QueueOffsets", request, pb.QueueOffsetsReply)
        check_bounds(request.queues, reply.offsets, f"broker {queue.broker}")
        begin = reply.offsets[0].offset_at_time
        async for message in self._from_offset(queue, begin, from_any):
            yield message

    async def _from_offset(
        self, queue: Queue, offset: int, from_any: bool
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of QUEUE from OFFSET on, up to its end at the master. Raises OffsetOutOfRange."""
        master = self._session.connections.to(self._session.routes.address(queue.broker))
        while True:
            fetch = pb.FetchRequest(
                topic=queue.topic,
                queue=queue.number,
                offset=offset,
                max_messages=1024,
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
        """Return what a follower has of REQUEST; None: nothing."""
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
