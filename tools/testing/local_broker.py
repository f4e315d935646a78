"""A broker for tests: started, stopped and killed by the test, which moves its time and looks at what it has.

The servers and all questions to them live on an event loop in a thread of its own, so that a test may block, and its
consumers run meanwhile. `LocalBroker` is for ordinary tests, `AsyncLocalBroker` for those that are coroutines: one that
blocked would keep consumers on its own loop from the results that `advance` waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from ...client.administration.admin import AsyncAdmin
from ...client.administration.clocks import AsyncClockAdmin
from ...client.administration.dead_letters import DeadLetter
from ...client.administration.descriptions import GroupQueue
from ...client.producer import AsyncProducer
from ...client.pull_consumer import AsyncPullConsumer
from ...client.received_message import ReceivedMessage
from ...proto import errors
from ...proto.clock import SystemClock
from ...proto.rpc.turn_loop import TurnLoop
from ...proto.time_text import parse_duration
from ..counted import counted
from ..faults import Faults, parse_faults
from ..record import line_of, read, resend, speed_of
from .servers import BrokerOptions, KitServers, ServersApart, ServersHere

P = ParamSpec("P")
R = TypeVar("R")

#: Group of readers that are no members; nothing is committed for it.
_READER: Final = "pocketmq_test_kit"
_LOOK_S: Final = 0.005
#: Messages and queues that a failure shows.
_SHOWN_MAX: Final = 20
_BODY_SHOWN: Final = 80


class _Kit:
    """The common part of both APIs, as coroutines on the loop of the servers."""

    def __init__(self, folder: Path, options: BrokerOptions) -> None:
        self.served: KitServers = (ServersApart if options.process else ServersHere)(
            folder, options
        )
        self.options = options
        self.is_running = False
        self._names = count(1)
        self._admin: AsyncAdmin | None = None
        self._reader: AsyncPullConsumer | None = None

    async def start(self) -> None:
        """Begin, after `stop` or `kill` at the same addresses and with what is stored."""
        if self.is_running:
            return
        await self.served.start()
        self.is_running = True

    async def stop(self) -> None:
        """End the servers cleanly; what is stored stays."""
        self.is_running = False
        await self._hang_up()
        await self.served.stop()

    async def kill(self) -> None:
        """End the broker as `kill -9` does: connections end, and nothing more is saved. `restart` begins it again."""
        self.is_running = False
        await self._hang_up()
        await self.served.kill()

    async def restart(self) -> None:
        """Stop cleanly, unless the broker was stopped or killed, and begin again at the same addresses."""
        if self.is_running:
            await self.stop()
        await self.start()

    async def _hang_up(self) -> None:
        admin, self._admin = self._admin, None
        reader, self._reader = self._reader, None
        for client in (admin, reader):
            if client is not None:
                with suppress(errors.PocketMQError):
                    await client.close()

    def admin(self) -> AsyncAdmin:
        self._check_running()
        if self._admin is None:
            self._admin = AsyncAdmin(self.served.nameserver)
        return self._admin

    def _check_running(self) -> None:
        if not self.is_running:
            raise errors.ClientClosed(
                "the broker was stopped or killed: begin it again with restart()"
            )

    async def create_topic(
        self, name: str | None = None, *, queues: int = 4, type: str = ""
    ) -> str:
        """Make topic NAME, or one of a fresh name, and return its name.

        TYPE: "NORMAL", "FIFO", "DELAY" or "TRANSACTION", as official clients need it.
        """
        name = name or self.fresh_name("topic")
        await self.admin().create_topic(name, queues=queues, type=type)
        return name

    async def create_group(
        self,
        name: str | None = None,
        *,
        retries: int = 16,
        retry_intervals: Sequence[str] = (),
        ordered: bool = False,
    ) -> str:
        """Make group NAME, or one of a fresh name, and return its name.

        RETRIES: how often a failed message is redelivered. RETRY_INTERVALS: after "10s", "1m", …, then always the last.
        """
        name = name or self.fresh_name("group")
        await self.admin().create_group(
            name,
            retry_max_times=retries,
            retry_intervals_ms=[
                parse_duration(one, field="retry_intervals") for one in retry_intervals
            ],
            order=ordered,
        )
        return name

    def fresh_name(self, kind: str) -> str:
        return f"test_{kind}_{next(self._names)}"

    async def advance(self, by: int | str) -> int:
        """Move the messages' time by BY, "2h30m" or milliseconds; return the new one, in Unix milliseconds.

        Each delay, retry and dead letter on the way happens at its own instant, and consumers are waited for. Raises
        Unsupported for a broker with the machine's clock.
        """
        by_ms = parse_duration(by, field="by") if isinstance(by, str) else by
        self._check_running()
        async with AsyncClockAdmin(self.served.nameserver) as clocks:
            (moved,) = await clocks.advance(by_ms)
        return moved.now_ms

    async def now(self) -> int:
        """Return the messages' time, in Unix milliseconds."""
        self._check_running()
        async with AsyncClockAdmin(self.served.nameserver) as clocks:
            (clock,) = await clocks.now()
        return clock.now_ms

    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages that are in TOPIC, the oldest first; none where there is no such topic.

        What is scheduled is not there yet.
        """
        try:
            queues = await self.admin().queue_offsets(topic)
        except errors.TopicNotFound:
            return []
        found: list[ReceivedMessage] = []
        for one in queues:
            offset = one.min_offset
            while offset < one.max_offset:
                pulled = await (await self._reading()).pull(topic, one.queue, offset)
                found += pulled.messages
                if pulled.next_offset <= offset:
                    break
                offset = pulled.next_offset
        return sorted(found, key=lambda message: (message.store_timestamp_ms, message.log_offset))

    async def record(self, file: Path, topic: str) -> int:
        """Write what is in TOPIC to FILE, as `pocketmq record` does; return how many messages."""
        there = await self.messages(topic)
        text = "".join(map(line_of, there))
        await asyncio.to_thread(file.write_text, text, encoding="utf-8", newline="\n")
        return len(there)

    async def replay(self, file: Path, *, topic: str | None = None, speed: str = "max") -> int:
        """Send the messages of FILE again, as `pocketmq replay` does; return how many."""
        self._check_running()
        async with AsyncProducer(self.served.nameserver) as producer:
            with file.open(encoding="utf-8", newline="\n") as lines:
                return await resend(
                    read(lines, str(file), topic), producer, speed_of(speed), SystemClock()
                )

    async def _reading(self) -> AsyncPullConsumer:
        if self._reader is None:
            self._reader = AsyncPullConsumer(_READER, (), self.served.nameserver)
            await self._reader.start()
        return self._reader

    async def dead_letters(self, group: str) -> list[DeadLetter]:
        """Return the dead letters of GROUP, those that died first in front; none where there is no such group."""
        try:
            return await self.admin().dead_letters(group)
        except errors.GroupNotFound:
            return []

    async def assert_sent(
        self,
        topic: str,
        *,
        body: bytes | str | None = None,
        tag: str | None = None,
        key: str | None = None,
        count: int | None = None,
    ) -> list[ReceivedMessage]:
        """Return the messages of TOPIC with this BODY, TAG and KEY, as far as they are given, the oldest first.

        Raises AssertionError, which shows what is there, if there is none; with COUNT if there are not as many.
        """
        wanted_body = body.encode() if isinstance(body, str) else body
        there = await self.messages(topic)
        found = [
            one
            for one in there
            if (wanted_body is None or one.body == wanted_body)
            and (tag is None or one.tag == tag)
            and (key is None or key in one.keys)
        ]
        if len(found) == count or (count is None and found):
            return found
        parts = {"body": wanted_body, "tag": tag, "key": key}
        wanted = " and ".join(
            f"{name} {value!r}" for name, value in parts.items() if value is not None
        )
        number = (
            "no message"
            if not found
            else f"{counted(len(found), 'message')}"
            if len(found) > 1
            else "1 message"
        )
        lines = [f"{number} of {topic} with {wanted or 'any body'}"]
        if count is not None:
            lines[0] += f", {count} wanted"
        raise AssertionError("\n".join([*lines, *await self._shown(topic, there)]))

    async def _shown(self, topic: str, there: Sequence[ReceivedMessage]) -> list[str]:
        """Return what a failure shows: what is THERE in TOPIC, and what is near."""
        lines = [f"{topic} has {counted(len(there), 'message')}" + (":" if there else "")]
        lines += [f"  {_line(one)}" for one in there[:_SHOWN_MAX]]
        if len(there) > _SHOWN_MAX:
            lines.append(f"  … and {len(there) - _SHOWN_MAX} more")
        (broker,) = await self.admin().brokers()
        if broker.delayed_waiting:
            lines.append(
                f"{counted(broker.delayed_waiting, 'message')} of all topics waiting for their time: advance() it"
            )
        if not there:
            others = [one.name for one in await self.admin().topics()]
            lines.append(f"topics: {', '.join(others[:_SHOWN_MAX]) or 'none'}")
        return lines

    async def wait_consumed(self, group: str, *, timeout_s: float = 60.0) -> None:
        """Return once GROUP reads a topic and has finished all that is in its topics.

        What failed and waits for its retry counts as finished until it is redelivered. Raises RequestTimeout, which
        shows what is left, after TIMEOUT_S of real time.
        """
        left: Collection[GroupQueue] = ()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            with suppress(errors.GroupNotFound):
                queues = (await self.admin().describe_group(group)).queues
                left = [one for one in queues if one.lag or one.in_flight_count]
                if queues and not left:
                    return
            if loop.time() >= until:
                break
            await asyncio.sleep(_LOOK_S)
        what = "; ".join(
            f"{one.queue}: {one.lag} of {one.max_offset - one.min_offset} unfinished"
            for one in list(left)[:_SHOWN_MAX]
        )
        raise errors.RequestTimeout(
            f"group {group} has not finished after {timeout_s:g} s: {what or 'no consumer of it reads a topic'}",
            group=group,
        )


def _line(message: ReceivedMessage) -> str:
    body = message.body
    text = repr(body[:_BODY_SHOWN]) + ("…" if len(body) > _BODY_SHOWN else "")
    rest = [f"tag {message.tag!r}"] if message.tag else []
    rest += [f"key {key!r}" for key in message.keys]
    return ", ".join([text, *rest, f"queue {message.queue}@{message.queue_offset}"])


def _blocking(
    method: Callable[Concatenate[_Kit, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[LocalBroker, P], R]:
    """Return the form of METHOD for ordinary functions."""

    @wraps(method)
    def call(self: LocalBroker, /, *arguments: P.args, **named: P.kwargs) -> R:
        if asyncio._get_running_loop() is not None:
            raise errors.InvalidArgument(
                f"{method.__name__} would keep the running event loop from its work: in coroutines await that of the"
                " fixture pocketmq_async_broker"
            )
        return self._loop.submit(method(self._kit, *arguments, **named)).result()

    return call


def _awaited(
    method: Callable[Concatenate[_Kit, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[AsyncLocalBroker, P], Awaitable[R]]:
    """Return the form of METHOD for coroutines of any loop."""

    @wraps(method)
    def call(self: AsyncLocalBroker, /, *arguments: P.args, **named: P.kwargs) -> Awaitable[R]:
        return asyncio.wrap_future(self._loop.submit(method(self._kit, *arguments, **named)))

    return call


class _Face:
    """What needs no question."""

    def __init__(self, kit: _Kit, loop: _LoopThread) -> None:
        self._kit = kit
        self._loop = loop

    @property
    def nameserver(self) -> str:
        """What PocketMQ's own clients are given: Producer(broker.nameserver)."""
        return self._kit.served.nameserver

    @property
    def endpoint(self) -> str:
        """What official clients of RocketMQ 5 are given as their endpoints."""
        return self._kit.served.endpoint

    @property
    def store(self) -> Path:
        """The folder of the store, for `pocketmq trace` and `inspect`; another one after a kill in this process."""
        return self._kit.served.store

    @contextmanager
    def faults(self, what: str, *, seed: int = 0) -> Iterator[Counter[str]]:
        """Have WHAT go wrong in the `with` block, as for `pocketmq serve --faults`; yield how often what did so far.

        Raises InvalidArgument for what is none, Unsupported for a broker in a process of its own.
        """
        faults, options = self._faults(), self._kit.options
        faults.begin(parse_faults(what), seed)
        faults.counts.clear()
        try:
            yield faults.counts
        finally:
            faults.begin(parse_faults(options.faults), options.seed)

    def fail_next(
        self, kind: str, times: int = 1, *, topic: str | None = None, group: str | None = None
    ) -> None:
        """Have a single fault happen to the next calls, of TOPIC and of GROUP if they are given.

        KIND: "refuse-send", "lose-send-answer", "lose-ack" or "cut-stream". Raises InvalidArgument for another,
        Unsupported for a broker in a process of its own.
        """
        self._faults().next(kind, times, topic=topic, group=group)

    def _faults(self) -> Faults:
        faults = self._kit.served.faults
        if faults is None:
            raise errors.Unsupported(
                "a broker in a process of its own gets its faults when it starts (faults=…, seed=…):"
                " run it in this process to change them"
            )
        return faults

    def fresh_name(self, kind: str) -> str:
        """Return an unused name with KIND in it."""
        return self._kit.fresh_name(kind)


