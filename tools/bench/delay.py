"""`bench delay`: scheduled messages, from the call that sends them to a consumer that has them.

One process sends N messages of 128 B. Their delivery times are drawn evenly (fixed seed) from a period that begins once
all are stored: 16,667 per second over four times --seconds. A consumer in the same process measures the delay:

    stored     from the delivery time to the store timestamp of the delivered copy, both by the broker's clock
    arrived    from the delivery time to the return of the consumer's `poll`, by the same machine's clock

Missing, duplicate and early messages are counted; each count must be 0. Baselines: an asyncio loop with `call_at`, and
a bare gRPC stream. With --pending N it sends N messages due within a day and measures the insert rate, bytes on disk,
memory, and restarts after a clean stop and after `kill -9`. The baseline is a server with an empty store.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...client import Admin, AsyncProducer, AsyncPullConsumer, Message, Receipts, ReceivedMessage
from ...client.connections import BROKER, GrpcConnections
from ...proto.clock import SystemClock, ahead_ms
from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..server_process import ServerProcess
from . import measure, servers
from .yardsticks import echo_per_second

DUE_PER_SECOND: Final = 1_000_000 / 60
SPREAD: Final = 4.0
LATENESS_AIM_MS: Final = 50.0
INSERT_AIM: Final = 100_000
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}

_SEED: Final = 20
_WARM_TOPIC: Final = "bench-warm"
_WARM_BATCHES: Final = 10
#: Room between the last acknowledgement, as the warm-up foretells it, and the first instant.
_LEAD_S: Final = 2.0
#: None came for so long after the last was due: what is missing then is lost.
_GRACE_MS: Final = 10_000
#: Whatever comes twice comes soon: copies are made in the order of their times.
_AGAIN_MS: Final = 1_000
_REPLY_BYTES: Final = 12_000  # the due time and the offset of each


def delay(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure delayed messages."""
    if conditions.pending:
        return pending(conditions)
    spread_s = SPREAD * conditions.seconds
    count = max(BATCH, round(DUE_PER_SECOND * spread_s))
    figure = measure.Figure(
        name="delay",
        what=f"{count:,} messages of {BODY_BYTES} B due evenly over {spread_s:g} s, sent before that",
    )
    with servers.server_with_topic(conditions.folder) as server:
        course = asyncio.run(_run(server, count, spread_s))
    _note_insert(figure, course)
    _note_delivery(figure, course)
    baseline = asyncio.run(_call_at(course.due_ms - int(course.due_ms.min())))
    _compare(figure, baseline)
    return figure


class Deliveries:
    """What came: how often each of COUNT messages, and when the first copy was stored and arrived.

    Plain lists: most polls return a handful of messages.
    """

    def __init__(self, count: int) -> None:
        self.times = [0] * count
        self.stored_ms = [0] * count
        self.arrived_ms = [0] * count
        self.missing = count

    def add(self, indices: Iterable[int], stored_ms: Iterable[int], arrived_ms: int) -> None:
        """Note messages that one poll returned at ARRIVED_MS."""
        times = self.times
        for index, stored in zip(indices, stored_ms, strict=True):
            if not times[index]:
                self.stored_ms[index] = stored
                self.arrived_ms[index] = arrived_ms
                self.missing -= 1
            times[index] += 1

    def account(self, due_ms: Instants) -> dict[str, Any]:
        """Return lost, doubled, early, and percentiles of lateness against DUE_MS."""
        times = np.asarray(self.times)
        came = times > 0
        stored = (np.asarray(self.stored_ms) - due_ms)[came]
        arrived = (np.asarray(self.arrived_ms) - due_ms)[came]
        return {
            "lost": int((~came).sum()),
            "doubled": int((times > 1).sum()),
            "early": int(((stored < 0) | (arrived < 0)).sum()),
            "stored_late_ms": percentiles(stored),
            "arrived_late_ms": percentiles(arrived),
        }


