"""`bench v2` and `bench unary`: official clients of Apache RocketMQ with PocketMQ on loopback, 128 B.

`v2` runs a client program of tests/interop/official, built as for the tests: single sends with 64 in flight, then one
after the other; then a simple consumer that receives 32 and acknowledges each, with one thread and with eight. It also
calls the handlers directly, without a carrier, to show how much of the time is theirs. That is CPU time of the event
loop's thread, with replies serialized.

`unary` measures the server's CPU time per SendMessage, with the built-in HTTP/2 server and with grpcio. A bare socket
sends the calls as an official client does, 64 in flight on one connection, then one after the other.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from google.protobuf.message import Message

from ...broker.broker import Broker, Network
from ...broker.config import BrokerConfig
from ...client import Admin
from ...proto.carriers import GRPC_CHOICES
from ...proto.clock import SystemClock
from ...proto.errors import ConfigError, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as v1, rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, CallContext, Limits, MethodTable, RpcError, Stream
from ...proto.rpc.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    FrameReader,
    frame,
    settings,
    window_update,
)
from ...proto.rpc.hpack import FieldEncoder
from ...proto.rpc.messages import PREFIX_BYTES, with_prefix
from ...store.config import StoreConfig
from ...store.os_disk import OsDisk
from ..server_process import ServerProcess, cpu_seconds
from .measure import LANGUAGES, BenchConditions, Figure, seconds_of
from .servers import TOPIC, server_with_topic

_IN_FLIGHT: Final = 64
_HANDLED: Final = 4_096
#: Of Apache's own broker and proxy with its Java client, on the machine that the aims were set on.
_APACHE: Final = {
    "sends a second, 64 in flight": 4_000,
    "send, one in flight, p99 ms": 9.2,
    "receive 32 + ack each, 1 thread": 3_300,
    "receive 32 + ack each, 8 threads": 6_400,
}


def official(conditions: BenchConditions) -> Figure:
    """Measure the official client that is asked for, or the first that can be had."""
    costs_us = handler_costs_us(conditions.folder, _HANDLED)
    with server_with_topic(conditions.folder) as server:
        with Admin(server.nameserver) as admin:
            admin.create_group("readers")
        with OfficialClient(str(server.ready["broker"]), conditions.client) as client:
            return _figure(client, server, conditions.seconds, costs_us)


def _figure(
    client: OfficialClient, server: ServerProcess, seconds: float, costs_us: dict[str, float]
) -> Figure:
    client("producer", name="producer", topics=[TOPIC])
    _storm(client, 500, _IN_FLIGHT)  # Connections, and code that runs first.
    figure = Figure(
        name="v2",
        what=f"the official client ({client.name}), {BODY_BYTES} B, {_IN_FLIGHT} single sends in flight",
    )
    probe_s, _ = _storm(client, 500, _IN_FLIGHT)
    count = max(500, int(500 / probe_s * seconds))
    server_before, client_before = server.cpu_seconds(), cpu_seconds(client.pid)
    taken_s, _ = _storm(client, count, _IN_FLIGHT)
    figure.server_cpu_seconds = server.cpu_seconds() - server_before
    figure.client_cpu_seconds = cpu_seconds(client.pid) - client_before
    figure.server_rss_bytes = server.rss_bytes()
    figure.add_rate(count, count * BODY_BYTES, taken_s)
    alone_before = server.cpu_seconds()
    _, one_by_one_us = _storm(client, max(200, count // 10), 1)
    alone_us = (server.cpu_seconds() - alone_before) / len(one_by_one_us) * 1e6
    figure.add_latencies([cost / 1e6 for cost in one_by_one_us])
    client(
        "simple",
        name="consumer",
        topic=TOPIC,
        group="readers",
        filter="tag",
        expression="*",
        await_s=8,
    )
    drains = {threads: _drain(client, count * 2 // 5, threads) for threads in (1, 8)}
    _tell(figure, count, drains, costs_us)
    together_us = figure.facts["server_cpu_us_per_send"]
    figure.facts["server_cpu_us_per_send_alone"] = alone_us
    figure.notes.append(
        f"server time of a send: {together_us:.0f} µs with {_IN_FLIGHT} in flight, {alone_us:.0f} µs alone;"
        " beside grpcio's: bench unary"
    )
    return figure


def _storm(client: OfficialClient, count: int, in_flight: int) -> tuple[float, list[float]]:
    found = client(
        "storm",
        client="producer",
        topic=TOPIC,
        body="x",
        size=BODY_BYTES,
        count=count,
        in_flight=in_flight,
    )
    return float(found["seconds"]), list(found["costs_us"])


def _drain(client: OfficialClient, count: int, threads: int) -> float:
    """Return messages a second."""
    found = client("drain", client="consumer", count=count, batch=BATCH, threads=threads)
    return count / float(found["seconds"])


def _tell(figure: Figure, count: int, drains: dict[int, float], costs_us: dict[str, float]) -> None:
    assert figure.messages_per_second is not None
    assert figure.p99_ms is not None
    measured = dict(
        zip(
            _APACHE,
            (figure.messages_per_second, figure.p99_ms, drains[1], drains[8]),
            strict=True,
        )
    )
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "server_cpu_us_per_send": (figure.server_cpu_seconds or 0.0) / count * 1e6,
        **{f"receive_and_ack_per_second_{threads}": rate for threads, rate in drains.items()},
        **{f"{name}_us": cost for name, cost in costs_us.items()},
    }
    figure.aim = (figure.messages_per_second, _APACHE["sends a second, 64 in flight"], True)
    figure.notes = [
        *(
            f"{name}: {value:,.1f} (Apache with its Java client: {_APACHE[name]:,})"
            for name, value in measured.items()
        ),
        *(
            f"{name} without a carrier: {cost:.1f} µs, aim ≤ {AIMS_US[name]:.0f}"
            for name, cost in costs_us.items()
        ),
    ]


# ---------------------------------------------------------------- an official client of Apache RocketMQ


_PROGRAMS: Final = Path(__file__).resolve().parents[2] / "tests/interop/official/programs.py"


class OfficialClient:
    """The program of LANGUAGE ("": the first one that can be had), against ENDPOINTS."""

    def __init__(self, endpoints: str, language: str = "") -> None:
        programs = _programs()
        program = programs.PROGRAMS[language or _first(programs)]
        if program.missing():
            raise ConfigError(
                f"the official {language} client needs {', '.join(program.missing())}: install it, or name another",
                field="client",
            )
        #: Language, package and version.
        self.name = f"{program.name}, {program.client}"
        try:
            command = program.ready()
        except programs.BuildFailed as error:
            raise ConfigError(
                f"the official {program.name} client was not built: {error}", field="client"
            ) from error
        self._process = subprocess.Popen(
            [*command, endpoints],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            **programs.surroundings(),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have the program DO something, and return its reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"id": 1, "do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if not line.startswith('{"'):  # Some clients print of their own.
                continue
            found: dict[str, Any] = json.loads(line)
            if "reply" in found:
                reply: dict[str, Any] = found["reply"]
                return reply
            if "error" in found:
                raise PocketMQError(f"{do} of the official client failed: {found['error']['text']}")
        raise PocketMQError(f"the official client ended during {do}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _programs() -> ModuleType:
    if not _PROGRAMS.exists():
        raise ConfigError(
            f"the programs of official clients lie in a checkout of PocketMQ, and {_PROGRAMS} is not there",
            field="client",
        )
    name = "pocketmq_official_programs"
    spec = importlib.util.spec_from_file_location(name, _PROGRAMS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look up the module that they are in.
    spec.loader.exec_module(module)
    return module


def _first(programs: ModuleType) -> str:
    return next(name for name in LANGUAGES if not programs.PROGRAMS[name].missing())


# ---------------------------------------------------------------- what apache.rocketmq.v2 costs us


BODY_BYTES: Final = 128
BATCH: Final = 32
_TOPIC: Final = "bench"
_GROUP: Final = "readers"
_TOGETHER: Final = 64
#: The aims: µs a SendMessage, a message of a ReceiveMessage of 32, an AckMessage.
AIMS_US: Final = {"SendMessage": 60.0, "ReceiveMessage": 25.0, "AckMessage": 20.0}
#: What Apache's Java client sends with every call.
_METADATA: Final = {
    "x-mq-client-id": "bench@1@1@1",
    "x-mq-language": "JAVA",
    "x-mq-client-version": "5.2.0",
    "x-mq-protocol": "v2",
}


class _Tables:
    """A carrier that carries nothing: it keeps the handlers that it should serve."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[..., Any]] = {}

    def __call__(self, tables: Iterable[MethodTable], *, limits: Limits) -> _Tables:
        self.handlers = {
            method.path.rpartition("/")[2] if method.path.startswith("/apache") else method.path: (
                method.handler
            )
            for table in tables
            for method in table
        }
        return self

    async def start(self, host: str, port: int) -> int:
        return port or 1

    async def stop(self, grace_s: float) -> None:
        return None


