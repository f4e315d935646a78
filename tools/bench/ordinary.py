"""`bench ordinary`: the shapes of ordinary programs, 128 B, default settings, acks from memory.

    64 in flight         `send_nowait(Message(…))` from one thread, a callback each, 64 without an acknowledgement
    lists of 100         `send_many` from one thread and from four: of new Messages, and of values
    one at a time        `send(Message(…))`
    delayed              64 in flight, as above, due in two hours
    push, all read       a listener that reads body, keys, tag, properties, id, offset and time
    push, body read      a listener that reads the body; both are timed from the first message to the last

Each shape warms up as long as it is measured. Client and server share the machine, so compare the CPU time per message
of both with that of a loopback echo of the same bytes. With --apache the shapes also run on Apache RocketMQ's broker.
--plot draws the rates (`plot.py`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from ...client import Message, Producer, PushConsumer
from ..server_process import ServerProcess
from . import measure, servers
from .apache_servers import apache_alone, apache_version
from .java_clients import ShapeRun, check_load, classic_load, official_load
from .socket_echo import echo

BODY_BYTES: Final = 128
IN_FLIGHT: Final = 64
LIST: Final = 100
_BODY: Final = bytes(range(BODY_BYTES))
_RECORD_BYTES: Final = servers.record_bytes(BODY_BYTES)
#: Of an acknowledgement of a run.
_REPLY_BYTES: Final = 40
#: Expected messages per second of a listener: its topic is filled with as many.
_PUSHED: Final = 30_000
_TIMEOUT_S: Final = 600.0
_OFFICIAL_TOPIC: Final = "bench-official"
_ECHO_S: Final = 0.5


@dataclass(frozen=True)
class _Ran:
    """How many messages a shape was, how long each call took that was waited for, and all; 0: what its caller saw."""

    count: int
    latencies: Sequence[float] = ()
    took_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """One way to send, or to listen, and the echo next to it."""

    name: str
    run: Callable[[float], _Ran]
    #: Of the echo: messages, bytes there and back, and how many at once.
    messages: int = 1
    request_bytes: int = _RECORD_BYTES
    reply_bytes: int = _REPLY_BYTES
    in_flight: int = 1


def ordinary(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure all shapes, one after the other."""
    seconds = conditions.seconds
    apache = Path(conditions.apache) if conditions.apache else None
    if apache is not None:
        check_load(apache)
    figure = measure.Figure(
        name="ordinary",
        what=f"{BODY_BYTES} B, shapes of ordinary programs, each {seconds:g} s after {seconds:g} s of warm-up",
        facts={"body_bytes": BODY_BYTES, "warm_up_seconds": seconds},
    )
    with (
        servers.server_with_topic(conditions.folder / "sending") as server,
        Producer(server.nameserver) as producer,
    ):
        for shape in _sending(producer):
            _measure(figure, shape, server, seconds)
    with servers.server_with_topic(conditions.folder / "listening") as server:
        count = round(_PUSHED * seconds)
        _fill(server.nameserver, count)
        for shape in _listening(server.nameserver, count):
            _measure(figure, shape, server, seconds)
    if apache is not None:
        _beside_apache(figure, apache, conditions)
    figure.messages_per_second = figure.facts["in_flight_per_second"]
    figure.p50_ms = figure.facts["one_at_a_time_p50_ms"]
    figure.p99_ms = figure.facts["one_at_a_time_p99_ms"]
    return figure