def percentiles(late_ms: Any) -> dict[str, float]:
    """Return the percentiles of LATE_MS that the bench tells; none of nothing."""
    if not len(late_ms):
        return {}
    found = np.percentile(late_ms, list(PERCENTILES.values()))
    return {
        name: measure.rounded(float(value)) for name, value in zip(PERCENTILES, found, strict=True)
    }


@dataclass(kw_only=True, slots=True)
class _Course:
    """What one run measured."""

    due_ms: Instants
    deliveries: Deliveries
    insert_s: float
    insert_server_cpu_s: float
    insert_client_cpu_s: float
    rss_empty_bytes: int
    rss_full_bytes: int
    wait_s: float
    wait_server_cpu_s: float


async def _run(server: ServerProcess, count: int, spread_s: float) -> _Course:
    clock = SystemClock()
    rate = await _warm_up(server.nameserver)
    rss_empty_bytes = server.rss_bytes()
    lead_ms = round(1000 * (_LEAD_S + 2 * count / rate))
    random = np.random.default_rng(_SEED)
    due_ms = clock.unix_ms() + lead_ms + random.integers(0, round(1000 * spread_s), count)
    server_cpu, client_cpu = server.cpu_seconds(), measure.own_cpu_seconds()
    insert_s = await insert(server.nameserver, due_ms)
    insert_server_cpu_s = server.cpu_seconds() - server_cpu
    insert_client_cpu_s = measure.own_cpu_seconds() - client_cpu
    rss_full_bytes = server.rss_bytes()
    deliveries = Deliveries(count)
    # The consumer has found its queues when the first one is due.
    await clock.sleep_until(int(due_ms.min()) - ahead_ms(clock) - 1_000)
    wait_s, wait_server_cpu_s = await _receive(server, deliveries, int(due_ms.max()), clock)
    return _Course(
        due_ms=due_ms,
        deliveries=deliveries,
        insert_s=insert_s,
        insert_server_cpu_s=insert_server_cpu_s,
        insert_client_cpu_s=insert_client_cpu_s,
        rss_empty_bytes=rss_empty_bytes,
        rss_full_bytes=rss_full_bytes,
        wait_s=wait_s,
        wait_server_cpu_s=wait_server_cpu_s,
    )


async def _warm_up(nameserver: str) -> float:
    """Send delayed messages to another topic and have them delivered; return how many a second were taken."""
    with Admin(nameserver) as admin:
        admin.create_topic(_WARM_TOPIC, queues=1)
    messages = [Message(_WARM_TOPIC, bytes(BODY_BYTES), delay="10ms") for _ in range(BATCH)]
    async with AsyncProducer(nameserver) as producer:
        await producer.send(messages[0])
        began = time.perf_counter()
        for _ in range(_WARM_BATCHES):
            await producer.send_many(messages)
        took = time.perf_counter() - began
    await _count_to(nameserver, 1 + _WARM_BATCHES * BATCH)
    return _WARM_BATCHES * BATCH / took


async def _count_to(nameserver: str, count: int) -> None:
    async with AsyncPullConsumer(
        "bench-warm", _WARM_TOPIC, nameserver, start="earliest"
    ) as consumer:
        while count > 0:
            messages = await consumer.poll(timeout_ms=_GRACE_MS)
            if not messages:
                raise PocketMQError(f"{count} messages of the warm-up, due in 10 ms, did not come")
            count -= len(messages)