class _Context(CallContext):
    """A caller that is always there."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[bytes] = []
        self.over = asyncio.Event()

    @property
    def peer(self) -> str:
        return "127.0.0.1:1"

    @property
    def metadata(self) -> Mapping[str, str]:
        return _METADATA

    @property
    def deadline_ms(self) -> int | None:
        return 30_000

    def fail(self, error: RpcError) -> None:
        raise error

    def add_trailing(self, name: str, value: str) -> None:
        return None


class _Call(_Context, Call):
    def reply(self, message: Message) -> None:
        self.answered.append(message.SerializeToString())
        self.over.set()


class _Stream(_Context, Stream):
    @property
    def queued_bytes(self) -> int:
        return 0

    def send(self, message: Message) -> None:
        self.answered.append(message.SerializeToString())

    def finish(self) -> None:
        self.over.set()

    async def drained(self) -> None:
        return None


def handler_costs_us(folder: Path, messages: int) -> dict[str, float]:
    """Return µs of processor time by method, measured with MESSAGES; of ReceiveMessage a message."""
    return asyncio.run(_measured(folder, messages))


async def _measured(folder: Path, messages: int) -> dict[str, float]:
    tables = _Tables()
    broker = Broker.build(
        BrokerConfig(port=0, nameservers=()),
        StoreConfig(path=str(folder / "handlers")),
        disk=OsDisk(),
        clock=SystemClock(),
        network=Network(make_carrier=tables),
    )
    await broker.start()
    try:
        await _prepare(tables)
        await _phase(tables, "SendMessage", _sends(_TOGETHER))  # What runs first is slow.
        sends = await _phase(tables, "SendMessage", _sends(messages))
        found: list[v2.Message] = []
        seconds = 0.0
        while len(found) < messages:
            seconds += await _receive(tables, found)
        acks = await _phase(tables, "AckMessage", [_ack(message) for message in found])
    finally:
        await broker.stop()
    each = {"SendMessage": sends / messages, "ReceiveMessage": seconds / len(found)}
    return {name: cost * 1e6 for name, cost in {**each, "AckMessage": acks / len(found)}.items()}


async def _prepare(tables: _Tables) -> None:
    topic = v1.TopicConfig(name=_TOPIC, read_queues=8, write_queues=8, permission=6)
    create = tables.handlers["/pocketmq.v1.Broker/CreateTopic"]
    done = create(v1.CreateTopicRequest(topic=topic), _Call())
    if asyncio.iscoroutine(done):
        await done


def _sends(count: int) -> list[v2.SendMessageRequest]:
    body = b"x" * BODY_BYTES
    topic = v2.Resource(name=_TOPIC)
    found = []
    for number in range(count):
        properties = v2.SystemProperties(
            message_id=f"01{number:032X}",
            message_type=v2.NORMAL,
            body_encoding=v2.IDENTITY,
            born_host="bench",
        )
        properties.born_timestamp.GetCurrentTime()
        message = v2.Message(topic=topic, body=body, system_properties=properties)
        found.append(v2.SendMessageRequest(messages=[message]))
    return found


def _ack(message: v2.Message) -> v2.AckMessageRequest:
    entry = v2.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    group, topic = v2.Resource(name=_GROUP), v2.Resource(name=_TOPIC)
    return v2.AckMessageRequest(group=group, topic=topic, entries=[entry])


async def _phase(tables: _Tables, method: str, requests: Sequence[Any]) -> float:
    """Have METHOD answer REQUESTS; return the seconds that it took."""
    handler = tables.handlers[method]
    calls = [_Call() for _ in requests]
    begun = time.thread_time()
    for start in range(0, len(requests), _TOGETHER):
        some = calls[start : start + _TOGETHER]
        for call, request in zip(some, requests[start : start + _TOGETHER], strict=True):
            reply = handler(request, call)
            if reply is not LATER:
                call.reply(reply)
        for call in some:
            await call.over.wait()
    taken = time.thread_time() - begun
    for call in calls:
        status = _reply_types[method].FromString(call.answered[0]).status
        if status.code != v2.OK:
            raise PocketMQError(f"{method} was answered with {status.code}: {status.message}")
    return taken


_reply_types: Final[dict[str, Any]] = {
    "SendMessage": v2.SendMessageResponse,
    "AckMessage": v2.AckMessageResponse,
}


async def _receive(tables: _Tables, found: list[v2.Message]) -> float:
    """Receive once, add what came to FOUND; return the seconds that it took."""
    topic = v2.Resource(name=_TOPIC)
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name=_GROUP),
        message_queue=v2.MessageQueue(topic=topic),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=BATCH,
    )
    request.invisible_duration.FromSeconds(600)
    request.long_polling_timeout.FromSeconds(20)
    stream = _Stream()
    begun = time.thread_time()
    tables.handlers["ReceiveMessage"](request, stream)
    await stream.over.wait()
    taken = time.thread_time() - begun
    replies = [v2.ReceiveMessageResponse.FromString(data) for data in stream.answered]
    messages = [reply.message for reply in replies if reply.HasField("message")]
    if not messages:
        raise PocketMQError(f"nothing was received: {replies}")
    found += messages
    return taken


# ---------------------------------------------------------------- `bench unary`


#: By how many calls are in flight: µs of the server.
_AIMS_US: Final = {_IN_FLIGHT: 100.0, 1: 250.0}


def unary(conditions: BenchConditions) -> Figure:
    """Measure both carriers, one after the other."""
    costs = {choice: _costs(conditions, choice) for choice in GRPC_CHOICES}
    own, grpcio = costs["own"], costs["grpcio"]
    figure = Figure(
        name="unary",
        what=f"server CPU of a SendMessage, {BODY_BYTES} B, {_IN_FLIGHT} in flight",
        messages_per_second=own[_IN_FLIGHT].per_second,
        aim=(own[_IN_FLIGHT].cpu_us, _AIMS_US[_IN_FLIGHT], False),
    )
    for in_flight, aim_us in _AIMS_US.items():
        ours, theirs = own[in_flight].cpu_us, grpcio[in_flight].cpu_us
        figure.compare(f"grpcio_us_at_{in_flight}", theirs, ours)
        figure.facts[f"own_us_at_{in_flight}"] = ours
        figure.notes.append(
            f"{in_flight} in flight: {ours:.0f} µs a call (aim {aim_us:.0f}), grpcio {theirs:.0f};"
            f" {own[in_flight].per_second:,.0f} calls a second, grpcio {grpcio[in_flight].per_second:,.0f}"
        )
    return figure


@dataclass(frozen=True)
class _Cost:
    cpu_us: float
    per_second: float


def _costs(conditions: BenchConditions, choice: str) -> dict[int, _Cost]:
    """Return what calls cost with the carrier of CHOICE, by how many are in flight."""
    folder = conditions.folder / choice
    folder.mkdir()
    found = {}
    with (
        server_with_topic(folder, options=("--grpc", choice)) as server,
        RawConnection(server.ready["broker"]) as connection,
    ):
        _call(connection, 2_000, _IN_FLIGHT)  # Code that runs first.
        for in_flight in _AIMS_US:
            count = _count(connection, in_flight, conditions.seconds)
            before = server.cpu_seconds()
            taken_s = seconds_of(partial(_call, connection, count, in_flight))
            cpu_us = (server.cpu_seconds() - before) / count * 1e6
            found[in_flight] = _Cost(cpu_us, count / taken_s)
    return found


def _count(connection: RawConnection, in_flight: int, seconds: float) -> int:
    """Return how many calls take about SECONDS."""
    probe = 500
    return max(
        probe, int(probe / seconds_of(lambda: _call(connection, probe, in_flight)) * seconds)
    )


def _call(connection: RawConnection, count: int, in_flight: int) -> None:
    """Send COUNT messages, IN_FLIGHT at once."""
    calls = connection.calls("SendMessage", _requests(count), time_s=3)
    connection.send(b"".join(islice(calls, in_flight)))
    left = count
    while left:
        ended = connection.receive(v2.SendMessageResponse)
        left -= ended
        connection.send(b"".join(islice(calls, ended)))


def _requests(count: int) -> list[Any]:
    return [_request(number) for number in range(count)]


def _request(number: int) -> Any:
    properties = v2.SystemProperties(
        message_id=f"01{number:032X}",
        message_type=v2.NORMAL,
        body_encoding=v2.IDENTITY,
        born_host="bench",
    )
    properties.born_timestamp.GetCurrentTime()
    message = v2.Message(
        topic=v2.Resource(name=TOPIC), body=b"x" * BODY_BYTES, system_properties=properties
    )
    return v2.SendMessageRequest(messages=[message])


# ---------------------------------------------------------------- calls as an official client sends them


_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_WINDOW: Final = 1 << 24
_READ_BYTES: Final = 256 * 1024
_TIMEOUT_S: Final = 120.0


class RawConnection:
    """One connection to the broker at ADDRESS. Answers must be good; a reply is decoded by its type."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = FieldEncoder()
        self._reader = FrameReader(_WINDOW)
        self._reader.greet()
        self._stream_id = -1
        self._unread = 0
        self._socket.sendall(PREFACE + settings({}) + window_update(0, _WINDOW))

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def calls(self, method: str, requests: Sequence[Message], *, time_s: int) -> Iterator[bytes]:
        """Yield calls of METHOD with REQUESTS as they travel, with TIME_S to be answered in.

        Each is to be sent before the next is asked for: its fields refer to earlier ones.
        """
        for request in requests:
            self._stream_id += 2
            block = self._encoder.encode(
                _fields(method, time_s * 1_000_000 - self._stream_id % 9_999)
            )
            body = with_prefix(request.SerializeToString())
            yield (
                frame(HEADERS, END_HEADERS, self._stream_id, block)
                + frame(DATA, END_STREAM, self._stream_id, body)
            )

    def send(self, calls: bytes) -> None:
        """Send CALLS."""
        self._socket.sendall(calls)

    def receive(self, reply: Any) -> int:
        """Read what is there, replies of type REPLY; return how many calls it ends. Raises PocketMQError."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise PocketMQError("the server closed the connection")
        ended = 0
        for kind, flags, _, payload in self._reader.read(data):
            if kind == DATA and payload:
                self._check(reply.FromString(payload[PREFIX_BYTES:]), len(payload))
            elif kind == HEADERS and flags & END_STREAM:
                ended += 1
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self._socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind in (GOAWAY, RST_STREAM):
                raise PocketMQError(f"the server broke off: frame {kind}, {payload!r}")
        return ended

    def _check(self, reply: Any, size: int) -> None:
        if reply.status.code != v2.OK:
            raise PocketMQError(f"answered with {reply.status.code}: {reply.status.message}")
        self._unread += size
        if self._unread * 2 > _WINDOW:
            self._socket.sendall(window_update(0, self._unread))
            self._unread = 0


def _fields(method: str, time_us: int) -> list[tuple[str, str]]:
    """Return what an official client says with each call; request id and time differ from call to call."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", _SERVICE + method),
        (":authority", "127.0.0.1:8081"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "grpc-java-netty/1.53.0"),
        ("grpc-accept-encoding", "gzip"),
        ("grpc-timeout", f"{time_us}u"),
        ("x-mq-language", "JAVA"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.0.7"),
        ("x-mq-date-time", "20250101T000000Z"),
        ("x-mq-request-id", str(uuid4())),
        ("x-mq-client-id", "bench@1@0@bench"),
        ("x-mq-namespace", ""),
    ]
