"""`bench push`: a listener that is called once a message, 128 B bodies, default settings.

The topic is filled first; then a push consumer handles all of it, from its start to the last call, reading each body. A
second figure is for a coroutine listener on the loop, a third in the order of each queue. The yardstick is a bare gRPC
stream whose answers are as long as a fetch's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ...client import PushConsumer
from .consume import fill
from .echo import echo_per_second
from .measure import MIB, BenchConditions, Figure
from .servers import TOPIC, cpu_of_both, record_bytes, server_with_topic

BODY_BYTES: Final = 128
RATE_EXPECTED: Final = 300_000
_BATCH: Final = 4_000
_TIMEOUT_S: Final = 600.0


def push(conditions: BenchConditions) -> Figure:
    """Measure listening."""
    batches = max(1, round(RATE_EXPECTED * conditions.seconds / _BATCH))
    count = batches * _BATCH
    figure = Figure(
        name="push",
        what=f"{BODY_BYTES} B bodies, a cold topic, one push consumer, a call a message, body read",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        _handled(server.nameserver, "warm", _BATCH)
        with cpu_of_both(figure, server):
            seconds = _handled(server.nameserver, "called", count)
        ordered_seconds = _handled(server.nameserver, "ordered", count, ordered=True)
        awaited_seconds = _handled(server.nameserver, "awaited", count, awaited=True)
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "in_order_messages_per_second": count / ordered_seconds,
        "awaited_messages_per_second": count / awaited_seconds,
    }
    assert figure.messages_per_second is not None
    echo = echo_per_second(request_bytes=64, reply_bytes=MIB, in_flight=8)
    figure.compare(
        "grpc_echo_messages_per_second",
        echo * MIB / record_bytes(BODY_BYTES),
        figure.messages_per_second,
    )
    figure.aim = (figure.messages_per_second, 225_000, True)
    return figure


def _counter(count: int, done: Callable[[], object]) -> Callable[[Any], None]:
    """Return a listener that calls DONE with the last of COUNT messages."""
    left = count

    def listener(message: Any) -> None:
        nonlocal left
        assert len(message.body) == BODY_BYTES
        left -= 1
        if not left:
            done()

    return listener


def _handled(
    nameserver: str, group: str, count: int, *, ordered: bool = False, awaited: bool = False
) -> float:
    """Handle COUNT messages on a thread, or AWAITED on the loop; return how long it took."""
    done = threading.Event()
    call = _counter(count, done.set)

    async def listener(message: Any) -> None:
        call(message)

    began = time.perf_counter()
    with PushConsumer(
        group,
        TOPIC,
        listener if awaited else call,
        nameserver,
        ordered=ordered,
        start="earliest",
    ):
        assert done.wait(_TIMEOUT_S), f"{count} messages did not come"
        return time.perf_counter() - began
