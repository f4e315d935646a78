"""gRPC's own library as the server of method tables: `--grpc grpcio`. Tests compare PocketMQ's own server with it.

    carrier = GrpcioCarrier([service.methods()], limits=Limits())
    port = await carrier.start("127.0.0.1", 0)
    await carrier.stop(grace_s=2.0)

This is the only module that imports grpc (the extra `grpcio`). A port has plaintext or, with a `certificate`, TLS
(ALPN h2) only.

grpc runs one task per call. A unary handler is called in this task; a call that is answered `LATER` waits there for a
future. The task of a stream is its only writer: it drains a deque of encoded messages. A second task reads and calls
the receiver.

`stop` is graceful: new calls are refused, receivers get `on_end` and may finish. Calls still open after the grace
period fail with ShuttingDown, also a stream that calls `finish`. Not thread-safe: its event loop owns everything.

Costs of the server (2 cores, Python 3.11, grpcio 1.85): 390 µs per unary call, 90 µs per message and its answer.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio as aio
from google.protobuf.message import Message

from .errors_wire import failure_of, ours
from .rpc import LATER, Call, Certificate, Limits, Method, MethodKind, MethodTable, Receiver, Stream
from .rpc.errors import CannotListen, RpcError, Stopping, internal_error, not_read, shutting_down
from .rpc.listening import address_of, cannot_listen, check_bindable

logger = logging.getLogger(__name__)

#: The share of the grace period that calls and streams have to end by themselves.
_WIND_DOWN_SHARE: Final = 0.8
#: grpc's name for the names in a caller's certificate.
_COMMON_NAME: Final = "x509_common_name"
_ALTERNATIVE_NAMES: Final = "x509_subject_alternative_name"
#: What `read` returns after the last message.
_END: Final[object] = getattr(aio, "EOF")  # noqa: B009 (the stubs lack it)

Behaviour = Callable[[Any, Any], Awaitable[Any]]


class GrpcioCarrier:
    """One gRPC server over the methods of TABLES. Its event loop owns it."""

    def __init__(
        self,
        tables: Iterable[MethodTable],
        *,
        limits: Limits | None = None,
        certificate: Callable[[], Certificate] | None = None,
    ) -> None:
        """CERTIFICATE is called at each handshake and returns the one to show; None: the port serves plaintext."""
        self._limits = limits or Limits()
        self._certificate = certificate
        self._methods: dict[str, Method] = {}
        for table in tables:
            for method in table:
                assert method.path not in self._methods, f"two tables serve {method.path}"
                self._methods[method.path] = method
        self._server: aio.Server | None = None
        self._open = _OpenCalls()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on HOST and PORT (0: any free one), serve, and return the port; raise ConfigError if that fails."""
        assert self._server is None, "a carrier starts once"
        try:
            check_bindable(host, port)  # The operating system's error is clearer than grpc's.
        except CannotListen as error:
            raise ours(error) from error.__cause__
        address = address_of(host, port)
        server = aio.server(options=_options(self._limits))
        server.add_generic_rpc_handlers((_Handlers(self._methods, self._open, self._limits),))
        try:
            if self._certificate is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, _credentials(self._certificate))
        except RuntimeError as error:
            raise ours(cannot_listen(host, port, str(error))) from error
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace_s: float = 2.0) -> None:
        """Refuse new calls, let open ones end within GRACE_S seconds, fail the rest, and close."""
        server, self._server = self._server, None
        if server is None:
            return
        stopped = asyncio.ensure_future(server.stop(grace_s))
        self._open.wind_down()
        await self._open.emptied(grace_s * _WIND_DOWN_SHARE)
        self._open.fail_all()
        await stopped


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.receive_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.concurrent_streams_max),
        ("grpc.keepalive_time_ms", limits.keepalive_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", limits.handshake_timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.peer_keepalive_min_ms),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", limits.peer_keepalive_min_ms),
    ]


