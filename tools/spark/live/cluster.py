"""Blocking requests of the live source to a cluster: first and last offsets, offsets of a group, records.

Questions that fail for a reason that passes are asked again, as often as `Pulling` says. Thread contract: any thread
may call; the client's own event loop (client/loop_thread.py) does the work. The clock comes from the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from random import Random
from typing import Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from ....client.config import ClientConfig
from ....client.connections import Connection, Connections, GrpcConnections
from ....client.follower_choice import FollowerChoices
from ....client.loop_thread import LoopThread
from ....client.queue import Queue
from ....client.received_message import FetchedRun
from ....client.session import NOT_MASTER, Session
from ....proto import errors
from ....proto.clock import Clock, SystemClock
from ....proto.gen import pocketmq_v1_pb2 as pb
from .endpoints import EndpointConnections
from .offsets import Offsets, RecordMark, named
from .place import Place
from .read_options import Choice, Pulling

Value = TypeVar("Value")
Reply = TypeVar("Reply", bound=Message)

#: A broker answers about 1,024 queues at a time.
_QUEUES_AT_ONCE: Final = 1_000
#: So many messages are fetched at once for their marks.
_MARKS_AT_ONCE: Final = 16
#: How long a list of all topics is used, for a pattern.
_TOPICS_KEPT_MS: Final = 10_000
#: How long a follower is waited for that does not know yet that the master has confirmed what is read.
_BEHIND_MS: Final = 1_000
_AWAY: Final = (errors.ConnectionLost, errors.RequestTimeout)
_GONE: Final = (errors.TopicNotFound, errors.QueueNotFound, errors.NotReadable)


class Bounds(NamedTuple):
    """The first offset of a queue, and the one after its last."""

    least: int
    end: int


class Cluster(Protocol):
    """What positions are made from; tests bring their own."""

    def bounds(self, choice: Choice, *, strict: bool) -> dict[Queue, Bounds]:
        """Return first and last offsets of the queues of CHOICE.

        STRICT: raise where a topic, a queue or a broker is not there; else that is left out.
        """
        ...

    def denied(self, queues: Iterable[Queue]) -> set[Queue]:
        """Return those of QUEUES whose brokers say that they are not there; one that cannot be asked says nothing."""
        ...

    def at_times(self, times: Offsets) -> dict[Queue, int | None]:
        """Return the first offset stored at or after the instant of each queue; None: nothing is so young."""
        ...

    def marks(self, offsets: Offsets) -> dict[Queue, RecordMark]:
        """Return the mark of the message before each of OFFSETS, without those that are not there or cannot be had."""
        ...

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return what GROUP has committed in QUEUES, without those where it never has."""
        ...

    def commit(self, group: str, offsets: Offsets) -> None:
        """Set the offsets of GROUP to OFFSETS. Raises LeaseLost where a member of the group holds one of the queues."""
        ...


