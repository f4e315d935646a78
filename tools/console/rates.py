"""What a broker did in the last fifteen minutes: its counters, every five seconds, in a ring of fixed size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from ...broker.metrics_page import PageFigure
from ...broker.traffic import TrafficCounts

SAMPLE_MS: Final = 5_000
SAMPLES: Final = 15 * 60 * 1000 // SAMPLE_MS

#: What a rate is called, and the counter that it comes from.
_COUNTERS: Final = {
    "in_messages_per_s": "pocketmq_broker_sent_messages_total",
    "in_bytes_per_s": "pocketmq_store_appended_bytes_total",
    "failed_per_s": "pocketmq_broker_sends_failed_total",
}
_NAMES: Final = (*_COUNTERS, "out_messages_per_s", "out_bytes_per_s")


class Rates:
    """Rates of what FIGURES counts, and of what groups were handed by TRAFFIC, noted at each `sample`."""

    def __init__(self, figures: Callable[[], Iterable[PageFigure]], traffic: TrafficCounts) -> None:
        self._figures = figures
        self._traffic = traffic
        self._before: tuple[float, ...] | None = None
        self._rates: deque[tuple[float, ...]] = deque(maxlen=SAMPLES)

    def sample(self) -> None:
        """Note the counters as they are now, SAMPLE_MS after the last time."""
        found = {one.name: one.value for one in self._figures() if not one.labels}
        counted = [found.get(name, 0) for name in _COUNTERS.values()]
        out = self._traffic.went_out.values()
        now = (
            *(value for value in counted if isinstance(value, int | float)),
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
        """Return the rates, the oldest first, a sample every `every_ms`."""
        found: dict[str, Any] = {"every_ms": SAMPLE_MS}
        for at, name in enumerate(_NAMES):
            found[name] = [round(sample[at], 3) for sample in self._rates]
        return found
