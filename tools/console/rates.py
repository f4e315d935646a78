"""Rates of a broker in the last fifteen minutes: counters, every five seconds, in a ring of fixed size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...broker.broker import SiteCounters
from ...broker.metrics.traffic import TrafficCounts

SAMPLE_MS: Final = 5_000
SAMPLES: Final = 15 * 60 * 1000 // SAMPLE_MS

_NAMES: Final = (
    "in_messages_per_s",
    "in_bytes_per_s",
    "failed_per_s",
    "out_messages_per_s",
    "out_bytes_per_s",
)


class Rates:
    """Rates of COUNTERS, and of deliveries in TRAFFIC, recorded at each `sample`."""

    def __init__(self, counters: Callable[[], SiteCounters], traffic: TrafficCounts) -> None:
        self._counters = counters
        self._traffic = traffic
        self._before: tuple[float, ...] | None = None
        self._rates: deque[tuple[float, ...]] = deque(maxlen=SAMPLES)

    def sample(self) -> None:
        """Record the counters, SAMPLE_MS after the last call."""
        counted = self._counters()
        out = self._traffic.went_out.values()
        now = (
            counted.sent_messages,
            counted.appended_bytes,
            counted.sends_failed,
            sum(one.messages for one in out),
            sum(one.bytes for one in out),
        )
        before, self._before = self._before, now
        if before is not None:
            self._rates.append(
                tuple(
                    max(0.0, new - old) * 1000 / SAMPLE_MS
                    for new, old in zip(now, before, strict=True)
                )
            )

    def document(self) -> dict[str, Any]:
        """Return the rates, the oldest first, one per `every_ms`."""
        found: dict[str, Any] = {"every_ms": SAMPLE_MS}
        for at, name in enumerate(_NAMES):
            found[name] = [round(sample[at], 3) for sample in self._rates]
        return found
