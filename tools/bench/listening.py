"""`bench push`: a listener that is called per message and reads its body of 128 B, default settings.

Also a coroutine listener, and one in order. The baseline is that of `bench consume`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ...client import PushConsumer
from .measure import BenchConditions, Figure
from .reading import BATCH, BODY_BYTES, RATE_EXPECTED, batches_to_send, compare, fill
from .servers import TOPIC, cpu_of_both, server_with_topic

_TIMEOUT_S: Final = 600.0


def push(conditions: BenchConditions) -> Figure:
    """Measure listening."""
    batches, count = batches_to_send(conditions, RATE_EXPECTED)
    figure = Figure(
        name="push",
        what=f"{BODY_BYTES} B bodies, a cold topic, one push consumer, a call a message, body read",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        _handled(server.nameserver, "warm", BATCH)
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
    return compare(figure, 225_000)


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
