"""The grpc.aio carrier over real loopback connections: answers, errors, streams, backpressure, stopping."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest

from pocketmq.broker.certificates import development_certificate
from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.errors import (
    ConfigError,
    Disconnected,
    InvalidArgument,
    MessageTooLarge,
    NotServed,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    ShuttingDown,
)
from pocketmq.proto.errors_wire import from_rpc_error
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import (
    LATER,
    Call,
    Certificate,
    Limits,
    MethodTable,
    Stream,
    bidi,
    server_stream,
    service,
    unary,
)

RUN, REPLY = pb.ProduceRun, pb.ProduceReply
EOF = getattr(grpc.aio, "EOF")  # noqa: B009 (the stubs lack it)


class Echo:
    """A receiver that answers each run with its number, and notes what it hears."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.heard: list[str] = []
        self.closed = asyncio.Event()
        self.hold: Callable[[pb.ProduceRun], Awaitable[None]] | None = None

    def on_message(self, message: pb.ProduceRun) -> Awaitable[None] | None:
        self.heard.append(f"run {message.run_id}")
        if message.topic == "bug":
            raise ZeroDivisionError("a secret")
        if message.topic == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        self.stream.send(REPLY(run_id=message.run_id, store_host="x" * message.queue))
        return self.hold(message) if self.hold else None

    def on_end(self) -> None:
        self.heard.append("end")
        self.stream.finish()

    def on_close(self) -> None:
        self.heard.append("close")
        self.closed.set()


class EchoService:
    """One method of each kind. What it was called with stays readable."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.streams: list[Stream] = []
        self.receivers: list[Echo] = []
        self.arrived = asyncio.Event()
        self.cancelled = asyncio.Event()

    def methods(self) -> MethodTable:
        return service(
            "test.Echo",
            {
                "Plain": unary(RUN, REPLY, self.plain),
                "Slow": unary(RUN, REPLY, self.slow),
                "Count": server_stream(RUN, REPLY, self.count),
                "CountSlowly": server_stream(RUN, REPLY, self.count_slowly),
                "Endless": server_stream(RUN, REPLY, self.endless),
                "Echo": bidi(RUN, REPLY, self.echo),
            },
        )

    def plain(self, request: pb.ProduceRun, call: Call) -> Any:
        self.calls.append(call)
        call.on_cancel(self.cancelled.set)
        self.arrived.set()
        match request.topic:
            case "bug":
                raise ZeroDivisionError("a secret")
            case "refuse":
                raise QueueNotFound("no queue 9", queue=9)
            case "later":
                return LATER
            case "at once":
                call.reply(REPLY(run_id=-1))
                return LATER
            case "context":
                text = f"{call.peer} {call.metadata.get('colour')} {call.deadline_ms}"
                return REPLY(store_host=text)
            case "nothing":
                return None
        return REPLY(run_id=request.run_id)

    async def slow(self, request: pb.ProduceRun, call: Call) -> pb.ProduceReply:
        await asyncio.sleep(0)
        if request.topic == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        if request.topic == "cancelled":
            raise asyncio.CancelledError
        return REPLY(run_id=request.run_id)

    def count(self, request: pb.ProduceRun, stream: Stream) -> None:
        if request.topic == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        for number in range(request.queue):
            stream.send(REPLY(run_id=number))
        if request.topic == "fail":
            stream.fail(QueueNotFound("no queue 9", queue=9))
        stream.finish()

    async def count_slowly(self, request: pb.ProduceRun, stream: Stream) -> None:
        for number in range(request.queue):
            stream.send(REPLY(run_id=number, store_host="x" * 100_000))
            await stream.drained()
        if request.topic == "bug":
            raise ZeroDivisionError("a secret")
        if request.topic == "cancelled":
            raise asyncio.CancelledError

    def endless(self, request: pb.ProduceRun, stream: Stream) -> None:
        self.streams.append(stream)
        stream.on_cancel(self.cancelled.set)
        self.arrived.set()

    def echo(self, stream: Stream) -> Echo:
        if stream.metadata.get("colour") == "refuse":
            raise QueueNotFound("no queue 9", queue=9)
        self.receivers.append(Echo(stream))
        self.arrived.set()
        return self.receivers[-1]


class Peer:
    """The client's side: raw calls on a channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def ask(self, method: str, run: Any = None, **options: Any) -> pb.ProduceReply:
        """Call a unary METHOD; raise what `from_rpc_error` makes of a failure."""
        call = self.channel.unary_unary(f"/test.Echo/{method}", _encode, REPLY.FromString)
        try:
            reply: pb.ProduceReply = await call(RUN() if run is None else run, **options)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return reply

    async def stream(self, method: str, run: Any) -> list[int]:
        """Call a streaming METHOD and return all run ids of the answers."""
        call = self.channel.unary_stream(f"/test.Echo/{method}", _encode, REPLY.FromString)
        try:
            return [reply.run_id async for reply in call(run)]
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    def talk(self, **options: Any) -> Any:
        """Open the bidirectional stream."""
        return self.channel.stream_stream("/test.Echo/Echo", _encode, REPLY.FromString)(**options)