async def _receive(
    server: ServerProcess, deliveries: Deliveries, last_due_ms: int, clock: SystemClock
) -> tuple[float, float]:
    """Take messages until all have come, or none came for long after the last was due, and then what comes again.

    Return how long that took without what came again, and what CPU time the server used meanwhile.
    """
    server_cpu, began = server.cpu_seconds(), time.perf_counter()
    async with AsyncPullConsumer(
        "bench", servers.TOPIC, server.nameserver, start="earliest"
    ) as consumer:
        while deliveries.missing:
            messages = await consumer.poll(timeout_ms=_GRACE_MS)
            now_ms = clock.unix_ms()
            _add(deliveries, messages, now_ms)
            if not messages and now_ms > last_due_ms + _GRACE_MS:
                break
        took = time.perf_counter() - began, server.cpu_seconds() - server_cpu
        while again := await consumer.poll(timeout_ms=_AGAIN_MS):
            _add(deliveries, again, clock.unix_ms())
        return took


def _add(deliveries: Deliveries, messages: Sequence[ReceivedMessage], now_ms: int) -> None:
    indices = [index_of(message.body) for message in messages]
    deliveries.add(indices, [message.store_timestamp_ms for message in messages], now_ms)


async def _call_at(due_ms: Instants) -> dict[str, float]:
    """Have a bare loop call something at each of DUE_MS, counted from soon; return the percentiles of lateness."""
    loop = asyncio.get_running_loop()
    late: list[float] = []
    add = late.append
    done = asyncio.Event()

    def fire(due: float) -> None:
        add(loop.time() - due)

    first = loop.time() + 1 + len(due_ms) / 200_000
    for due in (first + due_ms / 1000).tolist():
        loop.call_at(due, fire, due)
    loop.call_at(first + float(due_ms.max()) / 1000 + 0.001, done.set)
    await done.wait()
    return percentiles(np.asarray(late) * 1000)


def _note_insert(figure: measure.Figure, course: _Course) -> None:
    count = len(course.due_ms)
    figure.add_rate(count, count * BODY_BYTES, course.insert_s)
    rate = figure.messages_per_second or 0.0
    figure.client_cpu_seconds = course.insert_client_cpu_s
    figure.server_cpu_seconds = course.wait_server_cpu_s
    figure.server_rss_bytes = course.rss_full_bytes
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": RECORD_BYTES,
        "insert_per_second": rate,
        "insert_aim_per_second": INSERT_AIM,
        "insert_aim_met": rate >= INSERT_AIM,
        "insert_server_cpu_seconds": course.insert_server_cpu_s,
        "rss_empty_bytes": course.rss_empty_bytes,
        "rss_full_bytes": course.rss_full_bytes,
        "rss_bytes_a_pending_message": (course.rss_full_bytes - course.rss_empty_bytes) / count,
    }
    figure.notes.append(
        f"insert {rate:,.0f} msg/s (aim ≥ {INSERT_AIM:,} {'met' if rate >= INSERT_AIM else 'missed'}); "
        f"server memory {course.rss_empty_bytes / 1e6:,.0f} MB before, {course.rss_full_bytes / 1e6:,.0f} MB after"
    )


def _note_delivery(figure: measure.Figure, course: _Course) -> None:
    found = course.deliveries.account(course.due_ms)
    share = course.wait_server_cpu_s / course.wait_s
    figure.facts |= {**found, "delivery_seconds": course.wait_s, "delivery_server_cpu_share": share}
    arrived = found["arrived_late_ms"]
    figure.p50_ms, figure.p99_ms = arrived.get("p50"), arrived.get("p99")
    figure.aim = (arrived.get("p99", float("inf")), LATENESS_AIM_MS, False)
    wrong = {name: found[name] for name in ("lost", "doubled", "early")}
    figure.notes += [
        f"late when stored   {_line(found['stored_late_ms'])}",
        f"late on arrival    {_line(arrived)}",
        f"server CPU {share:.0%} of a core while they fell due",
        ", ".join(f"{name} {value:,}" for name, value in wrong.items())
        + ("" if any(wrong.values()) else ": as it must be"),
    ]


