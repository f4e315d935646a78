"""The carrier that hangs method tables on `grpc.aio`: the only module of a server that imports grpc.

    carrier = GrpcioCarrier([service.methods()], limits=Limits())
    port = await carrier.start("127.0.0.1", 0)
    await carrier.stop(grace_s=2.0)

grpc runs one task per call. A unary handler is called inline in it; a call that is answered `LATER` waits there for a
future. A stream's task is its writer: it drains a deque, so that replies sent together leave back to back; one
further task per stream reads and calls the receiver. There is no task per message.

With a `certificate` it serves TLS (ALPN h2) and nothing else on its port; the handshakes and the ciphers run on grpc's
threads, outside the interpreter.

A port belongs to one server: SO_REUSEPORT is off, so that a second one fails to start. `stop` is graceful: new calls
are refused, receivers hear `on_end` and may finish what is pending, and whatever is open when the grace is
over fails with ShuttingDown. A stream that ends during a stop ends with ShuttingDown even if it `finish`es.

Costs in CPU time of the server, measured on loopback with the client in another process (2 cores, Python 3.11, grpcio
1.85): a unary call 390 µs, 170 µs of many at once; a message and its answer on an open stream 90 µs; streams of 1 MiB
messages carry 1 GB/s. Nearly all of it is spent in grpc.aio.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

import grpc
import grpc.aio as aio
from google.protobuf.message import Message

from .carrier_errors import internal_error
from .errors import PocketMQError
from .errors_wire import ERROR_KEY, to_wire
from .grpcio_calls import GrpcioStream, OpenCalls, UnaryCall
from .listening import address_of, cannot_listen, check_bindable
from .rpc import LATER, Certificate, Kind, Limits, Method, MethodTable, Receiver

logger = logging.getLogger(__name__)

#: The share of a stop's grace that calls and streams have to end by themselves.
_WIND_DOWN_SHARE: Final = 0.8
#: What `read` returns behind the last message.
_END: Final[object] = getattr(aio, "EOF")  # noqa: B009 (the stubs lack it)

Behaviour = Callable[[Any, Any], Awaitable[Any]]


class GrpcioCarrier:
    """One gRPC server over the methods of TABLES. Its event loop owns it."""

    def __init__(
        self,
        tables: Iterable[MethodTable],
        *,
        limits: Limits | None = None,
        caller: Callable[[str], str] = str,
        certificate: Callable[[], Certificate] | None = None,
    ) -> None:
        """CALLER returns whose connection the one from an address is, where it is not the peer's."""
        self._limits = limits or Limits()
        self._certificate = certificate
        self._methods: dict[str, Method] = {}
        for table in tables:
            for method in table:
                assert method.path not in self._methods, f"two tables serve {method.path}"
                self._methods[method.path] = method
        self._server: aio.Server | None = None
        self._open = OpenCalls(caller)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on HOST and PORT (0: any free one), serve, and return the port; raise ConfigError if that fails."""
        assert self._server is None, "a carrier starts once"
        address = address_of(host, port)
        check_bindable(host, port)  # The operating system's reason is better than grpc's.
        server = aio.server(options=_options(self._limits))
        server.add_generic_rpc_handlers((_Handlers(self._methods, self._open, self._limits),))
        try:
            if self._certificate is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, _credentials(self._certificate))
        except RuntimeError as error:
            raise cannot_listen(host, port, str(error)) from error
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
    """Return credentials that show the CURRENT certificate at each handshake; grpc asks on a thread of its own."""

    def configuration(certificate: Certificate) -> Any:
        return grpc.ssl_server_certificate_configuration([(certificate.key, certificate.chain)])

    shown = current()

    def changed() -> Any:
        nonlocal shown
        certificate = current()
        if certificate is shown:
            return None  # grpc goes on with the one that it has.
        shown = certificate
        return configuration(certificate)

    return grpc.dynamic_ssl_server_credentials(configuration(shown), changed)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
    """Finds the handler of a path for grpc; each is made once."""

    def __init__(self, methods: Mapping[str, Method], calls: OpenCalls, limits: Limits) -> None:
        make = {
            Kind.UNARY: lambda method: grpc.unary_unary_rpc_method_handler(
                _unary_behaviour(method, calls)
            ),
            Kind.SERVER_STREAM: lambda method: grpc.unary_stream_rpc_method_handler(
                _server_stream_behaviour(method, calls, limits)
            ),
            Kind.BIDI: lambda method: grpc.stream_stream_rpc_method_handler(
                _bidi_behaviour(method, calls, limits)
            ),
        }
        self._handlers = {path: make[method.kind](method) for path, method in methods.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


# ---------------------------------------------------------------- behaviours


async def _abort(context: Any, error: PocketMQError) -> NoReturn:
    """End the call with the status of ERROR and ERROR itself in the trailing metadata."""
    wire = to_wire(error)
    await context.abort(
        grpc.StatusCode[error.status],
        wire.message,
        trailing_metadata=((ERROR_KEY, wire.SerializeToString()),),
    )
    raise AssertionError("abort returned")


def _cancelled_from_outside() -> bool:
    """Was this task cancelled, or did a handler await something that was? The latter is an answer to give."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _unary_behaviour(method: Method, calls: OpenCalls) -> Behaviour:
    handler, decode, path = method.handler, method.decode, method.path
    is_coroutine = inspect.iscoroutinefunction(handler)

    async def behave(data: bytes, context: Any) -> bytes:
        call = UnaryCall(context, calls)
        try:
            reply = handler(decode(data), call)
            if is_coroutine:
                reply = await reply
            elif reply is LATER:
                reply = await call.answer(calls)
            encoded: bytes = reply.SerializeToString()
            return encoded
        except PocketMQError as raised:
            error = raised
        except asyncio.CancelledError as cancelled:
            if _cancelled_from_outside():
                call.cancel()
                raise
            error = internal_error(path, cancelled)
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            error = internal_error(path, bug)
        return await _abort(context, error)

    return behave


