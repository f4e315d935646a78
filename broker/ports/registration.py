"""Registration with the name servers: one long-lived stream to each, all independent of each other.

The broker opens a stream at start, and again after a loss, with a growing, jittered delay. The stream carries the whole
state when it opens and when the name server asks, changes of topics, and a heartbeat per period. A state of more than
PART_TOPICS topics is sent in parts that are answered one by one, so that neither side is busy for long. Name servers
that know neither parts nor changes get the whole state each time. Closing the stream unregisters. `announced` waits
until the reachable name servers know a change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NoReturn

from ...proto.clock import Clock, held
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc.channels import EOF, CallFailed, Dial

logger = logging.getLogger(__name__)

_PATH: Final = "/pocketmq.v1.NameServer/Register"
_PAUSE_MS: Final = 100
_PAUSE_MAX_MS: Final = 5_000
_ANSWER_TIMEOUT_MS: Final = 3_000
#: Exceptions that mean the stream has ended.
_BROKEN: Final = (CallFailed, asyncio.InvalidStateError, TimeoutError)

#: Topics per message: processing takes a few milliseconds on each side.
PART_TOPICS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """The state that a broker registers. HEAD makes a message without topics, with their present version.

    CHANGED_SINCE returns the names of topics that changed since a version, None if that is unknown. TOPIC makes the
    message of one topic, None if it does not exist.
    """

    head: Callable[[], pb.BrokerRegistration]
    names: Callable[[], list[str]]
    topic: Callable[[str], pb.TopicConfig | None]
    changed_since: Callable[[int], Collection[str] | None]

    def of(self, names: Iterable[str]) -> list[pb.TopicConfig]:
        """Return those of the topics NAMES that exist."""
        return [found for name in names if (found := self.topic(name)) is not None]


def follower_state(head: Callable[[], pb.BrokerRegistration]) -> RegistrationState:
    """Return the registered state of a follower: HEAD without topics, because the master registers these."""
    return RegistrationState(head, list, lambda name: None, lambda version: ())


class Registration:
    """Registers STATE with the name servers at ADDRESSES, each "host:port"."""

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
        """Start to register, in the background."""
        for link in self._links:
            link.start()

    async def stop(self) -> None:
        """Unregister everywhere."""
        await asyncio.gather(*(link.stop() for link in self._links))

    def changed(self) -> None:
        """Send the state again because it has changed."""
        for link in self._links:
            link.wake()

    async def announced(self) -> None:
        """Wait until every connected name server knows the present state."""
        await asyncio.gather(*(link.announced() for link in self._links))

    async def registered(self) -> None:
        """Wait until every name server has accepted a registration since the start."""
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
        #: The latest failure that was logged.
        self._told: str | None = None
        #: Whether the name server supports parts and changes; None: not known on this stream yet.
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
        """Keep a stream open forever; each failure increases the delay before the next attempt, up to a limit."""
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
        """Send states and heartbeats until the stream breaks, which also ends a pause."""
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
        """Send changes, or the WHOLE state, and receive the answers; return whether the next exchange must send all."""
        version = self._state.head().data_version
        for message in self._messages(whole=whole):
            # A virtual clock must wait for a heartbeat, but not for a name server that cannot be
            # reached.
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
        """Yield the messages to send; each is made after the previous one was acknowledged."""
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
            head.unchanged = True  # Ask for the topics; the answer says in which form.
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
        """Raise the error with which STREAM ended; a normal end counts as a loss as well."""
        code, details = await stream.code(), await stream.details()
        raise TimeoutError(f"{self.address} ended the registration: {details or code.name}")

    async def _pause(self) -> None:
        """Wait for the time of the next heartbeat, or for a change."""
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
        """Log that the stream broke. A repeated reason is a warning only once."""
        reason = _reason(error)
        level = logging.DEBUG if reason == self._told else logging.WARNING
        logger.log(level, "registration failed nameserver=%s reason=%s", self.address, reason)
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
        """Release all waiters: this name server cannot be reached now."""
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


def _reason(error: Exception) -> str:
    return error.details() if isinstance(error, CallFailed) else str(error) or "timeout"