def _encode(message: Any) -> bytes:
    """Encode a message; bytes travel as they are."""
    return message if isinstance(message, bytes) else message.SerializeToString()


@asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[tuple[EchoService, Peer]]:
    """Serve an EchoService on a free port and connect to it."""
    echo = EchoService()
    carrier = GrpcioCarrier([echo.methods()], limits=limits)
    port = await carrier.start()
    try:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            yield echo, Peer(channel)
    finally:
        await carrier.stop(grace_s=0)


async def failure(call: Any) -> PocketMQError:
    """Return the error with which an open CALL ends."""
    try:
        while await call.read() is not EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the call ended well")


# ---------------------------------------------------------------- unary


@pytest.mark.parametrize("method", ["Plain", "Slow"])
async def test_a_unary_call_is_answered(method: str) -> None:
    async with serving() as (_, peer):
        assert (await peer.ask(method, RUN(run_id=7))).run_id == 7


@pytest.mark.parametrize("method", ["Plain", "Slow"])
async def test_a_refusal_arrives_as_the_class_that_was_raised(method: str) -> None:
    async with serving() as (_, peer):
        with pytest.raises(QueueNotFound, match="no queue 9") as raised:
            await peer.ask(method, RUN(topic="refuse"))
    assert raised.value.details == {"queue": "9"}


@pytest.mark.parametrize("topic", ["bug", "nothing"])
async def test_a_bug_costs_its_call_and_tells_nothing(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (_, peer):
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(PocketMQError, match=r"^internal error in /test\.Echo/Plain$"),
        ):
            await peer.ask("Plain", RUN(topic=topic))
        assert (await peer.ask("Plain", RUN(run_id=1))).run_id == 1
    assert "Traceback" in caplog.text
    assert "/test.Echo/Plain" in caplog.text


async def test_bytes_that_do_not_decode_are_refused_with_method_and_type() -> None:
    async with serving() as (echo, peer):
        with pytest.raises(InvalidArgument, match=r"/test.Echo/Plain .* pocketmq.v1.ProduceRun"):
            await peer.ask("Plain", b"\xff\xff\xff")
        assert not echo.calls


async def test_an_unknown_method_is_not_served() -> None:
    async with serving() as (_, peer):
        with pytest.raises(NotServed):
            await peer.ask("Dance")


