"""`bench delay`: scheduled messages, from the call that sends them to a consumer that has them.

One process sends N messages of 128 B. Their delivery times are drawn evenly (fixed seed) from a period that begins once
all are stored: 16,667 per second over four times --seconds. A consumer in the same process measures the delay:

    stored     from the delivery time to the store timestamp of the delivered copy, both by the broker's clock
    arrived    from the delivery time to the return of the consumer's `poll`, by the same machine's clock

Missing, duplicate and early messages are counted; each count must be 0. Baselines: an asyncio loop with `call_at`, and
a bare gRPC stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...client import Admin, AsyncProducer, AsyncPullConsumer, Message, ReceivedMessage
from ...proto.clock import SystemClock, ahead_ms
from ...proto.errors import PocketMQError
from ..server_process import ServerProcess
from . import measure, servers
from .grpc_echo import echo_per_second
from .pending_messages import pending
from .scheduled_batches import (
    BATCH,
    BODY_BYTES,
    IN_FLIGHT,
    RECORD_BYTES,
    Instants,
    index_of,
    insert,
)

DUE_PER_SECOND: Final = 1_000_000 / 60
SPREAD: Final = 4.0
LATENESS_AIM_MS: Final = 50.0
INSERT_AIM: Final = 100_000
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}

_SEED: Final = 20
_WARM_TOPIC: Final = "bench-warm"
_WARM_BATCHES: Final = 10
#: Time between the last acknowledgement, as expected from the warm-up, and the first delivery time.
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
    """Return the reported percentiles of LATE_MS; none if it is empty."""
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
    """Receive messages until all have arrived, or none arrived for long after the last was due; then redeliveries.

    Return the duration without redeliveries, and the CPU time of the server meanwhile.
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
