"""The Prometheus text format, `text/plain; version=0.0.4`.

Names are pocketmq_<client>_<noun>_<unit>. Counters end in _total. Times are in seconds, as is usual in Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from .queue import Queue

#: Attribute of the object, name of the metric, and its help text.
Rows = Iterable[tuple[str, str, str]]


class Exposition:
    """Lines of metrics whose names begin with PREFIX, each with LABELS, for example {"client": "billing-1"}."""

    def __init__(self, prefix: str, labels: Mapping[str, str] | None) -> None:
        self._prefix = prefix
        self._labels = dict(labels or {})
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        """All lines."""
        return "".join(f"{line}\n" for line in self._lines)

    def add(self, kind: str, rows: Rows, source: object) -> None:
        """Add the attributes of SOURCE in ROWS, each as KIND ("counter", "gauge"). Milliseconds become seconds."""
        for attribute, name, what in rows:
            value = getattr(source, attribute)
            in_seconds = attribute.endswith("_ms") and not name.endswith("_ms")
            self._head(name, what, kind)
            self._sample(name, value / 1_000 if in_seconds else value)

    def add_by_queue(self, name: str, what: str, values: Mapping[Queue, int]) -> None:
        """Add a gauge with one sample per queue."""
        self._head(name, what, "gauge")
        for queue, value in sorted(values.items()):
            self._sample(
                name, value, topic=queue.topic, broker=queue.broker, queue=str(queue.number)
            )

    def add_histogram(
        self, name: str, what: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram: COUNTS of values per bucket, with the upper limits `bounds`; TOTAL is the sum of all values.

        COUNTS has one more bucket, above all limits.
        """
        self._head(name, what, "histogram")
        for bound, count in zip(
            [*(f"{one:g}" for one in bounds), "+Inf"], accumulate(counts), strict=True
        ):
            self._sample(f"{name}_bucket", count, le=bound)
        self._sample(f"{name}_sum", total)
        self._sample(f"{name}_count", sum(counts))

    def _head(self, name: str, what: str, kind: str) -> None:
        self._lines.append(f"# HELP {self._prefix}{name} {what}")
        self._lines.append(f"# TYPE {self._prefix}{name} {kind}")

    def _sample(self, name: str, value: float, **labels: str) -> None:
        pairs = ",".join(
            f'{label}="{_escaped(text)}"' for label, text in (self._labels | labels).items()
        )
        braces = f"{{{pairs}}}" if pairs else ""
        self._lines.append(f"{self._prefix}{name}{braces} {value!r}")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
