"""Relays: calls of clients that arrive at a follower are forwarded to the master of its replica set.

    relays = Relays("orders", master, dial)
    table = relays.methods(v2.DESCRIPTOR.services_by_name["MessagingService"])

Messages, metadata, deadline, status, trailers and the end are passed in both directions, with flow control. A call
waits up to WAIT_S, within its deadline, for a master: during an election the client gets the answer of the new one. A
call that has reached a master is not repeated. If that master is lost or replaced, the call ends UNAVAILABLE and the
client retries.

A Telemetry stream survives the loss of its master: it is opened again at the next one, with the client's latest
settings. A relayed call is not relayed again. Limits: RELAYS_MAX calls, STREAMS_MAX per connection, EARLY_MAX messages
per stream that are kept for the master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ...proto.access.audit import host_of
from ...proto.errors import ConnectionLost, MasterFenced, Overloaded, PocketMQError, ShuttingDown
from ...proto.errors_wire import from_rpc_error
from ...proto.rpc import Call, CallContext, Method, MethodKind, MethodTable, Stream
from ...proto.rpc.channels import EOF, CallFailed, Channel, Dial, Metadata, StatusCode, StreamCall
from ..service_v2.service import RELAYED

logger = logging.getLogger(__name__)

#: How long a call waits for a master. Clients of RocketMQ 5 wait 3 s for an answer.
WAIT_S: Final = 2.5
#: How long a call at a master may continue after another master is known.
GRACE_S: Final = 0.5
RELAYS_MAX: Final = 40_000
#: A server accepts 4,096 streams per connection.
STREAMS_MAX: Final = 2_000
EARLY_MAX: Final = 100
#: Deadline of a call without one.
_UNARY_S: Final = 30.0
#: How long a stream that survives the loss of its master waits for the next one.
_REOPEN_S: Final = 30.0
_LOOK_S: Final = 0.02
_LOOK_IDLE_S: Final = 0.2
#: Metadata of the connection from the client, which is not forwarded.
_OF_THE_WAY: Final = frozenset(("user-agent", RELAYED))


class KnownMaster(NamedTuple):
    """The address for clients of the master of EPOCH."""

    address: str
    epoch: int


class Relays:
    """Relays calls to the master of replica set NAME, which MASTER returns; None: there is none, or it is unknown."""

    def __init__(
        self,
        name: str,
        master: Callable[[], KnownMaster | None],
        dial: Dial,
        *,
        relays_max: int = RELAYS_MAX,
        wait_s: float = WAIT_S,
    ) -> None:
        """DIAL opens channels to masters. Calls of all clients share a channel; only their metadata differ."""
        self._name = name
        self._master = master
        self._dial = dial
        self._relays_max = relays_max
        self._wait_s = wait_s
        self._count = 0
        self._ways: list[_RelayedCall] = []
        #: Waiters for a master, or for another one.
        self._waiting: set[asyncio.Future[None]] = set()
        self._seen: KnownMaster | None = None
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def methods(self, *services: ServiceDescriptor) -> MethodTable:
        """Return the methods of SERVICES, relayed to the master."""
        found = (self._method(method) for service in services for method in service.methods)
        return MethodTable({method.path: method for method in found})

    def _method(self, described: MethodDescriptor) -> Method:
        path = f"/{described.containing_service.full_name}/{described.name}"
        types = GetMessageClass(described.input_type), GetMessageClass(described.output_type)

        async def unary(request: Message, call: Call) -> Message:
            return await self._unary(method, request, call)

        async def server_stream(request: Message, stream: Stream) -> None:
            await self._server_stream(method, request, stream)

        def bidi(stream: Stream) -> _RelayedStream:
            return _RelayedStream(self, method, stream)

        if described.client_streaming:
            method = Method(path, MethodKind.BIDI, *types, bidi)
        elif described.server_streaming:
            method = Method(path, MethodKind.SERVER_STREAM, *types, server_stream)
        else:
            method = Method(path, MethodKind.UNARY, *types, unary)
        return method

    async def _unary(self, method: Method, request: Message, call: Call) -> Message:
        patience_s = _UNARY_S if call.deadline_ms is None else call.deadline_ms / 1000
        deadline = _now() + patience_s
        while True:
            try:
                async with self.reached(method, call, deadline) as upstream:
                    await upstream.write(request)
                    await upstream.done_writing()
                    reply = await upstream.read()
                    if reply is EOF or await upstream.read() is not EOF:
                        raise PocketMQError(f"{method.path}: the master sent no answer")
                    await upstream.pass_trailing(call)
                    assert isinstance(reply, Message)
                    return reply
            except _Rejected as away:
                if _now() + _LOOK_S >= deadline:
                    raise away.error from None
                await self.changed(_LOOK_S)

    async def _server_stream(self, method: Method, request: Message, stream: Stream) -> None:
        patience_s = None if stream.deadline_ms is None else stream.deadline_ms / 1000
        deadline = None if patience_s is None else _now() + patience_s
        looking_until = _now() + self._wait_s
        while True:
            try:
                async with self.reached(method, stream, deadline) as upstream:
                    await upstream.write(request)
                    await upstream.done_writing()
                    while (reply := await upstream.read()) is not EOF:
                        stream.send(reply)
                        await stream.drained()
                    await upstream.pass_trailing(stream)
                    return
            except _Rejected as away:
                if _now() + _LOOK_S >= looking_until:
                    raise away.error from None
                await self.changed(_LOOK_S)

    async def not_master(self) -> MasterFenced:
        """Return the error of calls that only the master serves, once the master is known or after WAIT_S."""
        until = _now() + self._wait_s
        while (known := self._master()) is None and _now() < until:
            await self.changed(until - _now())
        if known is None:
            return MasterFenced(
                f"this replica of {self._name} is a follower, and no master is known: try again",
                broker=self._name,
            )
        return MasterFenced(
            f"this replica of {self._name} is a follower: the master of epoch {known.epoch} is at {known.address}",
            broker=self._name,
            master=known.address,
            epoch=known.epoch,
        )

    async def changed(self, patience_s: float) -> None:
        """Wait until MASTER returns another value than last time, up to PATIENCE_S."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        self._start_watching()
        try:
            await asyncio.wait((waiting,), timeout=max(0.0, patience_s))
        finally:
            self._waiting.discard(waiting)

    def look(self) -> None:
        """Check MASTER, because it may have changed. Without this call, a change is noticed a little later."""
        known = self._master()
        if known == self._seen:
            return
        self._seen = known
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        if known is not None:
            for way in self._ways:
                if way.master != known:
                    way.leave_soon()

    def _start_watching(self) -> None:
        """Start to check MASTER periodically, while there are calls or waiters."""
        if self._looking is None:
            self._looking = self.spawn(self._watch())

    async def _watch(self) -> None:
        try:
            self.look()
            while self._waiting or self._count:
                await asyncio.sleep(_LOOK_S if self._waiting else _LOOK_IDLE_S)
                self.look()
        finally:
            self._looking = None

    @asynccontextmanager
    async def reached(
        self, method: Method, context: CallContext, deadline: float | None
    ) -> AsyncIterator[_Upstream]:
        """Call METHOD of the master for the caller of CONTEXT until DEADLINE (event loop time).

        Raises:
            ConnectionLost: No master was reached in time.
            Overloaded: The limit of relayed calls is reached.
            MasterFenced: The call was relayed before.
        """
        if RELAYED in context.metadata:
            raise self.turned_away()
        if self._count >= self._relays_max:
            raise Overloaded(
                f"{self._count} calls are relayed to the master, the limit: connect to the master,"
                " or try again later",
                field="relays_max",
                limit=self._relays_max,
                value=self._count,
            )
        self._count += 1
        self._start_watching()
        upstream: _Upstream | None = None
        try:
            upstream = await self._reach(method, _metadata_of(context), deadline)
            yield upstream
        finally:
            self._count -= 1
            if upstream is not None:
                upstream.close()

    def turned_away(self) -> MasterFenced:
        """Return the error of a call that another replica relayed here: that replica tries again."""
        known = self._master()
        return MasterFenced(
            f"another replica of {self._name} relayed the call to this broker, which is not the master: try again",
            broker=self._name,
            turned_away=True,
            **({} if known is None else {"master": known.address, "epoch": known.epoch}),
        )

    async def _reach(self, method: Method, metadata: Metadata, deadline: float | None) -> _Upstream:
        until = _now() + self._wait_s
        if deadline is not None:
            until = min(until, deadline)
        reason = "no master is known"
        while True:
            self.look()
            known = self._seen
            if known is not None:
                try:
                    async with asyncio.timeout_at(until):
                        return await self._try(known, method, metadata, deadline)
                except CallFailed as failure:
                    reason = f"{known.address}: {failure.details()}"
                except TimeoutError:
                    reason = f"{known.address} does not answer"
            if _now() + _LOOK_S >= until:
                raise ConnectionLost(
                    f"the master of {self._name} cannot be reached, {reason}: try again"
                )
            await self.changed(min(until - _now(), _LOOK_S if known else self._wait_s))

    async def _try(
        self, known: KnownMaster, method: Method, metadata: Metadata, deadline: float | None
    ) -> _Upstream:
        """Return a stream to the master KNOWN. Raises CallFailed if it is not reached, or another is elected first."""
        way = self._connection_to(known)
        timeout = None if deadline is None else max(0.001, deadline - _now())
        call = way.open(method, timeout, metadata)
        upstream = _Upstream(way, call)
        connecting = asyncio.ensure_future(call.wait_for_connection())
        try:
            while not connecting.done():
                await asyncio.wait((connecting,), timeout=_LOOK_IDLE_S)
                if not connecting.done() and self._master() not in (None, known):
                    call.cancel()
            await connecting
        except BaseException as error:
            connecting.cancel()
            upstream.close()
            if isinstance(error, asyncio.CancelledError) and not _is_cancelled():
                raise _left(known) from None  # The call was cancelled, not its waiter.
            raise
        return upstream

    def _connection_to(self, known: KnownMaster) -> _RelayedCall:
        for way in self._ways:
            if way.master == known and not way.is_leaving and len(way.upstreams) < STREAMS_MAX:
                return way
        way = _RelayedCall(known, self._dial(known.address), self._forget)
        self._ways.append(way)
        return way

    def _forget(self, way: _RelayedCall) -> None:
        """Close WAY, which is not used any more."""
        if way.master != self._seen or way.is_leaving:
            with suppress(ValueError):
                self._ways.remove(way)
                self.spawn(way.channel.close(None))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run WORK as a task, which `close` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Abort all open calls: they end UNAVAILABLE."""
        ways, self._ways = self._ways, []
        for way in ways:
            way.leave()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(way.channel.close(None) for way in ways))


class _RelayedCall:
    """A connection to MASTER over CHANNEL, and the calls on it. IDLE is called when it has no calls left."""

    def __init__(
        self, master: KnownMaster, channel: Channel, idle: Callable[[_RelayedCall], None]
    ) -> None:
        self.master = master
        self.channel = channel
        self.upstreams: set[_Upstream] = set()
        self.is_leaving = False
        self._idle = idle

    def open(self, method: Method, timeout: float | None, metadata: Metadata) -> StreamCall:
        """Call METHOD: on the wire, all kinds of methods are streams."""
        call = self.channel.stream_stream(
            method.path, method.request_type.SerializeToString, method.reply_type.FromString
        )
        return call(timeout=timeout, metadata=metadata)

    def leave_soon(self) -> None:
        """End all calls after GRACE_S: another replica is master."""
        if not self.is_leaving:
            self.is_leaving = True
            asyncio.get_running_loop().call_later(GRACE_S, self.leave)

    def leave(self) -> None:
        """End all calls now."""
        self.is_leaving = True
        for upstream in list(self.upstreams):
            upstream.give_up()
        if not self.upstreams:
            self._idle(self)

    def forget(self, upstream: _Upstream) -> None:
        self.upstreams.discard(upstream)
        if not self.upstreams:
            self._idle(self)


class _Upstream:
    """One call at the master, over WAY."""

    def __init__(self, way: _RelayedCall, call: StreamCall) -> None:
        self._way = way
        self._call = call
        self._is_lost = False
        way.upstreams.add(self)

    async def write(self, message: Message) -> None:
        """Send MESSAGE. After the end of the call it is dropped, and `read` raises the reason."""
        with suppress(asyncio.InvalidStateError, CallFailed):
            await self._call.write(message)

    async def done_writing(self) -> None:
        with suppress(asyncio.InvalidStateError, CallFailed):
            await self._call.done_writing()

    async def read(self) -> Any:
        """Return the next message, or EOF. Raises the error of the call; _Rejected if it was no master."""
        try:
            return await self._call.read()
        except CallFailed as failure:
            raise _passed_on(failure) from None
        except asyncio.CancelledError:
            if self._is_lost and not _is_cancelled():
                raise _passed_on(_left(self._way.master)) from None
            raise

    async def pass_trailing(self, context: CallContext) -> None:
        """Append the trailing metadata of the response to those of this server."""
        for name, value in await self._call.trailing_metadata():
            if isinstance(value, str):
                context.add_trailing(name, value)

    def give_up(self) -> None:
        """Abort the call: it is not needed any more."""
        self._is_lost = True
        self._call.cancel()

    def close(self) -> None:
        """Release the call; abort it if it has not ended."""
        self._call.cancel()
        self._way.forget(self)


class _RelayedStream:
    """The client's side of METHOD, a bidirectional stream that is relayed to the master."""

    def __init__(self, relays: Relays, method: Method, stream: Stream) -> None:
        self._relays = relays
        self._method = method
        self._stream = stream
        #: The client's latest message with settings. A stream with settings survives the loss of
        #: its master.
        self._settings: Message | None = None
        #: Messages for the first master that is reached; None: it has them.
        self._early: list[Message] | None = []
        self._has_room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._upstream: _Upstream | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False

    def on_message(self, message: Any) -> Awaitable[None] | None:
        """Forward MESSAGE to the master. Between two masters, only settings are kept."""
        if "settings" in message.DESCRIPTOR.fields_by_name and message.HasField("settings"):
            self._settings = message
        if self._task is None:
            self._task = self._relays.spawn(self._run())
        if self._early is not None:
            self._early.append(message)
            return self._has_room if len(self._early) >= EARLY_MAX else None
        return None if self._upstream is None else self._upstream.write(message)

    def on_end(self) -> None:
        self._has_ended = True
        if self._upstream is not None:
            self._relays.spawn(self._upstream.done_writing())
        elif self._task is None or self._early is None:
            self.on_close()
            self._stream.finish()

    def on_close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._make_room()

    def _make_room(self) -> None:
        if not self._has_room.done():
            self._has_room.set_result(None)

    async def _run(self) -> None:
        try:
            await self._forward_replies()
            self._stream.finish()
        except PocketMQError as error:
            self._stream.fail(error)
        except asyncio.CancelledError:
            self._stream.fail(
                ConnectionLost("this replica has stopped relaying: open the stream again")
            )
            raise
        except Exception:  # The outermost call of this work: a bug ends only its own stream.
            logger.exception("relay failed method=%s", self._method.path)
            self._stream.fail(PocketMQError(f"internal error in {self._method.path}"))
        finally:
            self._make_room()

    async def _forward_replies(self) -> None:
        """Forward the master's messages until it ends the stream. With settings, continue at the next master after a
        loss.
        """
        until = _now() + _REOPEN_S
        while True:
            try:
                async with self._relays.reached(self._method, self._stream, None) as upstream:
                    await self._send_first_messages(upstream)
                    while (message := await upstream.read()) is not EOF:
                        until = _now() + _REOPEN_S
                        self._stream.send(message)
                        await self._stream.drained()
                    return
            except (_Rejected, ConnectionLost, ShuttingDown) as error:
                if self._settings is None or self._has_ended or _now() >= until:
                    raise getattr(error, "error", error) from None
            finally:
                self._upstream = None
            await self._relays.changed(_LOOK_IDLE_S)

    async def _send_first_messages(self, upstream: _Upstream) -> None:
        """Send UPSTREAM the client's messages; if it is not the first master, only the settings."""
        if self._early is None:
            assert self._settings is not None, "a stream without settings ends with its master"
            sent = None
            while sent is not self._settings:  # New settings may arrive meanwhile.
                sent = self._settings
                await upstream.write(sent)
        else:
            for message in self._early:  # The list may grow meanwhile.
                await upstream.write(message)
            self._early = None
            self._make_room()
            if self._has_ended:
                await upstream.done_writing()
        self._upstream = upstream


class _Rejected(Exception):
    """The called broker is not the master, and executed nothing. ERROR is its answer."""

    def __init__(self, error: PocketMQError) -> None:
        super().__init__(error.message)
        self.error = error


def _passed_on(failure: CallFailed) -> PocketMQError | _Rejected:
    """Return the error for the client where the call at the master ended with FAILURE."""
    error = from_rpc_error(failure)
    if isinstance(error, MasterFenced) and "turned_away" in error.details:
        return _Rejected(ConnectionLost(error.message))
    return error


def _left(master: KnownMaster) -> CallFailed:
    return CallFailed(
        StatusCode.UNAVAILABLE,
        f"{master.address}, the master of epoch {master.epoch}, is not the master any more: try again",
    )


def _metadata_of(context: CallContext) -> Metadata:
    own = ((name, value) for name, value in context.metadata.items() if name not in _OF_THE_WAY)
    return (*own, (RELAYED, host_of(context.peer)))


def _is_cancelled() -> bool:
    """Return whether the present task is cancelled, and not only a call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _now() -> float:
    return asyncio.get_running_loop().time()