def _server_stream_behaviour(method: Method, calls: OpenCalls, limits: Limits) -> Behaviour:
    handler, decode, path = method.handler, method.decode, method.path
    is_coroutine = inspect.iscoroutinefunction(handler)

    async def ask(request: Message, stream: GrpcioStream) -> None:
        try:
            await handler(request, stream)
            stream.finish()
        except PocketMQError as raised:
            stream.fail(raised)
        except asyncio.CancelledError as cancelled:
            if _cancelled_from_outside():
                raise
            stream.fail(internal_error(path, cancelled))
        except Exception as bug:  # The edge: as in `behave`.
            stream.fail(internal_error(path, bug))

    async def behave(data: bytes, context: Any) -> None:
        stream = GrpcioStream(context, limits, calls)
        try:
            request = decode(data)
            handling = asyncio.ensure_future(ask(request, stream)) if is_coroutine else None
            if handling is None:
                handler(request, stream)
        except PocketMQError as raised:
            await _abort(context, raised)
        except Exception as bug:  # The edge: a handler's bug costs its own call, not the process.
            await _abort(context, internal_error(path, bug))
        await _run_stream(stream, handling, context)

    return behave


def _bidi_behaviour(method: Method, calls: OpenCalls, limits: Limits) -> Behaviour:
    handler, path = method.handler, method.path

    async def behave(_: Any, context: Any) -> None:
        stream = GrpcioStream(context, limits, calls)
        try:
            stream.receiver = handler(stream)
        except PocketMQError as raised:
            await _abort(context, raised)
        except Exception as bug:  # The edge: a handler's bug costs its own stream.
            await _abort(context, internal_error(path, bug))
        # Some peers wait for the headers before they say anything.
        await context.send_initial_metadata(())
        reading = asyncio.ensure_future(_read_all(method, stream, context, limits))
        try:
            await _run_stream(stream, reading, context)
        finally:
            assert stream.receiver is not None
            _close_receiver(stream.receiver, path)

    return behave


async def _run_stream(
    stream: GrpcioStream, companion: asyncio.Future[None] | None, context: Any
) -> None:
    """Write until the stream ends; then end COMPANION, the stream's other task, and send the status."""
    error: PocketMQError | None = None
    stream.open()
    try:
        await stream.write_all()
    except PocketMQError as raised:
        error = raised
    except asyncio.CancelledError:
        stream.cancel()
        raise
    except aio.InternalError as broken:
        # The connection is gone, and grpc is about to cancel this task: be quicker, and as quiet.
        stream.cancel()
        raise asyncio.CancelledError from broken
    finally:
        stream.close()
        if companion is not None and not companion.done():
            companion.cancel()
            await asyncio.wait((companion,))
    if error is not None:
        await _abort(context, error)


async def _read_all(method: Method, stream: GrpcioStream, context: Any, limits: Limits) -> None:
    """Hand every message of the peer to the receiver, one after the other."""
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
    except PocketMQError as raised:
        stream.fail(raised)
    except aio.BaseError:  # The stream has ended while it was read: its writer knows how.
        logger.debug("stream broke while read method=%s", method.path)
    except asyncio.CancelledError as cancelled:
        if _cancelled_from_outside():
            raise
        stream.fail(internal_error(method.path, cancelled))
    except Exception as bug:  # The edge: a receiver's bug costs its own stream, not the process.
        stream.fail(internal_error(method.path, bug))


def _close_receiver(receiver: Receiver[Any], path: str) -> None:
    try:
        receiver.on_close()
    except Exception:  # The edge: the stream is over, nobody else can be told.
        logger.exception("receiver failed to close method=%s", path)