async def test_a_call_may_be_answered_later() -> None:
    async with serving() as (echo, peer):
        asked = asyncio.ensure_future(peer.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        echo.calls[0].reply(REPLY(run_id=3))
        assert (await asked).run_id == 3


async def test_what_a_handler_adds_follows_its_answer() -> None:
    async with serving() as (echo, peer):
        call = peer.channel.unary_unary("/test.Echo/Plain", _encode, REPLY.FromString)(
            RUN(topic="later")
        )
        await echo.arrived.wait()
        echo.calls[0].add_trailing("x-durable", "memory")
        echo.calls[0].add_trailing("x-colour", "red")
        echo.calls[0].reply(REPLY(run_id=3))

        assert (await call).run_id == 3
        assert dict(await call.trailing_metadata()) == {"x-durable": "memory", "x-colour": "red"}


async def test_a_call_may_be_failed_later() -> None:
    async with serving() as (echo, peer):
        asked = asyncio.ensure_future(peer.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        echo.calls[0].fail(QueueNotFound("gone"))
        with pytest.raises(QueueNotFound, match="gone"):
            await asked


async def test_later_may_come_before_the_handler_returns() -> None:
    async with serving() as (_, peer):
        assert (await peer.ask("Plain", RUN(topic="at once"))).run_id == -1


async def test_a_caller_that_goes_is_noticed_and_its_answer_dropped() -> None:
    async with serving() as (echo, peer):
        asked = asyncio.ensure_future(peer.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        asked.cancel()
        await echo.cancelled.wait()
        assert echo.calls[0].cancelled
        echo.calls[0].reply(REPLY())
        assert (await peer.ask("Plain", RUN(run_id=1))).run_id == 1


async def test_a_deadline_that_passes_cancels_the_call() -> None:
    async with serving() as (echo, peer):
        with pytest.raises(PocketMQError):
            await peer.ask("Plain", RUN(topic="later"), timeout=0.05)
        await echo.cancelled.wait()


async def test_the_context_tells_peer_metadata_and_deadline() -> None:
    async with serving() as (_, peer):
        metadata = (("colour", "red"), ("colour-bin", b"\xff"))
        reply = await peer.ask("Plain", RUN(topic="context"), metadata=metadata, timeout=60)
        address, colour, deadline_ms = reply.store_host.split()
        assert address.startswith("127.0.0.1:")
        assert colour == "red"
        assert 50_000 < int(deadline_ms) < 61_000  # grpc rounds up

        reply = await peer.ask("Plain", RUN(topic="context"))
        assert reply.store_host.endswith(" None None")


async def test_a_request_beyond_the_bound_is_refused_and_the_connection_lives() -> None:
    async with serving(Limits(receive_bytes_max=10_000)) as (_, peer):
        with pytest.raises(MessageTooLarge, match="10000"):
            await peer.ask("Plain", RUN(records=bytes(20_000)))
        assert (await peer.ask("Plain", RUN(run_id=1))).run_id == 1


# ---------------------------------------------------------------- server streams


@pytest.mark.parametrize("method", ["Count", "CountSlowly"])
async def test_a_server_stream_keeps_the_order_and_ends(method: str) -> None:
    async with serving(Limits(queue_bytes=50_000)) as (_, peer):
        assert await peer.stream(method, RUN(queue=20)) == list(range(20))


@pytest.mark.parametrize("topic", ["refuse", "fail"])
async def test_a_server_stream_fails_with_its_error(topic: str) -> None:
    async with serving() as (_, peer):
        with pytest.raises(QueueNotFound):
            await peer.stream("Count", RUN(queue=3, topic=topic))


async def test_a_bug_in_a_server_stream_costs_that_stream() -> None:
    async with serving() as (_, peer):
        with pytest.raises(PocketMQError, match=r"internal error in /test\.Echo/CountSlowly"):
            await peer.stream("CountSlowly", RUN(queue=3, topic="bug"))
        with pytest.raises(InvalidArgument, match=r"pocketmq\.v1\.ProduceRun"):
            await peer.stream("Count", b"\xff")


async def test_a_handler_that_awaits_what_was_cancelled_is_a_bug_and_not_silence() -> None:
    async with serving() as (echo, peer):
        with pytest.raises(PocketMQError, match="internal error"):
            await peer.ask("Slow", RUN(topic="cancelled"))
        with pytest.raises(PocketMQError, match="internal error"):
            await peer.stream("CountSlowly", RUN(queue=3, topic="cancelled"))

        async def hold(message: pb.ProduceRun) -> None:
            raise asyncio.CancelledError

        call = peer.talk()
        await echo.arrived.wait()
        echo.receivers[0].hold = hold
        await call.write(RUN(run_id=1))
        assert "internal error" in (await failure(call)).message


async def test_a_server_stream_notices_that_its_peer_goes() -> None:
    async with serving() as (echo, peer):
        listening = asyncio.ensure_future(peer.stream("Endless", RUN()))
        await echo.arrived.wait()
        listening.cancel()
        await echo.cancelled.wait()
        echo.streams[0].send(REPLY())
        await echo.streams[0].drained()


async def test_a_queue_that_nobody_reads_fails_the_stream_at_its_bound() -> None:
    async with serving(Limits(queue_bytes=1_000, queue_bytes_max=1_000_000)) as (echo, peer):
        call = peer.channel.unary_stream("/test.Echo/Endless", _encode, REPLY.FromString)(RUN())
        await echo.arrived.wait()
        for _ in range(11):
            echo.streams[0].send(REPLY(store_host="x" * 100_000))
        assert echo.streams[0].queued_bytes == 0
        error = await failure(call)
    assert type(error) is Overloaded
    assert error.details["limit"] == "1000000"


# ---------------------------------------------------------------- bidirectional streams


async def test_a_talk_answers_every_message_and_ends_with_it() -> None:
    async with serving() as (echo, peer):
        call = peer.talk()
        for number in range(50):
            await call.write(RUN(run_id=number))
        await call.done_writing()

        assert [reply.run_id async for reply in call] == list(range(50))
        await echo.receivers[0].closed.wait()
    assert echo.receivers[0].heard[-3:] == ["run 49", "end", "close"]
    assert not echo.receivers[0].stream.cancelled


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (RUN(topic="refuse"), QueueNotFound),
        (RUN(topic="bug"), PocketMQError),
        (b"\xff\xff", InvalidArgument),
    ],
    ids=["refusal", "bug", "garbage"],
)
async def test_a_bad_message_fails_the_talk_after_the_earlier_answers(
    message: Any, kind: type[PocketMQError]
) -> None:
    async with serving() as (echo, peer):
        call = peer.talk()
        await call.write(RUN(run_id=1))
        await call.write(message)

        assert (await call.read()).run_id == 1
        assert type(await failure(call)) is kind
        await echo.receivers[0].closed.wait()
    assert echo.receivers[0].heard.count("close") == 1


async def test_a_talk_may_be_refused_at_once() -> None:
    async with serving() as (echo, peer):
        call = peer.talk(metadata=(("colour", "refuse"),))
        assert type(await failure(call)) is QueueNotFound
    assert not echo.receivers


async def test_a_talk_that_is_broken_off_closes_its_receiver_once() -> None:
    async with serving() as (echo, peer):
        call = peer.talk()
        await call.write(RUN(run_id=1))
        await call.read()
        call.cancel()
        await echo.receivers[0].closed.wait()
        receiver = echo.receivers[0]
        receiver.stream.send(REPLY())
        receiver.stream.finish()
    assert receiver.heard.count("close") == 1
    assert receiver.heard[-1] == "close"


async def test_the_server_may_end_a_talk_while_the_peer_still_writes() -> None:
    async with serving() as (echo, peer):
        call = peer.talk()
        await call.write(RUN(run_id=1))
        await call.read()
        echo.receivers[0].stream.finish()
        assert await call.read() is EOF
        await echo.receivers[0].closed.wait()
    assert echo.receivers[0].heard == ["run 1", "close"]


async def test_a_pending_awaitable_holds_back_the_next_message() -> None:
    async with serving() as (echo, peer):
        call = peer.talk()
        await echo.arrived.wait()
        receiver, free = echo.receivers[0], asyncio.Event()

        async def hold(message: pb.ProduceRun) -> None:
            await free.wait()

        receiver.hold = hold
        for number in (1, 2, 3):
            await call.write(RUN(run_id=number))
        await call.read()
        assert receiver.heard == ["run 1"]
        free.set()
        assert (await call.read()).run_id == 2
        call.cancel()
        await receiver.closed.wait()


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    async with serving(Limits(queue_bytes=100_000)) as (echo, peer):
        call = peer.talk()

        async def write_all() -> None:
            for number in range(200):
                await call.write(RUN(run_id=number, queue=100_000))
            await call.done_writing()

        writing = asyncio.ensure_future(write_all())
        await echo.arrived.wait()
        stream, peak = echo.receivers[0].stream, 0
        got = []
        while (reply := await call.read()) is not EOF:
            got.append(reply.run_id)
            peak = max(peak, stream.queued_bytes)
        await writing
    assert got == list(range(200))
    assert peak <= 300_000


async def test_streams_that_end_in_any_way_leave_no_task_behind() -> None:
    async with serving() as (echo, peer):
        await peer.ask("Plain")
        before = len(asyncio.all_tasks())
        calls = [peer.talk() for _ in range(30)]
        for call in calls:
            await call.write(RUN(run_id=1))
            await call.read()
        for call in calls[:10]:
            call.cancel()
        for call in calls[10:20]:
            await call.write(RUN(topic="bug"))
            await failure(call)
        for call in calls[20:]:
            await call.done_writing()
            assert await call.read() is EOF
        for receiver in echo.receivers:
            await receiver.closed.wait()
        assert await peer.stream("Count", RUN(queue=1)) == [0]
        assert len(asyncio.all_tasks()) <= before + 1


# ---------------------------------------------------------------- start and stop


async def test_two_servers_cannot_share_a_port() -> None:
    first, second = GrpcioCarrier([]), GrpcioCarrier([])
    port = await first.start("127.0.0.1", 0)

    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use; stop"):
        await second.start("127.0.0.1", port)

    await first.stop(0)
    assert await second.start("127.0.0.1", port) == port
    await second.stop(0)


@pytest.mark.parametrize(
    ("host", "port"),
    [("no-such-host.invalid", 1), ("203.0.113.1", 0), ("127.0.0.1", 70_000)],
    ids=["unknown host", "foreign address", "impossible port"],
)
async def test_an_address_that_cannot_be_listened_on_is_named(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: "):
        await GrpcioCarrier([]).start(host, port)


async def test_a_stop_lets_pending_work_finish_and_tells_why() -> None:
    echo = EchoService()
    carrier = GrpcioCarrier([echo.methods()])
    port = await carrier.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        peer = Peer(channel)
        asked = asyncio.ensure_future(peer.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        call = peer.talk()
        await call.write(RUN(run_id=1))
        await call.read()

        stopping = asyncio.ensure_future(carrier.stop(grace_s=30))
        assert type(await failure(call)) is ShuttingDown
        assert echo.receivers[0].heard[-2:] == ["end", "close"]
        echo.calls[0].reply(REPLY(run_id=5))

        assert (await asked).run_id == 5
        await stopping


async def test_a_stop_fails_what_does_not_end_in_the_grace() -> None:
    echo = EchoService()
    carrier = GrpcioCarrier([echo.methods()])
    port = await carrier.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        peer = Peer(channel)
        asked = asyncio.ensure_future(peer.ask("Plain", RUN(topic="later")))
        await echo.arrived.wait()
        await carrier.stop(grace_s=0.1)
        with pytest.raises(ShuttingDown):
            await asked
        echo.calls[0].reply(REPLY())

        with pytest.raises(Disconnected):
            await peer.ask("Plain")


async def test_a_port_of_a_plain_socket_is_refused_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="Address already in use"):
            await GrpcioCarrier([]).start("127.0.0.1", port)


# ---------------------------------------------------------------- TLS


@asynccontextmanager
async def secured(
    shown: list[Certificate], **limits: int
) -> AsyncIterator[tuple[EchoService, int]]:
    """Serve over TLS with the last certificate in SHOWN."""
    echo = EchoService()
    carrier = GrpcioCarrier(
        [echo.methods()], limits=Limits(**limits), certificate=lambda: shown[-1]
    )
    port = await carrier.start()
    try:
        yield echo, port
    finally:
        await carrier.stop(0.1)


def certificate() -> Certificate:
    return development_certificate([], datetime.now(UTC))


async def test_a_carrier_with_a_certificate_speaks_tls() -> None:
    shown = [certificate()]
    async with secured(shown) as (_, port):
        credentials = grpc.ssl_channel_credentials(shown[0].chain)
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            call = channel.unary_unary("/test.Echo/Plain", RUN.SerializeToString, REPLY.FromString)
            assert (await call(RUN(run_id=7))).run_id == 7


async def test_a_new_certificate_is_shown_from_the_next_handshake_on() -> None:
    shown = [certificate()]
    async with secured(shown) as (_, port):
        for _ in range(2):
            for _ in range(2):
                found = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
                assert found.encode() == shown[-1].chain
            shown.append(certificate())


async def test_a_handshake_that_takes_too_long_is_broken_off() -> None:
    async with secured([certificate()], handshake_timeout_ms=100) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes((0x16, 3, 1)))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_carrier_behind_a_relay_tells_whose_call_it_is() -> None:
    echo = EchoService()
    carrier = GrpcioCarrier([echo.methods()], caller=lambda peer: f"caller of {peer}")
    port = await carrier.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        channel: Any = opened
        unary = channel.unary_unary("/test.Echo/Plain", RUN.SerializeToString, REPLY.FromString)
        reply = await unary(RUN(topic="context"))
        assert reply.store_host.startswith("caller of 127.0.0.1:")
        stream = channel.stream_stream("/test.Echo/Echo", RUN.SerializeToString, REPLY.FromString)()
        await stream.write(RUN(run_id=1))
        await stream.read()
        assert echo.receivers[0].stream.peer.startswith("caller of 127.0.0.1:")
    await carrier.stop(0.1)
