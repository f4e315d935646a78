"""Registering with the name servers: one long-lived stream to each, all independent of each other.

A stream is opened at start and again after a loss, with a growing, jittered pause. It carries the broker's whole state
when it opens and when the name server asks, what changed when topics change, and in between a heartbeat every period
that says that nothing did. A state of more than PART_TOPICS topics comes in parts, each answered, so that neither side
is busy with it for long; to a name server that knows no parts and no changes it comes whole, each time. Closing the
stream unregisters. `announced` lets a change wait until the reachable name servers know it.

This is a client of the name servers: the one place in this folder that makes calls.

The other brokers that have a topic, as the name servers tell: what routes for official clients name beside our own.

With every answer comes where all others are, whether they have the topic or not: those addresses are not ours.

A topic that is made by sending to it is created at the other brokers of the cluster, too.
Recalls and outcomes of transactions that a client asks for at the broker it has dialled are carried to their own.

An answer counts for FRESH_MS; who asks meanwhile is told the same. The servers are asked in turn, from the one that
answered last on, for TIMEOUT_MS each. While none answers, what was told last stays true: the loss of every name server
takes no broker from a route. All who ask for one topic at once share a question.

Bounds: TOPICS_MAX topics are remembered, those that were asked for last. The event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from google.protobuf.message import Message

from ...proto.clock import Clock, held
from ...proto.errors import (
    Disconnected,
    InvalidArgument,
    PocketMQError,
    TopicExists,
    TopicNotFound,
    TransactionNotFound,
)
from ...proto.errors_wire import from_rpc_error
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import decode_handle
from ...proto.rpc import Call, RpcError
from ...proto.rpc.channels import EOF, CallFailed, Channel, Dial
from ...store.format.state_tables import TopicConfig

logger = logging.getLogger(__name__)

_PATH: Final = "/pocketmq.v1.NameServer/Register"
_PAUSE_MS: Final = 100
_PAUSE_MAX_MS: Final = 5_000
_ANSWER_TIMEOUT_MS: Final = 3_000
#: What ends a stream, or finds it ended.
_BROKEN: Final = (CallFailed, asyncio.InvalidStateError, TimeoutError)

#: Topics in one message: a few milliseconds for each side.
PART_TOPICS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """What a broker says of itself: HEAD makes a message without topics, with the present version of them.

    CHANGED_SINCE tells which names of topics changed since a version, None if that is not known; TOPIC makes the
    message of one, None if there is none of that name.
    """

    head: Callable[[], pb.BrokerRegistration]
    names: Callable[[], list[str]]
    topic: Callable[[str], pb.TopicConfig | None]
    changed_since: Callable[[int], Collection[str] | None]

    def of(self, names: Iterable[str]) -> list[pb.TopicConfig]:
        """Return the topics NAMES, as far as they are there."""
        return [found for name in names if (found := self.topic(name)) is not None]


def follower_state(head: Callable[[], pb.BrokerRegistration]) -> RegistrationState:
    """Return what a replica that follows says of itself: HEAD, and no topics, which are the master's to tell."""
    return RegistrationState(head, list, lambda name: None, lambda version: ())


class Registration:
    """Registers STATE with the name servers at ADDRESSES, "host:port" each."""

    def __init__(
        self,
        addresses: Iterable[str],
        state: RegistrationState,
        clock: Clock,
        random: Random,
        period_ms: int,
        dial: Dial,
    ) -> None:
        """DIAL opens channels."""
        self._links = [
            _NameServerLink(address, state, clock, random, period_ms, dial) for address in addresses
        ]

    def start(self) -> None:
        """Begin to register, in the background."""
        for link in self._links:
            link.start()

    async def stop(self) -> None:
        """Unregister everywhere."""
        await asyncio.gather(*(link.stop() for link in self._links))

    def changed(self) -> None:
        """Send the state anew: it has changed."""
        for link in self._links:
            link.wake()

    async def announced(self) -> None:
        """Return when every name server that is connected knows the state as it is now."""
        await asyncio.gather(*(link.announced() for link in self._links))

    async def registered(self) -> None:
        """Return when every name server has taken a registration since the start."""
        await asyncio.gather(*(link.taken_once.wait() for link in self._links))


