"""`bench growth`: the rates of sends with more connections, larger bodies, more queues, and a cold reader.

connections     1, 10, 100 producers with one connection each, one send after the other on each of 64 tasks
bodies          1 KiB, 64 KiB, 1 MiB; 64 tasks, of 1 MiB 16
queues          1; 1,000; 100,000 (a hundred topics of a thousand), each send to a random one; 64 tasks
cold            a pull consumer reads ten times the page cache (a memory cgroup, needs root) while a producer sends
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...client import Admin, AsyncProducer, Message, Producer, PullConsumer
from ...proto.errors import ConfigError
from ..server_process import ServerProcess
from . import measure, servers

CONNECTIONS: Final = (1, 10, 100)
QUEUES: Final = (1, 1_000, 100_000)
BODIES: Final = (1_024, 64 * 1_024, measure.MIB)
_TASKS: Final = 64
_TASKS_OF_LARGE: Final = 16
_BODY_BYTES: Final = 128
_TOPIC_QUEUES: Final = 1_000
#: Of the broker that reads a cold store; what is not its own is page cache.
COLD_LIMIT_BYTES: Final = 160 * measure.MIB
_COLD_TIMES: Final = 10
_COLD_BODY_BYTES: Final = 1_024
_COLD_LIST: Final = 1_000
_CGROUPS: Final = Path("/sys/fs/cgroup")
_SETTINGS: Final = "broker:\n  queues_max: 200000\n"


@dataclass(frozen=True)
class _GrowingShape:
    """Sends from TASKS by CONNECTIONS, of bodies of SIZE, to the PLACES: topics, and queues of each to choose from."""

    name: str
    tasks: int
    connections: int = 1
    size: int = _BODY_BYTES
    places: Sequence[tuple[str, int]] = ((servers.TOPIC, 8),)


@dataclass(frozen=True)
class _Sent:
    """What a shape gave."""

    count: int
    took_s: float
    latencies: Sequence[float]
    client_cpu_s: float
    server_cpu_s: float


def growth(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure all, one after the other."""
    seconds = conditions.seconds
    figure = measure.Figure(
        name="growth", what=f"sends as connections, queues and bodies grow, {seconds:g} s each"
    )
    settings = conditions.folder / "growth.yaml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    with servers.server_with_topic(
        conditions.folder / "growing", options=["--config", str(settings)]
    ) as server:
        for count in CONNECTIONS:
            tasks = max(_TASKS, count)
            _grown(figure, server, seconds, _GrowingShape(f"{count} connections", tasks, count))
        for size in BODIES:
            tasks = _TASKS_OF_LARGE if size >= measure.MIB else _TASKS
            _grown(
                figure,
                server,
                seconds,
                _GrowingShape(f"bodies of {size // 1024} KiB", tasks, size=size),
            )
        for count in QUEUES:
            places = _places(server, count)
            _grown(
                figure, server, seconds, _GrowingShape(f"{count:,} queues", _TASKS, places=places)
            )
    try:
        _cold(figure, conditions.folder / "cold")
    except ConfigError as error:
        figure.notes.append(f"cold: not measured: {error.message}")
    return figure