def _credentials(current: Callable[[], Certificate]) -> grpc.ServerCredentials:
    """Return credentials that show the CURRENT certificate at each handshake; grpc calls it on its own thread."""

    def configuration(certificate: Certificate) -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(certificate.key, certificate.chain)], certificate.authorities or None
        )

    shown = current()

    def changed() -> Any:
        nonlocal shown
        certificate = current()
        if certificate is shown:
            return None  # grpc keeps its current one.
        shown = certificate
        return configuration(certificate)

    return grpc.dynamic_ssl_server_credentials(
        configuration(shown), changed, require_client_authentication=bool(shown.authorities)
    )


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
    """Finds the handler of a path for grpc. Each handler is created once."""

    def __init__(self, methods: Mapping[str, Method], calls: _OpenCalls, limits: Limits) -> None:
        make = {
            MethodKind.UNARY: lambda method: grpc.unary_unary_rpc_method_handler(
                _unary_behaviour(method, calls)
            ),
            MethodKind.SERVER_STREAM: lambda method: grpc.unary_stream_rpc_method_handler(
                _server_stream_behaviour(method, calls, limits)
            ),
            MethodKind.BIDI: lambda method: grpc.stream_stream_rpc_method_handler(
                _bidi_behaviour(method, calls, limits)
            ),
        }
        self._handlers = {path: make[method.kind](method) for path, method in methods.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


async def _abort(context: Any, error: RpcError) -> NoReturn:
    """End the call with the status of ERROR and ERROR itself in the trailing metadata."""
    status, message, trailing = failure_of(error)
    await context.abort(grpc.StatusCode[status], message, trailing_metadata=trailing)
    raise AssertionError("abort returned")


def _cancelled_from_outside() -> bool:
    """Was this task cancelled? (Otherwise a handler awaited something cancelled, which is answered as an error.)"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _unary_behaviour(method: Method, calls: _OpenCalls) -> Behaviour:
    handler, decode, path = method.handler, method.decode, method.path
    is_coroutine = inspect.iscoroutinefunction(handler)

    async def behave(data: bytes, context: Any) -> bytes:
        call = _UnaryCall(context, calls)
        try:
            reply = handler(decode(data), call)
            if is_coroutine:
                reply = await reply
            elif reply is LATER:
                reply = await call.answer(calls)
            encoded: bytes = reply.SerializeToString()
            return encoded
        except RpcError as raised:
            error = raised
        except asyncio.CancelledError as cancelled:
            if _cancelled_from_outside():
                call.cancel()
                raise
            error = internal_error(path, cancelled)
        except Exception as bug:  # A bug in a handler fails its own call, not the process.
            error = internal_error(path, bug)
        return await _abort(context, error)

    return behave


def _server_stream_behaviour(method: Method, calls: _OpenCalls, limits: Limits) -> Behaviour:
    handler, decode, path = method.handler, method.decode, method.path
    is_coroutine = inspect.iscoroutinefunction(handler)

    async def ask(request: Message, stream: _Stream) -> None:
        try:
            await handler(request, stream)
            stream.finish()
        except RpcError as raised:
            stream.fail(raised)
        except asyncio.CancelledError as cancelled:
            if _cancelled_from_outside():
                raise
            stream.fail(internal_error(path, cancelled))
        except Exception as bug:  # As in `behave`.
            stream.fail(internal_error(path, bug))

    async def behave(data: bytes, context: Any) -> None:
        stream = _Stream(context, limits, calls)
        try:
            request = decode(data)
            handling = asyncio.ensure_future(ask(request, stream)) if is_coroutine else None
            if handling is None:
                handler(request, stream)
        except RpcError as raised:
            await _abort(context, raised)
        except Exception as bug:  # A bug in a handler fails its own call, not the process.
            await _abort(context, internal_error(path, bug))
        await _run_stream(stream, handling, context)

    return behave


def _bidi_behaviour(method: Method, calls: _OpenCalls, limits: Limits) -> Behaviour:
    handler, path = method.handler, method.path

    async def behave(_: Any, context: Any) -> None:
        stream = _Stream(context, limits, calls)
        try:
            stream.receiver = handler(stream)
        except RpcError as raised:
            await _abort(context, raised)
        except Exception as bug:  # A bug in a handler fails its own stream.
            await _abort(context, internal_error(path, bug))
        # Some peers wait for the headers before they send anything.
        await context.send_initial_metadata(())
        reading = asyncio.ensure_future(_read_all(method, stream, context, limits))
        try:
            await _run_stream(stream, reading, context)
        finally:
            assert stream.receiver is not None
            _close_receiver(stream.receiver, path)

    return behave


async def _run_stream(
    stream: _Stream, companion: asyncio.Future[None] | None, context: Any
) -> None:
    """Write until the stream ends; then end COMPANION, the stream's other task, and send the status."""
    error: RpcError | None = None
    stream.open()
    try:
        await stream.write_all()
    except RpcError as raised:
        error = raised
    except asyncio.CancelledError:
        stream.cancel()
        raise
    except aio.InternalError as broken:
        # The connection is lost, and grpc is about to cancel this task. Cancel first, without an error in the log.
        stream.cancel()
        raise asyncio.CancelledError from broken
    finally:
        stream.close()
        if companion is not None and not companion.done():
            companion.cancel()
            await asyncio.wait((companion,))
    if error is not None:
        await _abort(context, error)


async def _read_all(method: Method, stream: _Stream, context: Any, limits: Limits) -> None:
    """Pass every message of the peer to the receiver, one after the other."""
    read, decode, receiver = context.read, method.decode, stream.receiver
    queue_bytes = limits.queue_bytes
    assert receiver is not None
    try:
        while (data := await read()) is not _END and stream.receiving:
            held = receiver.on_message(decode(data))
            if held is not None:
                stream.held = True
                await held
                stream.held = False
                if not stream.receiving:
                    break
            if stream.queued_bytes >= queue_bytes:
                await stream.drained()
        stream.end_receiving(receiver)
    except RpcError as raised:
        stream.fail(raised)
    except aio.BaseError:  # The stream ended while it was read: the writer knows its status.
        logger.debug("stream broke while read method=%s", method.path)
    except asyncio.CancelledError as cancelled:
        if _cancelled_from_outside():
            raise
        stream.fail(internal_error(method.path, cancelled))
    except Exception as bug:  # A bug in a receiver fails its own stream, not the process.
        stream.fail(internal_error(method.path, bug))


def _close_receiver(receiver: Receiver[Any], path: str) -> None:
    try:
        receiver.on_close()
    except Exception:  # The stream has ended: the error can only be logged.
        logger.exception("receiver failed to close method=%s", path)


class _Context:
    """The information in grpc's context, read when a handler asks for it. Mixed into call and stream."""

    __slots__ = ()
    _context: Any

    @property
    def peer(self) -> str:
        kind, _, address = unquote(self._context.peer()).partition(":")
        return address if kind in ("ipv4", "ipv6") else f"{kind}:{address}"

    @property
    def is_secure(self) -> bool:
        return b"ssl" in self._context.auth_context().get("transport_security_type", ())

    @property
    def certificate_names(self) -> Sequence[str]:
        shown = self._context.auth_context()
        found = (*shown.get(_COMMON_NAME, ()), *shown.get(_ALTERNATIVE_NAMES, ()))
        return tuple(name.decode("utf-8", "replace") for name in found)

    @property
    def metadata(self) -> Mapping[str, str]:
        entries = self._context.invocation_metadata() or ()
        return {key: value for key, value in entries if isinstance(value, str)}

    @property
    def deadline_ms(self) -> int | None:
        remaining_s: float | None = self._context.time_remaining()
        return None if remaining_s is None else max(0, int(remaining_s * 1000))

    def add_trailing(self, name: str, value: str) -> None:
        present = self._context.trailing_metadata() or ()
        self._context.set_trailing_metadata((*present, (name, value)))


class _UnaryCall(_Context, Call):
    """A unary call. It has a future only if it is answered later."""

    __slots__ = ("_answer", "_calls", "_context", "_future")

    def __init__(self, context: Any, calls: _OpenCalls) -> None:
        super().__init__()
        self._context = context
        self._calls = calls
        self._answer: Message | RpcError | None = None
        self._future: asyncio.Future[None] | None = None

    def reply(self, message: Message) -> None:
        self._settle(message)

    def fail(self, error: RpcError) -> None:
        self._settle(error)

    def wind_down(self) -> None:
        """Do nothing: the answer may arrive within the grace period."""

    def _settle(self, answer: Message | RpcError) -> None:
        if self.cancelled or isinstance(self._answer, Stopping):
            return
        assert self._answer is None, "a call is answered once"
        self._answer = answer
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def answer(self, calls: _OpenCalls) -> Message:
        """Return the message given to `reply`, or raise the error given to `fail`. Meanwhile CALLS contains it."""
        if self._answer is None:
            self._future = asyncio.get_running_loop().create_future()
            calls.add(self)
            try:
                await self._future
            finally:
                calls.discard(self)
        if isinstance(self._answer, RpcError):
            raise self._answer
        assert self._answer is not None
        return self._answer


class _Stream(_Context, Stream):
    """The outgoing half: a deque of encoded messages, and the end that follows them."""

    __slots__ = (
        "_calls",
        "_context",
        "_drained",
        "_end",
        "_end_told",
        "_ended",
        "_limits",
        "_outgoing",
        "_queued_bytes",
        "_wake",
        "held",
        "receiver",
        "receiving",
    )

    def __init__(self, context: Any, limits: Limits, calls: _OpenCalls) -> None:
        super().__init__()
        self._queued_bytes = 0
        self._context = context
        self._limits = limits
        self._calls = calls
        self._outgoing: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._drained: list[asyncio.Future[None]] = []
        self._ended = False
        self._end: RpcError | None = None
        self.receiver: Receiver[Any] | None = None
        #: Does the receiver still accept messages? A stop ends that.
        self.receiving = True
        #: Is the receiver busy with a message? Then the next message and `on_end` wait.
        self.held = False
        self._end_told = False

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def send(self, message: Message) -> None:
        if self._ended or self.cancelled:
            return
        data = message.SerializeToString()
        self._outgoing.append(data)
        self._queued_bytes += len(data)
        if self._queued_bytes > self._limits.queue_bytes_max:
            self._overflow()
        self._wake_writer()

    def finish(self) -> None:
        self._finish(shutting_down() if self._calls.stopping else None)

    def fail(self, error: RpcError) -> None:
        self._finish(error)

    def _finish(self, end: RpcError | None) -> None:
        if not self._ended:
            self._ended = True
            self._end = end
            self._wake_writer()

    async def drained(self) -> None:
        while self._queued_bytes >= self._limits.queue_bytes and not self.cancelled:
            waiting = asyncio.get_running_loop().create_future()
            self._drained.append(waiting)
            await waiting

    def wind_down(self) -> None:
        """Have the receiver finish what is pending; a stream without one has nothing to wait for."""
        if self.receiver is None:
            self.fail(shutting_down())
        elif self.held:
            self.receiving = False  # The reader calls `on_end` when the receiver is free.
        elif self.receiving and not self._ended:
            try:
                self.end_receiving(self.receiver)
            except RpcError as error:
                self.fail(error)
            except Exception as bug:  # A bug in a receiver fails its own stream.
                self.fail(internal_error(type(self.receiver).__qualname__, bug))

    def end_receiving(self, receiver: Receiver[Any]) -> None:
        """Call `on_end` of RECEIVER, once: no message follows."""
        self.receiving = False
        if not self._end_told:
            self._end_told = True
            receiver.on_end()

    def open(self) -> None:
        """Include the stream in a graceful stop."""
        self._calls.add(self)

    def close(self) -> None:
        """Release everything. The writer has ended."""
        self._calls.discard(self)
        self._ended = True
        self._outgoing.clear()
        self._queued_bytes = 0
        self._release()

    async def write_all(self) -> None:
        """Write the queued messages until the stream ends; raise its error, if any."""
        write, outgoing = self._context.write, self._outgoing
        loop = asyncio.get_running_loop()
        while True:
            while outgoing:
                data = outgoing.popleft()
                await write(data)
                self._queued_bytes -= len(data)
                if self._drained and self._queued_bytes < self._limits.queue_bytes:
                    self._release()
            if self._ended:
                break
            self._wake = loop.create_future()
            await self._wake
        if self._end is not None:
            raise self._end

    def _overflow(self) -> None:
        queued, self._queued_bytes = self._queued_bytes, 0
        self._outgoing.clear()
        self.fail(not_read(queued, self._limits.queue_bytes_max, "queue_bytes_max"))

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _release(self) -> None:
        for waiting in self._drained:
            if not waiting.done():
                waiting.set_result(None)
        self._drained.clear()


class _OpenCalls:
    """Calls that are answered later and streams, for a graceful stop."""

    def __init__(self) -> None:
        self._calls: set[_UnaryCall | _Stream] = set()
        self._emptied: asyncio.Future[None] | None = None
        self.stopping = False

    def add(self, call: _UnaryCall | _Stream) -> None:
        self._calls.add(call)
        if self.stopping:
            call.wind_down()

    def discard(self, call: _UnaryCall | _Stream) -> None:
        self._calls.discard(call)
        if not self._calls and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def wind_down(self) -> None:
        self.stopping = True
        for call in list(self._calls):
            call.wind_down()

    async def emptied(self, timeout_s: float) -> None:
        """Return when nothing is open any more, or after TIMEOUT_S."""
        if self._calls:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)

    def fail_all(self) -> None:
        for call in list(self._calls):
            call.fail(shutting_down())