class _NameServerLink:
    """The stream to one name server."""

    def __init__(
        self,
        address: str,
        state: RegistrationState,
        clock: Clock,
        random: Random,
        period_ms: int,
        dial: Dial,
    ) -> None:
        self.address = address
        self._dial = dial
        self._state = state
        self._clock = clock
        self._random = random
        self._period_ms = period_ms
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._connected = False
        #: The reason of the latest failure, as it was logged.
        self._told: str | None = None
        #: Does the name server understand parts and changes? None: it has not said yet on this stream.
        self._takes_changes: bool | None = None
        #: The newest version that the name server has acknowledged on this stream.
        self._known_version: int | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.taken_once = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"register {self.address}"
        )

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        self._release()

    def wake(self) -> None:
        self._wake.set()

    async def announced(self) -> None:
        version = self._state.head().data_version
        if not self._connected or self._knows(version):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((version, waiter))
        self._wake.set()
        await waiter

    def _knows(self, version: int) -> bool:
        return self._known_version is not None and self._known_version >= version

    async def _run(self) -> None:
        """Keep a stream open, for ever; each failure makes the pause before the next try longer, up to a bound."""
        pause_ms = _PAUSE_MS
        async with self._dial(self.address) as channel:
            method = channel.stream_stream(
                _PATH,
                request_serializer=pb.BrokerRegistration.SerializeToString,
                response_deserializer=pb.RegistrationReply.FromString,
            )
            while True:
                try:
                    await self._register(method())
                except _BROKEN as error:
                    pause_ms = _PAUSE_MS if self._connected else min(2 * pause_ms, _PAUSE_MAX_MS)
                    self._lost(error)
                jittered_ms = int(pause_ms * self._random.uniform(0.5, 1.0))
                await self._clock.sleep_until(self._clock.now_ms() + jittered_ms)

    async def _register(self, stream: Any) -> None:
        """Send states and heartbeats until the stream breaks, which ends a pause as well."""
        stream.add_done_callback(lambda _: self._wake.set())
        self._takes_changes = None
        try:
            whole = True
            while not stream.done():
                self._wake.clear()
                whole = await self._exchange(stream, whole=whole)
                if not (whole or stream.done()):
                    await self._pause()
            await self._raise_end(stream)
        finally:
            stream.cancel()

    async def _exchange(self, stream: Any, *, whole: bool) -> bool:
        """Send what the name server lacks and take the answers; return: must the next be the WHOLE state?"""
        version = self._state.head().data_version
        for message in self._messages(whole=whole):
            # A heartbeat is over before a virtual clock moves on; one that cannot connect must not keep it from moving.
            with held(self._clock) if self._connected else nullcontext():
                async with asyncio.timeout(_ANSWER_TIMEOUT_MS / 1000):
                    await stream.write(message)
                    reply = await stream.read()
            if reply is EOF:
                await self._raise_end(stream)
            assert isinstance(reply, pb.RegistrationReply)
            self._takes_changes = reply.takes_changes
            if reply.send_topics:
                return True
        if not self._connected:
            logger.info("registered nameserver=%s", self.address)
        self._connected, self._told = True, None
        self._known_version = version
        self.taken_once.set()
        self._release_up_to(version)
        return False

    def _messages(self, *, whole: bool) -> Iterator[pb.BrokerRegistration]:
        """Yield what is to be sent, each when what precedes it was taken."""
        head, version = self._state.head(), self._known_version
        if not whole and version is not None and self._knows(head.data_version):
            head.unchanged = True
            yield head
            return
        changed = None
        if not whole and self._takes_changes and version is not None:
            changed = self._state.changed_since(version)
        if changed is not None and version is not None and len(changed) <= PART_TOPICS:
            head.changed_since = version
            head.topics.extend(self._state.of(changed))
            there = {topic.name for topic in head.topics}
            head.gone.extend(name for name in changed if name not in there)
            yield head
            return
        yield from self._whole(head)

    def _whole(self, head: pb.BrokerRegistration) -> Iterator[pb.BrokerRegistration]:
        names = self._state.names()
        if len(names) > PART_TOPICS and self._takes_changes is None:
            head.unchanged = True  # It asks for the topics, and says how it wants them.
            yield head
            return
        size = PART_TOPICS if self._takes_changes else len(names) or 1
        for begin in range(0, len(names) or 1, size):
            part = pb.BrokerRegistration()
            part.CopyFrom(head)
            part.topics.extend(self._state.of(names[begin : begin + size]))
            part.more = begin + size < len(names)
            yield part

    async def _raise_end(self, stream: Any) -> NoReturn:
        """Raise what STREAM ended with; a plain end is a loss as well."""
        code, details = await stream.code(), await stream.details()
        raise TimeoutError(f"{self.address} ended the registration: {details or code.name}")

    async def _pause(self) -> None:
        """Wait for the next heartbeat's time, or a change."""
        sleep = asyncio.ensure_future(
            self._clock.sleep_until(self._clock.now_ms() + self._period_ms)
        )
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((sleep, wake), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()

    def _lost(self, error: Exception) -> None:
        """Note that the stream broke. A reason that is told again and again is a warning once only."""
        reason = _reason(error)
        level = logging.DEBUG if reason == self._told else logging.WARNING
        logger.log(level, "not registered nameserver=%s reason=%s", self.address, reason)
        self._told = reason
        self._connected = False
        self._known_version = None
        self._release()

    def _release_up_to(self, version: int) -> None:
        for asked, waiter in self._waiters:
            if asked <= version and not waiter.done():
                waiter.set_result(None)
        self._waiters = [(asked, waiter) for asked, waiter in self._waiters if asked > version]

    def _release(self) -> None:
        """Let everybody go who waits: this name server cannot be told now."""
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


def _reason(error: Exception) -> str:
    return error.details() if isinstance(error, CallFailed) else str(error) or "timeout"


# ---------------------------------------------------------------- the other brokers that have a topic


FRESH_MS: Final = 1_000
TIMEOUT_MS: Final = 1_000
TOPICS_MAX: Final = 10_000
_CLUSTER: Final = "/pocketmq.v1.NameServer/Cluster"
_ROUTE: Final = "/pocketmq.v1.NameServer/Route"
_RECALL: Final = "/pocketmq.v1.Broker/Recall"
_CREATE: Final = "/pocketmq.v1.Broker/CreateTopic"
_END: Final = "/pocketmq.v1.Broker/EndTransaction"
_FORWARD_TIMEOUT_S: Final = 3.0
_MASTER: Final = 0
Reply = TypeVar("Reply", bound=Message)


class OtherQueues(NamedTuple):
    """What another broker has of a topic: TYPE is the topic's there, "" if its name server does not tell.

    ADDRESSES: the master's first; of a replica set all that live, of which each leads to the master.
    """

    broker: str
    addresses: tuple[str, ...]
    read_queues: int
    write_queues: int
    permission: int
    type: str


Tell = Callable[[Sequence[OtherQueues]], None]


class _Known(NamedTuple):
    queues: Sequence[OtherQueues]
    asked_ms: int


class Neighbours:
    """Asks the name servers at ADDRESSES for broker NAME; none: it has no neighbours. NOW_MS is the machine's."""

    def __init__(
        self, name: str, addresses: Sequence[str], dial: Dial, now_ms: Callable[[], int]
    ) -> None:
        self._name = name
        self._addresses = addresses
        self._dial = dial
        self._now_ms = now_ms
        #: "host:port" of all other brokers, as of the last answer.
        self.addresses: Collection[str] = ()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, list[Tell]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: dict[str, Channel] = {}
        self._open = AsyncExitStack()
        self._last_good = 0

    # --- routes

    def known(self, topic: str) -> Sequence[OtherQueues] | None:
        """Return what other brokers have of TOPIC; None: ask."""
        if not self._addresses:
            return ()
        known = self._known.get(topic)
        if known is None or self._now_ms() - known.asked_ms >= FRESH_MS:
            return None
        return known.queues

    def forget(self, topic: str) -> None:
        """Have the next question for TOPIC asked: it has changed here, and perhaps elsewhere."""
        known = self._known.get(topic)
        if known is not None:
            self._known[topic] = known._replace(asked_ms=self._now_ms() - FRESH_MS)

    def ask(self, topic: str, tell: Tell) -> None:
        """Ask for TOPIC, and TELL what is known of it then."""
        asking = self._asking.get(topic)
        if asking is not None:
            asking.append(tell)
            return
        self._asking[topic] = [tell]
        self._spawn(self._ask(topic))

    async def _ask(self, topic: str) -> None:
        found = await self._told(topic)
        before = self._known.pop(topic, None)
        if found is None:
            found = () if before is None else before.queues
        self._known[topic] = _Known(found, self._now_ms())
        if len(self._known) > TOPICS_MAX:
            self._known.popitem(last=False)
        for tell in self._asking.pop(topic):
            tell(found)

    async def _told(self, topic: str) -> Sequence[OtherQueues] | None:
        """Return what the first name server that answers says; None: none does."""
        found = await self._routes_and_cluster(topic)
        if found is None:
            return None
        return [queues for route in found[0].routes for queues in self._others(route)]

    async def _routes_and_cluster(self, topic: str) -> tuple[pb.RouteReply, pb.ClusterReply] | None:
        """Return what the first name server that answers says of TOPIC and of all brokers; None: none does."""
        count = len(self._addresses)
        for step in range(count):
            place = (self._last_good + step) % count
            address = self._addresses[place]
            try:
                channel = await self._channel(address)
                routes, cluster = await asyncio.gather(
                    _answer(channel, _ROUTE, pb.RouteRequest(topics=[topic]), pb.RouteReply),
                    _answer(channel, _CLUSTER, pb.ClusterRequest(), pb.ClusterReply),
                )
            except CallFailed as error:
                logger.debug("no route from nameserver=%s reason=%s", address, error)
                continue
            self._last_good = place
            self.addresses = {
                other
                for one in cluster.brokers
                if one.broker_name != self._name
                for other in one.addresses.values()
            }
            return routes, cluster
        return None

    def _others(self, route: pb.TopicRoute) -> Iterator[OtherQueues]:
        """Yield the queues in ROUTE that are not ours and can be had, in the order of the brokers' names."""
        addresses = {one.broker_name: _addresses(one) for one in route.brokers}
        for one in sorted(route.queues, key=lambda queues: queues.broker_name):
            known = addresses.get(one.broker_name)
            if known and one.broker_name != self._name:
                yield OtherQueues(
                    one.broker_name,
                    known,
                    one.read_queues,
                    one.write_queues,
                    one.permission,
                    one.type,
                )

    # --- topics that are made by sending to them

    def create_topic(self, made: TopicConfig) -> None:
        """Have the other brokers of the cluster create the topic that was MADE here because somebody sent to it."""
        if self._addresses:
            topic = pb.TopicConfig(
                name=made.name,
                read_queues=made.read_queues,
                write_queues=made.write_queues,
                permission=made.permission,
            )
            self._spawn(self._create_topic(pb.CreateTopicRequest(topic=topic)))

    async def _create_topic(self, request: pb.CreateTopicRequest) -> None:
        found = await self._routes_and_cluster(request.topic.name)
        brokers = () if found is None else found[1].brokers
        cluster = next((one.cluster for one in brokers if one.broker_name == self._name), "")
        await asyncio.gather(
            *(
                self._create_at(one, request)
                for one in brokers
                if one.broker_name != self._name
                and one.cluster == cluster
                and _MASTER in one.addresses
            )
        )

    async def _create_at(self, broker: pb.BrokerData, request: pb.CreateTopicRequest) -> None:
        try:
            await self._asked(broker.addresses[_MASTER], _CREATE, request, pb.TopicReply)
        except TopicExists:
            pass  # Somebody sent to that broker, too.
        except PocketMQError as error:
            logger.warning(
                "topic not created at another broker topic=%s broker=%s reason=%s",
                request.topic.name,
                broker.broker_name,
                error.message,
            )

    # --- what is asked at the wrong broker

    def forward_recall(self, request: pb.RecallRequest, call: Call) -> bool:
        """Have CALL answered by the broker that the handle of REQUEST names; return False if that is not another one.

        It is none, either, of which the name servers know nothing.
        """
        if not self._addresses:
            return False
        try:
            broker = decode_handle(request.handle).broker
        except InvalidArgument:
            return False
        if broker == self._name:
            return False
        self._spawn(self._forward_recall(broker, request, call))
        return True

    async def _forward_recall(self, broker: str, request: pb.RecallRequest, call: Call) -> None:
        found = await self._told(request.topic) or ()
        address = next((one.addresses[0] for one in found if one.broker == broker), None)
        try:
            if address is None:
                raise Disconnected(
                    f"the handle is of broker {broker!r}, which is not registered with topic {request.topic!r} at"
                    " present: try again later",
                    broker=broker,
                )
            call.reply(await self._asked(address, _RECALL, request, pb.RecallReply))
        except PocketMQError as error:
            call.fail(error)

    def forward_end(self, request: pb.EndTransactionRequest, call: Call, unknown: RpcError) -> None:
        """Have CALL answered by the broker, of those with the topic of REQUEST, that took its half message.

        An identifier names no broker: they are asked one after the other. UNKNOWN is the answer if none has the topic.
        """
        self._spawn(self._forward_end(request, call, unknown))

    async def _forward_end(
        self, request: pb.EndTransactionRequest, call: Call, unknown: RpcError
    ) -> None:
        found = await self._told(request.topic) if self._addresses else ()
        answer = unknown
        if found is None:
            answer = Disconnected(
                f"{unknown.message}; no name server tells which other brokers have topic {request.topic!r}: try again"
                " later",
                topic=request.topic,
            )
        for other in found or ():
            try:
                reply = await self._asked(other.addresses[0], _END, request, pb.EndTransactionReply)
            except TopicNotFound:
                continue
            except PocketMQError as error:
                # Who does not answer may have taken it: that another did not says less.
                if answer is unknown or not isinstance(error, TransactionNotFound):
                    answer = error
                continue
            call.reply(reply)
            return
        call.fail(answer)

    async def _asked(
        self, address: str, method: str, request: Message, reply_type: type[Reply]
    ) -> Reply:
        """Return what the broker at ADDRESS answers; raise what it raises, Disconnected if it does not answer."""
        try:
            async with self._dial(address) as channel:
                return await _answer(channel, method, request, reply_type, _FORWARD_TIMEOUT_S)
        except CallFailed as error:
            raise from_rpc_error(error) from error

    # --- the way there

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = await self._open.enter_async_context(self._dial(address))
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        """Ask nobody any more."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._channels.clear()
        await self._open.aclose()


async def _answer(
    channel: Channel,
    method: str,
    request: Message,
    reply_type: type[Reply],
    timeout_s: float = TIMEOUT_MS / 1000,
) -> Reply:
    ask = channel.unary_unary(method, type(request).SerializeToString, reply_type.FromString)
    reply: Reply = await ask(request, timeout=timeout_s)
    return reply


def _addresses(broker: pb.BrokerData) -> tuple[str, ...]:
    """Return where BROKER is reached, its master first; nothing, if it has none and no replicas that lead to it."""
    master = broker.addresses.get(_MASTER, "")
    others = (one.address for one in broker.replicas if one.address != master)
    return (*([master] if master else ()), *others)