class LocalBroker(_Face):
    """A broker, and a name server, for tests that are ordinary functions; FOLDER is theirs."""

    def __init__(self, folder: Path, options: BrokerOptions | None = None) -> None:
        super().__init__(_Kit(folder, options or BrokerOptions()), _LoopThread())
        self.for_coroutines = AsyncLocalBroker(self._kit, self._loop)
        try:
            self.restart()
        except BaseException:
            self.close()
            raise

    restart = _blocking(_Kit.restart)
    stop = _blocking(_Kit.stop)
    kill = _blocking(_Kit.kill)
    create_topic = _blocking(_Kit.create_topic)
    create_group = _blocking(_Kit.create_group)
    advance = _blocking(_Kit.advance)
    now = _blocking(_Kit.now)
    messages = _blocking(_Kit.messages)
    record = _blocking(_Kit.record)
    replay = _blocking(_Kit.replay)
    dead_letters = _blocking(_Kit.dead_letters)
    assert_sent = _blocking(_Kit.assert_sent)
    wait_consumed = _blocking(_Kit.wait_consumed)

    def close(self) -> None:
        """End everything."""
        try:
            self._loop.submit(self._kit.stop()).result()
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncLocalBroker(_Face):
    """The same broker for tests that are coroutines."""

    restart = _awaited(_Kit.restart)
    stop = _awaited(_Kit.stop)
    kill = _awaited(_Kit.kill)
    create_topic = _awaited(_Kit.create_topic)
    create_group = _awaited(_Kit.create_group)
    advance = _awaited(_Kit.advance)
    now = _awaited(_Kit.now)
    messages = _awaited(_Kit.messages)
    record = _awaited(_Kit.record)
    replay = _awaited(_Kit.replay)
    dead_letters = _awaited(_Kit.dead_letters)
    assert_sent = _awaited(_Kit.assert_sent)
    wait_consumed = _awaited(_Kit.wait_consumed)


class _LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = TurnLoop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="pocketmq-test-kit", daemon=True
        )
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Have WORK done."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the loop, and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