def _measure(figure: measure.Figure, shape: _Shape, server: ServerProcess, seconds: float) -> None:
    """Run SHAPE, and note what it gave."""
    shape.run(seconds)
    client_s, server_s = measure.own_cpu_seconds(), server.cpu_seconds()
    began = time.perf_counter()
    ran = shape.run(seconds)
    took = ran.took_s or time.perf_counter() - began
    count, latencies = ran.count, ran.latencies
    client_us = (measure.own_cpu_seconds() - client_s) / count * 1e6
    server_us = (server.cpu_seconds() - server_s) / count * 1e6
    beside = echo(
        request_bytes=shape.request_bytes,
        reply_bytes=shape.reply_bytes,
        in_flight=shape.in_flight,
        seconds=_ECHO_S,
    )
    echo_us = beside.cpu_s / shape.messages * 1e6
    note = (
        f"{shape.name}: {count / took:,.0f}/s; µs a message: client {client_us:.1f}, server {server_us:.1f},"
        f" echo {echo_us:.2f}"
    )
    name = _key(shape.name)
    figure.facts |= {
        f"{name}_per_second": count / took,
        f"{name}_client_us": client_us,
        f"{name}_server_us": server_us,
        f"{name}_echo_us": echo_us,
        f"{name}_echo_per_second": shape.messages * len(beside.latencies) / _ECHO_S,
    }
    if latencies:
        p50_ms, p99_ms = measure.percentiles_ms(latencies)
        echo_ms = measure.percentiles_ms(beside.latencies)
        note += (
            f"; p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms (echo {echo_ms[0]:.2f}, {echo_ms[1]:.2f})"
        )
        figure.facts |= {
            f"{name}_p50_ms": p50_ms,
            f"{name}_p99_ms": p99_ms,
            f"{name}_echo_p50_ms": echo_ms[0],
        }
    figure.notes.append(note)


def _key(name: str) -> str:
    """Return the NAME of a shape as facts have it."""
    return name.replace(" ", "_").replace(",", "")


# Next to Apache RocketMQ.


def _beside_apache(figure: measure.Figure, home: Path, conditions: measure.BenchConditions) -> None:
    """Run the shapes on RocketMQ's broker from the jars in HOME, and the official client on both; note the ratios."""
    seconds = conditions.seconds
    count = round(_PUSHED * seconds)
    with servers.server_with_topic(conditions.folder / "official") as server:
        ours = official_load(home, str(server.ready["broker"]), servers.TOPIC, seconds)
    topics = (servers.TOPIC, f"{servers.TOPIC}-read", _OFFICIAL_TOPIC)
    with apache_alone(home, conditions.folder / "apache", topics) as (nameserver, proxy):
        classic = classic_load(home, nameserver, servers.TOPIC, seconds, count)
        official = official_load(home, proxy, _OFFICIAL_TOPIC, seconds)
    figure.facts["apache_version"] = apache_version(home)
    figure.notes.append(
        f"Apache RocketMQ {figure.facts['apache_version']} with its Java clients, each shape {seconds:g} s after"
        f" {seconds:g} s of warm-up as well, with the ratio of PocketMQ to it:"
    )
    for theirs in classic:
        key = _key(theirs.name)
        found = figure.facts
        own = ShapeRun(
            theirs.name,
            found[f"{key}_per_second"],
            *(found.get(f"{key}_{part}_ms") for part in ("p50", "p99")),
        )
        _compare(figure, own, theirs)
    for own, theirs in zip(ours, official, strict=True):
        figure.facts[f"{_key(own.name)}_per_second"] = own.per_second
        if own.p50_ms is not None:
            figure.facts[f"{_key(own.name)}_p50_ms"] = own.p50_ms
        _compare(figure, own, theirs)


def _compare(figure: measure.Figure, own: ShapeRun, theirs: ShapeRun) -> None:
    """Note what OWN and THEIRS, the same shape, gave."""
    figure.beside[f"apache_{_key(theirs.name)}_per_second"] = theirs.per_second
    text = f"{theirs.name}: {own.text()}, Apache {theirs.text()}: {own.per_second / theirs.per_second:.2f}"
    for part in ("p50_ms", "p99_ms"):
        mine, other = getattr(own, part), getattr(theirs, part)
        if other is not None:
            figure.beside[f"apache_{_key(theirs.name)}_{part}"] = other
            text += f", {part[:3]} {other / mine:.2f}" if mine else ""
    figure.notes.append(text)