def _places(server: ServerProcess, queues: int) -> list[tuple[str, int]]:
    """Make topics of QUEUES together; return their names, with how many queues each has."""
    each = min(queues, _TOPIC_QUEUES)
    places = [(f"growth-{queues}-{number}", each) for number in range(queues // each)]
    with Admin(server.nameserver) as admin:
        for name, _ in places:
            admin.create_topic(name, queues=each)
    return places


def _grown(
    figure: measure.Figure, server: ServerProcess, seconds: float, shape: _GrowingShape
) -> None:
    """Run SHAPE for SECONDS; note what it gave and cost."""
    sent = asyncio.run(_send(server, seconds, shape))
    p50_ms, p99_ms = measure.percentiles_ms(sent.latencies)
    rate = sent.count / sent.took_s
    client_us = sent.client_cpu_s / sent.count * 1e6
    server_us = sent.server_cpu_s / sent.count * 1e6
    figure.notes.append(
        f"{shape.name}: {rate:,.0f}/s, {rate * shape.size / 1e6:,.1f} MB/s; p50 {p50_ms:.1f}, p99 {p99_ms:.1f} ms;"
        f" µs a message: client {client_us:.0f}, server {server_us:.0f}; server {server.rss_bytes() / 1e6:,.0f} MB"
    )
    key = shape.name.replace(" ", "_").replace(",", "")
    figure.facts |= {
        f"{key}_per_second": rate,
        f"{key}_p50_ms": p50_ms,
        f"{key}_p99_ms": p99_ms,
        f"{key}_client_us": client_us,
        f"{key}_server_us": server_us,
    }


async def _send(server: ServerProcess, seconds: float, shape: _GrowingShape) -> _Sent:
    body = bytes(shape.size)
    latencies: list[float] = []
    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(AsyncProducer(server.nameserver))
            for _ in range(shape.connections)
        ]
        topics = [topic for topic, _ in shape.places]
        await asyncio.gather(*(one.send(topic, body) for one in producers for topic in topics))
        client_s, server_s = measure.own_cpu_seconds(), server.cpu_seconds()
        first = time.perf_counter()

        async def work(producer: AsyncProducer) -> None:
            while (began := time.perf_counter()) < first + seconds:
                topic, queues = random.choice(shape.places)
                await producer.send(Message(topic, body, queue=random.randrange(queues)))
                latencies.append(time.perf_counter() - began)

        await asyncio.gather(
            *(work(producers[task % shape.connections]) for task in range(shape.tasks))
        )
        return _Sent(
            len(latencies),
            time.perf_counter() - first,
            latencies,
            measure.own_cpu_seconds() - client_s,
            server.cpu_seconds() - server_s,
        )


def _cold(figure: measure.Figure, folder: Path) -> None:
    """Read a store of which a tenth fits into memory; note how fast, and what sends took meanwhile."""
    store = folder / "store"
    with memory_limited(COLD_LIMIT_BYTES) as limit:
        with ServerProcess(store) as server:
            with Admin(server.nameserver) as admin:
                admin.create_topic(servers.TOPIC, queues=1)
            room = COLD_LIMIT_BYTES - server.rss_bytes()
            lists = max(1, _COLD_TIMES * room // (_COLD_BODY_BYTES * _COLD_LIST))
            with Producer(server.nameserver) as producer:
                for _ in range(lists):
                    producer.send_many(servers.TOPIC, [bytes(_COLD_BODY_BYTES)] * _COLD_LIST)
        _leave_cache(store)
        with ServerProcess(store, started=limit) as server:
            _read_cold(figure, server, lists * _COLD_LIST, room)


def _read_cold(figure: measure.Figure, server: ServerProcess, count: int, room: int) -> None:
    over = threading.Event()
    latencies: list[float] = []

    def send() -> None:
        with Producer(server.nameserver) as producer:
            while not over.is_set():
                began = time.perf_counter()
                producer.send("beside", b"x")
                latencies.append(time.perf_counter() - began)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        began = time.perf_counter()
        left = count
        with PullConsumer("cold", servers.TOPIC, server.nameserver, start="earliest") as consumer:
            while left > 0:
                batch = consumer.poll(timeout_ms=60_000)
                assert batch, f"{left} of {count} messages did not come"
                left -= len(batch)
        took = time.perf_counter() - began
    finally:
        over.set()
        sending.join()
    p50_ms, p99_ms = measure.percentiles_ms(latencies)
    figure.notes.append(
        f"cold: {count:,} messages of 1 KiB, {_COLD_TIMES} times the {room / 1e6:,.0f} MB left of a cgroup of"
        f" {COLD_LIMIT_BYTES // measure.MIB} MiB: read with {count * _COLD_BODY_BYTES / took / 1e6:,.1f} MB/s; sends"
        f" meanwhile p50 {p50_ms:.1f}, p99 {p99_ms:.1f}, longest {max(latencies) * 1000:,.0f} ms"
    )
    figure.facts |= {
        "cold_bytes_per_second": count * _COLD_BODY_BYTES / took,
        "cold_sends_p50_ms": p50_ms,
        "cold_sends_p99_ms": p99_ms,
        "cold_sends_longest_ms": max(latencies) * 1000,
    }


@contextmanager
def memory_limited(size_bytes: int) -> Iterator[_Limit]:
    """Yield what puts a process, by its id, among those that have SIZE_BYTES together, page cache included.

    Raises ConfigError where cgroups cannot be made.
    """
    is_second = (_CGROUPS / "cgroup.controllers").exists()
    group = (_CGROUPS if is_second else _CGROUPS / "memory") / f"pocketmq-bench-{os.getpid()}"
    file = "memory.max" if is_second else "memory.limit_in_bytes"
    try:
        group.mkdir()
        (group / file).write_text(str(size_bytes), encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"{group} cannot be made ({error.strerror}): a memory cgroup takes root, and a machine that has them",
            field="cgroup",
        ) from error
    try:
        yield _Limit(group)
    finally:
        group.rmdir()


@dataclass(frozen=True)
class _Limit:
    """A cgroup at its folder."""

    group: Path

    def __call__(self, pid: int) -> None:
        """Put process PID into it."""
        (self.group / "cgroup.procs").write_text(str(pid), encoding="ascii")


def _leave_cache(folder: Path) -> None:
    """Have the files below FOLDER leave the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