def _compare(figure: measure.Figure, baseline: dict[str, float]) -> None:
    assert figure.messages_per_second is not None
    figure.facts["call_at_late_ms"] = baseline
    figure.notes.append(f"bare call_at, late  {_line(baseline)}")
    for name in ("p50", "p99"):
        ours = figure.facts["stored_late_ms"].get(name)
        if ours is not None and baseline[name] > 0:
            figure.compare(f"bare_call_at_{name}_late_ms", baseline[name], ours)
    run_bytes = RECORD_BYTES * BATCH
    echo = echo_per_second(request_bytes=run_bytes, reply_bytes=_REPLY_BYTES, in_flight=IN_FLIGHT)
    figure.compare("grpc_echo_messages_per_second", echo * BATCH, figure.messages_per_second)


def _line(late_ms: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:,.1f} ms" for name, value in late_ms.items()) or "none came"


# ---------------------------------------------------------------- what messages cost that wait for long


_PENDING_SEED: Final = 21
#: None falls due while the bench runs.
_FIRST_MS: Final = 2 * 3_600_000
_DAY_MS: Final = 86_400_000
_STATUS_TIMEOUT_MS: Final = 30_000


def pending(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure messages that wait."""
    count = conditions.pending
    figure = measure.Figure(
        name="delay",
        what=f"{count:,} messages of {BODY_BYTES} B due within a day, sent, and there after restarts",
    )
    store = conditions.folder / "store"
    with servers.server_with_topic(conditions.folder) as server:
        empty = _Standing(server)
        random = np.random.default_rng(_PENDING_SEED)
        due_ms = SystemClock().unix_ms() + _FIRST_MS + random.integers(0, _DAY_MS, count)
        with servers.cpu_of_both(figure, server):
            seconds = asyncio.run(insert(server.nameserver, due_ms))
        full = _Standing(server)
        stop_s = measure.seconds_of(server.stop)
    figure.add_rate(count, count * BODY_BYTES, seconds)
    with _started(store) as (clean_s, server):
        clean = _Standing(server)
        server.kill()
    with _started(store) as (killed_s, server):
        killed = _Standing(server)
    with _started(conditions.folder / "empty") as (empty_s, server):
        pass
    disk = disk_bytes(store)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": RECORD_BYTES,
        "disk_bytes": sum(disk.values()),
        "disk_bytes_by_folder": disk,
        "rss_empty_bytes": empty.rss_bytes,
        "rss_full_bytes": full.rss_bytes,
        "rss_after_restart_bytes": clean.rss_bytes,
        "rss_after_kill_bytes": killed.rss_bytes,
        "own_empty_bytes": empty.own_bytes,
        "own_full_bytes": full.own_bytes,
        "own_after_restart_bytes": clean.own_bytes,
        "stop_seconds": stop_s,
        "restart_seconds": clean_s,
        "restart_after_kill_seconds": killed_s,
        "waiting": [full.waiting, clean.waiting, killed.waiting],
    }
    _tell(figure, {"sent": full, "restarted": clean, "killed": killed})
    figure.compare("record_bytes", count * RECORD_BYTES, sum(disk.values()))
    figure.compare("empty_server_own_bytes", empty.own_bytes, full.own_bytes)
    figure.compare("empty_server_start_seconds", empty_s, clean_s)
    return figure


class _Standing:
    """How a server stands: its resident memory, the part that is its own, and how many messages wait."""

    def __init__(self, server: ServerProcess) -> None:
        self.waiting = asyncio.run(_waiting(server.ready["broker"]))
        self.rss_bytes = server.rss_bytes()
        self.own_bytes = own_memory_bytes(server.pid)


def own_memory_bytes(pid: int) -> int:
    """Return the resident memory of process PID that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


async def _waiting(address: str) -> int:
    connections = GrpcConnections()
    try:
        reply = await connections.to(address).call(
            BROKER + "Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply, _STATUS_TIMEOUT_MS
        )
    finally:
        await connections.close()
    return reply.delayed_waiting


@contextmanager
def _started(store: Path) -> Iterator[tuple[float, ServerProcess]]:
    """Start a server over STORE; yield the seconds until it served, and it."""
    began = time.perf_counter()
    with ServerProcess(store) as server:
        yield time.perf_counter() - began, server


def disk_bytes(store: Path) -> dict[str, int]:
    """Return the bytes of the blocks that the files of STORE have, by folder or file directly below it."""
    found: dict[str, int] = {}
    for path in store.rglob("*"):
        if path.is_file():
            name = path.relative_to(store).parts[0]
            found[name] = found.get(name, 0) + path.stat().st_blocks * 512
    return dict(sorted(found.items()))


def _tell(figure: measure.Figure, standings: dict[str, _Standing]) -> None:
    facts = figure.facts
    count = facts["messages"]
    lost = {name: count - standing.waiting for name, standing in standings.items()}
    figure.notes += [
        f"disk {facts['disk_bytes'] / 1e6:,.0f} MB, {facts['disk_bytes'] / count:,.0f} B a message",
        _memory_line("server memory", facts, "rss"),
        _memory_line("of it not the store's files", facts, "own"),
        f"stop {facts['stop_seconds']:.1f} s, restart {facts['restart_seconds']:.1f} s, after kill -9 "
        f"{facts['restart_after_kill_seconds']:.1f} s",
        "missing when " + ", ".join(f"{name} {number:,}" for name, number in lost.items()),
    ]


def _memory_line(what: str, facts: dict[str, Any], kind: str) -> str:
    empty, full, again = (
        f"{facts[f'{kind}_{when}_bytes'] / 1e6:,.0f} MB"
        for when in ("empty", "full", "after_restart")
    )
    return f"{what}: {empty} empty, {full} with all, {again} after a restart"


# ---------------------------------------------------------------- messages with times of their own


BODY_BYTES: Final = 128
BATCH: Final = 1_000
IN_FLIGHT: Final = 16
#: As the client sends it, before the broker adds what it needs to know.
RECORD_BYTES: Final = servers.record_bytes(BODY_BYTES) + len("TIMER_DELIVER_MS") + 1 + 13 + 1

_INDEX_BYTES: Final = 4
_FILLER: Final = bytes(range(BODY_BYTES - _INDEX_BYTES))

#: Unix milliseconds.
Instants = NDArray[np.int64]


def timed_batch(first: int, instants: Sequence[int]) -> list[Message]:
    """Return a message for each of INSTANTS; its body begins with its index, from FIRST on."""
    return [
        Message(servers.TOPIC, index.to_bytes(_INDEX_BYTES, "big") + _FILLER, deliver_at=instant)
        for index, instant in enumerate(instants, first)
    ]


def index_of(body: bytes) -> int:
    """Return the index of the message with BODY."""
    return int.from_bytes(body[:_INDEX_BYTES], "big")


async def insert(nameserver: str, due_ms: Instants) -> float:
    """Send a message for each of DUE_MS; return the seconds it took.

    Raises InvalidDelay if one was past when the broker took it, PocketMQError if a receipt tells another time.
    """
    under_way: deque[tuple[int, asyncio.Future[Receipts]]] = deque()
    async with AsyncProducer(nameserver) as producer:
        began = time.perf_counter()
        for at in range(0, len(due_ms), BATCH):
            if len(under_way) == IN_FLIGHT:
                await _acknowledged(*under_way.popleft())
            instants: list[int] = due_ms[at : at + BATCH].tolist()
            sent = producer.send_many_nowait(timed_batch(at, instants))
            under_way.append((instants[0], sent))
            await asyncio.sleep(0)
        while under_way:
            await _acknowledged(*under_way.popleft())
        return time.perf_counter() - began


async def _acknowledged(due_ms: int, receipts: asyncio.Future[Receipts]) -> None:
    told = (await receipts)[0].due_ms
    if told != due_ms:
        raise PocketMQError(f"a message for {due_ms} is due at {told}, says its receipt")