def _sending(producer: Producer) -> Iterator[_Shape]:
    """Yield the ways to send by PRODUCER."""
    yield _Shape(name="in flight", run=partial(_in_flight, producer), in_flight=IN_FLIGHT)
    for what, send in (("lists", _send_messages), ("lists of values", _send_values)):
        for threads in (1, 4):
            yield _Shape(
                name=f"{what}, {threads} thread{'s' * (threads > 1)}",
                run=partial(_lists, partial(send, producer), threads),
                messages=LIST,
                request_bytes=LIST * _RECORD_BYTES,
                in_flight=threads,
            )
    yield _Shape(name="one at a time", run=partial(_one_at_a_time, producer))
    yield _Shape(name="delayed", run=partial(_in_flight, producer, delay="2h"), in_flight=IN_FLIGHT)


def _send_messages(producer: Producer) -> None:
    producer.send_many([Message(servers.TOPIC, _BODY) for _ in range(LIST)])


def _send_values(producer: Producer) -> None:
    producer.send_many(servers.TOPIC, [_BODY] * LIST)


def _in_flight(producer: Producer, seconds: float, **parts: Any) -> _Ran:
    """Send messages with PARTS for SECONDS, IN_FLIGHT at once."""
    room = threading.Semaphore(IN_FLIGHT)
    failures: list[BaseException] = []

    def acknowledged(future: Any) -> None:
        if (error := future.exception()) is not None:
            failures.append(error)
        room.release()

    count = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        room.acquire()
        producer.send_nowait(Message(servers.TOPIC, _BODY, **parts)).add_done_callback(acknowledged)
        count += 1
    for _ in range(IN_FLIGHT):
        room.acquire()
    if failures:
        raise failures[0]
    return _Ran(count)


def _lists(send: Callable[[], object], threads: int, seconds: float) -> _Ran:
    """SEND lists for SECONDS from each of THREADS; latencies are those of a list."""
    latencies: list[float] = []
    sending = [
        threading.Thread(target=lambda: latencies.extend(measure.rounds(send, seconds=seconds)))
        for _ in range(threads)
    ]
    for thread in sending:
        thread.start()
    for thread in sending:
        thread.join()
    return _Ran(len(latencies) * LIST, latencies)


def _one_at_a_time(producer: Producer, seconds: float) -> _Ran:
    latencies = measure.rounds(
        lambda: producer.send(Message(servers.TOPIC, _BODY)), seconds=seconds
    )
    return _Ran(len(latencies), latencies)


def _fill(nameserver: str, count: int) -> None:
    """Send COUNT messages that have all that a message may have."""
    with Producer(nameserver) as producer:
        for begin in range(0, count, 1000):
            numbers = range(begin, min(begin + 1000, count))
            producer.send_many(
                Message(
                    servers.TOPIC,
                    _BODY,
                    key=f"order-{n}",
                    tag="paid",
                    properties={"source": "bench"},
                )
                for n in numbers
            )


def _listening(nameserver: str, count: int) -> Iterator[_Shape]:
    """Yield the ways to listen to the COUNT messages of the topic."""
    for what, read in (("all", _read_all), ("body", _read_body)):
        yield _Shape(
            name=f"push, {what} read",
            run=partial(_listen, nameserver, count, read),
            messages=measure.MIB // _RECORD_BYTES,
            request_bytes=64,
            reply_bytes=measure.MIB,
        )


def _listen(nameserver: str, count: int, read: Callable[[Any], object], _: float) -> _Ran:
    """Have a push consumer of a new group READ the COUNT messages of the topic."""
    done = threading.Event()
    numbers = itertools.count(1)  # Listeners are called on several threads.
    instants: list[float] = []

    def listener(message: Any) -> None:
        number = next(numbers)
        if number == 1:
            instants.append(time.perf_counter())
        read(message)
        if number == count:
            instants.append(time.perf_counter())
            done.set()

    with PushConsumer(
        f"bench-{uuid4().hex}", servers.TOPIC, listener, nameserver, start="earliest"
    ):
        assert done.wait(_TIMEOUT_S), f"not all of {count} messages came"
    return _Ran(count, took_s=instants[-1] - instants[0])


def _read_all(message: Any) -> None:
    assert len(message.body) == BODY_BYTES
    assert message.message_id
    assert message.queue_offset >= 0
    assert message.store_timestamp_ms
    assert (message.keys, message.tag) == ((message.properties["KEYS"],), "paid")


def _read_body(message: Any) -> None:
    assert len(message.body) == BODY_BYTES