class LiveCluster:
    """The cluster at PLACE, asked as PULLING says."""

    def __init__(
        self,
        place: Place,
        pulling: Pulling,
        *,
        clock: Clock | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._place = place
        self._pulling = pulling
        self._portal = LoopThread.acquire()
        self._topics: tuple[int, tuple[str, ...]] | None = None
        self._core = self._portal.run(self._open(clock or SystemClock(), connections))
        #: For records, if any replica may be asked for them.
        self._followers = FollowerChoices(self._core)

    async def _open(self, clock: Clock, connections: Connections | None) -> Session:
        place = self._place
        if connections is None:
            connections = GrpcConnections()
            if place.are_brokers:
                connections = EndpointConnections(connections, place.addresses, place.timeout_ms)
        config = ClientConfig(nameservers=place.text, request_timeout_ms=place.timeout_ms)
        return Session(config, connections, clock, Random())

    def close(self) -> None:
        """Disconnect."""
        try:
            self._portal.run(self._core.close())
        finally:
            self._portal.release()

    def bounds(self, choice: Choice, *, strict: bool) -> dict[Queue, Bounds]:
        return self._portal.run(self._bounds(choice, strict=strict))

    def denied(self, queues: Iterable[Queue]) -> set[Queue]:
        return self._portal.run(self._denied(tuple(queues)))

    def at_times(self, times: Offsets) -> dict[Queue, int | None]:
        return self._portal.run(self._at_times(times))

    def marks(self, offsets: Offsets) -> dict[Queue, RecordMark]:
        return self._portal.run(self._marks({queue: at for queue, at in offsets.items() if at > 0}))

    def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        return self._portal.run(self._committed(group, tuple(queues)))

    def commit(self, group: str, offsets: Offsets) -> None:
        self._portal.run(self._commit(group, offsets))

    async def _bounds(self, choice: Choice, *, strict: bool) -> dict[Queue, Bounds]:
        queues = await self._patiently(lambda: self._queues(choice, strict=strict))
        try:
            return await self._bounds_of(queues, strict=strict)
        except _GONE:
            # A route that is known may be old: with the newest one it is clear what is there.
            for topic in {queue.topic for queue in queues}:
                self._core.routes.forget(topic)
            queues = await self._queues(choice, strict=strict)
            return await self._bounds_of(queues, strict=strict)

    async def _denied(self, queues: tuple[Queue, ...]) -> set[Queue]:
        try:
            known = await self._core.routes.brokers()
        except _AWAY:
            return set()
        found: set[Queue] = set()
        for queue in queues:
            if queue.broker in known and await self._denies(queue):
                found.add(queue)
        return found

    async def _denies(self, queue: Queue) -> bool:
        request = pb.QueueOffsetsRequest(queues=_ids([queue]))
        timeout_ms = self._place.timeout_ms
        try:
            await self._core.ask(
                queue.broker, "QueueOffsets", request, pb.QueueOffsetsReply, timeout_ms
            )
        except _GONE:
            return True
        except _AWAY:
            return False
        # It is there, but not in the route that is known.
        self._core.routes.forget(queue.topic)
        return False

    async def _bounds_of(self, queues: Iterable[Queue], *, strict: bool) -> dict[Queue, Bounds]:
        passing = () if strict else _AWAY
        found: dict[Queue, Bounds] = {}
        for queue, one in (await self._queue_offsets(queues, passing=passing)).items():
            found[queue] = Bounds(one.min_offset, one.max_offset)
        return found

    async def _queues(self, choice: Choice, *, strict: bool) -> list[Queue]:
        """Return the queues of CHOICE that can be read."""
        found: list[Queue] = []
        for topic in await self._chosen_topics(choice):
            try:
                found += (await self._core.routes.find(topic)).readable
            except errors.RouteNotFound as error:
                if strict and not isinstance(error.__cause__, _AWAY):
                    raise errors.TopicNotFound(error.message, topic=topic) from None
                if strict:
                    raise
        if not choice.queues:
            return found
        missing = set(choice.queues) - set(found)
        if missing and strict:
            raise errors.QueueNotFound(
                f"option assign: no broker that is there has {named(missing)}; there are {named(found)}",
                field="assign",
            )
        return [queue for queue in choice.queues if queue not in missing]

    async def _chosen_topics(self, choice: Choice) -> tuple[str, ...]:
        if choice.queues:
            return tuple(sorted({queue.topic for queue in choice.queues}))
        if choice.topics:
            return choice.topics
        now_ms = self._core.clock.now_ms()
        if self._topics is None or now_ms - self._topics[0] >= _TOPICS_KEPT_MS:
            reply = await self._core.name_servers.ask(
                "ListTopics", pb.TopicListRequest(include_system=False), pb.TopicListReply
            )
            self._topics = now_ms, tuple(sorted(filter(choice.matches, reply.topics)))
        return self._topics[1]

    async def _queue_offsets(
        self,
        queues: Iterable[Queue],
        *,
        time_ms: int | None = None,
        passing: tuple[type[errors.PocketMQError], ...] = (),
    ) -> dict[Queue, pb.QueueOffsets]:
        async def ask(broker: str, some: list[Queue]) -> dict[Queue, pb.QueueOffsets]:
            request = pb.QueueOffsetsRequest(queues=_ids(some), time_ms=time_ms)
            reply = await self._ask(broker, "QueueOffsets", request, pb.QueueOffsetsReply)
            return {Queue(one.topic, broker, one.queue): one for one in reply.offsets}

        return await self._of_brokers(queues, ask, passing=passing)

    async def _at_times(self, times: Offsets) -> dict[Queue, int | None]:
        found: dict[Queue, int | None] = {}
        for time_ms in sorted(set(times.values())):
            queues = [queue for queue, instant in times.items() if instant == time_ms]
            for queue, one in (await self._queue_offsets(queues, time_ms=time_ms)).items():
                is_there = one.offset_at_time < one.max_offset
                found[queue] = one.offset_at_time if is_there else None
        return found

    async def _marks(self, offsets: Offsets) -> dict[Queue, RecordMark]:
        free = asyncio.Semaphore(_MARKS_AT_ONCE)

        async def mark(queue: Queue, number: int) -> RecordMark | None:
            async with free:
                try:
                    reply = await self._fetch(queue, number, 1, None)
                except errors.PocketMQError:
                    return None
            columns = FetchedRun(queue.broker, reply.records).columns
            if not len(columns) or int(columns.queue_offset[0]) != number:
                return None
            return RecordMark(int(columns.log_offset[0]), int(columns.store_ms[0]))

        found = await asyncio.gather(*(mark(queue, at - 1) for queue, at in offsets.items()))
        return {queue: one for queue, one in zip(offsets, found, strict=True) if one is not None}

    async def _committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int]:
        async def ask(broker: str, some: list[Queue]) -> dict[Queue, int]:
            request = pb.GroupOffsetsRequest(group=group, queues=_ids(some))
            reply = await self._ask(broker, "GroupOffsets", request, pb.GroupOffsetsReply)
            return {Queue(one.topic, broker, one.queue): one.offset for one in reply.offsets}

        found = await self._of_brokers(queues, ask)
        return {queue: offset for queue, offset in found.items() if offset >= 0}

    async def _commit(self, group: str, offsets: Offsets) -> None:
        async def ask(broker: str, some: list[Queue]) -> dict[Queue, int]:
            own = [
                pb.GroupOffset(topic=queue.topic, queue=queue.number, offset=offsets[queue])
                for queue in some
            ]
            request = pb.CommitOffsetsRequest(group=group, offsets=own)
            await self._ask(broker, "CommitOffsets", request, pb.CommitOffsetsReply)
            return {}

        await self._of_brokers(offsets, ask)

    async def _of_brokers(
        self,
        queues: Iterable[Queue],
        ask: Callable[[str, list[Queue]], Awaitable[dict[Queue, Value]]],
        *,
        passing: tuple[type[errors.PocketMQError], ...] = (),
    ) -> dict[Queue, Value]:
        """Return what ASK finds for the QUEUES of each broker, in parts; errors of class PASSING leave a broker out."""
        own: dict[str, list[Queue]] = {}
        for queue in sorted(queues):
            own.setdefault(queue.broker, []).append(queue)

        async def of_one(broker: str) -> dict[Queue, Value]:
            found: dict[Queue, Value] = {}
            try:
                for begin in range(0, len(own[broker]), _QUEUES_AT_ONCE):
                    found |= await ask(broker, own[broker][begin : begin + _QUEUES_AT_ONCE])
            except passing:
                return {}
            return found

        answers = await asyncio.gather(*map(of_one, own), return_exceptions=True)
        found: dict[Queue, Value] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found |= answer
        return found

    async def _ask(
        self, broker: str, method: str, request: Message, reply_type: type[Reply]
    ) -> Reply:
        async def once() -> Reply:
            return await self._core.ask(broker, method, request, reply_type, self._place.timeout_ms)

        return await self._patiently(once)

    async def _patiently(self, attempt: Callable[[], Awaitable[Value]]) -> Value:
        """Return what ATTEMPT returns; repeat it where it fails for a reason that passes."""
        for _ in range(self._pulling.retries):
            try:
                return await attempt()
            except errors.PocketMQError as error:
                if not error.retriable:
                    raise
            clock = self._core.clock
            await clock.sleep_until(clock.now_ms() + self._pulling.retry_interval_ms)
        return await attempt()

    def fetch(
        self, queue: Queue, offset: int, count: int, wanted: pb.Filter | None
    ) -> Future[pb.FetchReply]:
        """Ask for up to COUNT messages of QUEUE from OFFSET on, and return what will hold the answer."""
        return self._portal.start(
            self._patiently(lambda: self._fetch(queue, offset, count, wanted))
        )

    async def _fetch(
        self, queue: Queue, offset: int, count: int, wanted: pb.Filter | None
    ) -> pb.FetchReply:
        routes = self._core.routes
        if not routes.knows(queue.broker):
            await routes.find(queue.topic)
        request = pb.FetchRequest(
            topic=queue.topic,
            queue=queue.number,
            offset=offset,
            max_messages=min(count, self._pulling.batch_size),
            filter=wanted,
            check_crcs=True,
        )
        if self._pulling.read_from == "any":
            reply = await self._from_follower(queue, request)
            if reply is not None:
                return reply
        while True:
            address = routes.address(queue.broker)
            connection = self._core.connections.to(address)
            try:
                return await connection.fetch(request, self._pulling.timeout_ms)
            except (*_AWAY, *NOT_MASTER) as error:
                if routes.note_error(queue.broker, address, error):
                    continue
                routes.forget(queue.topic)
                await _quietly(routes.find(queue.topic))
                raise

    async def _from_follower(self, queue: Queue, wanted: pb.FetchRequest) -> pb.FetchReply | None:
        """Return what a follower has of WANTED, which its master has confirmed; None: the master is to be asked."""
        wait_ms = min(_BEHIND_MS, self._pulling.timeout_ms // 2)
        request = pb.FetchRequest(from_any=True, min_bytes=1, max_wait_ms=wait_ms)
        request.MergeFrom(wanted)

        async def fetch(connection: Connection) -> pb.FetchReply | None:
            reply = await connection.fetch(request, self._pulling.timeout_ms)
            return reply if reply.next_offset > wanted.offset else None

        return await self._followers.of(queue.broker, queue).ask(fetch)


async def _quietly(work: Awaitable[object]) -> None:
    """Await WORK; that it fails does not matter."""
    try:
        await work
    except errors.PocketMQError:
        return


def _ids(queues: Iterable[Queue]) -> list[pb.QueueId]:
    return [pb.QueueId(topic=queue.topic, queue=queue.number) for queue in queues]
