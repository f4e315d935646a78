"""Metrics that clients of Apache RocketMQ 5 measure, kept for the broker's `/metrics`.

Such a client sends its histograms once per minute: how long its sends took, how old messages were at delivery, how long
they waited for a listener, and how long the listener took. A push consumer also sends how much it caches. A series is
one name with one set of labels. Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

#: Limit of all series. Above it, a client with more than an equal share loses its oldest series,
#: else the client with the most series does.
SERIES_MAX: Final = 1_000
#: A series without an update for this time is dropped at the next request of `/metrics`.
SERIES_AGE_MS: Final = 900_000
#: A histogram with more buckets is ignored.
BUCKETS_MAX: Final = 32
#: Maximum length of a label; longer ones are truncated.
LABEL_LENGTH_MAX: Final = 255
#: Limit of points per request, or of series per message.
POINTS_MAX: Final = 10_000
_COUNT_MAX: Final = 1 << 63

#: Names of labels: at the client, and on `/metrics`.
LABELS: Final = {
    "client_id": "client",
    "topic": "topic",
    "consumer_group": "group",
    "language": "language",
    "invocation_status": "status",
}
HISTOGRAMS: Final = {
    "rocketmq_send_cost_time": "Duration of sends in milliseconds, measured by clients.",
    "rocketmq_delivery_latency": "Time from the broker to the client in milliseconds.",
    "rocketmq_await_time": "Time that messages waited in the client for a listener, in milliseconds.",
    "rocketmq_process_time": "Time that listeners took for a message, in milliseconds.",
}
GAUGES: Final = {
    "rocketmq_consumer_cached_messages": "Messages that a push consumer has received and not processed.",
    "rocketmq_consumer_cached_bytes": "Bytes of messages that a push consumer has received and not processed.",
}


@dataclass(frozen=True, slots=True)
class ClientHistogram:
    """A histogram. COUNTS has one number per bucket: values up to each of BOUNDS, which rise, and larger ones. TOTAL:
    the sum.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def is_sound(self) -> bool:
        """Return whether it is a valid histogram within the limits."""
        bounds = self.bounds
        return (
            len(bounds) <= BUCKETS_MAX
            and len(self.counts) == len(bounds) + 1
            and all(math.isfinite(bound) for bound in bounds)
            and all(low < high for low, high in pairwise(bounds))
            and all(0 <= count < _COUNT_MAX for count in self.counts)
            and math.isfinite(self.total)
        )

    def plus(self, other: ClientHistogram) -> ClientHistogram:
        """Return the sum of both; OTHER alone if its buckets differ."""
        if other.bounds != self.bounds:
            return other
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return replace(self, counts=counts, total=self.total + other.total)


#: The values of LABELS, in their order; "" for a missing one.
LabelValues = tuple[str, ...]
#: The name of a series, and its labels.
_Key = tuple[str, LabelValues]


@dataclass(slots=True)
class _Kept:
    value: ClientHistogram | float
    heard_ms: int


class ClientMetrics:
    """The latest metrics of clients. NOW_MS returns the machine's time."""

    def __init__(self, now_ms: Callable[[], int], *, series_max: int = SERIES_MAX) -> None:
        self._now_ms = now_ms
        self._series_max = series_max
        #: Series by client. The client, and the series, that was updated last is last.
        self._series: dict[str, dict[_Key, _Kept]] = {}
        self._count = 0
        #: Number of series that were dropped because of the limit.
        self.dropped = 0

    def __len__(self) -> int:
        return self._count

    def note(
        self,
        name: str,
        labels: Mapping[str, str],
        histogram: ClientHistogram,
        *,
        is_delta: bool = False,
    ) -> bool:
        """Store HISTOGRAM under NAME and LABELS, as the client names them; return whether it was stored.

        IS_DELTA: add it to the present value; otherwise it has all values since the client started.
        """
        if name not in HISTOGRAMS or not histogram.is_sound():
            return False
        key = (name, _values(labels))
        known = self._series.get(_client(key), {}).get(key)
        if is_delta and known is not None and isinstance(known.value, ClientHistogram):
            histogram = known.value.plus(histogram)
        self._keep(key, histogram)
        return True

    def note_gauge(self, name: str, labels: Mapping[str, str], value: float) -> bool:
        """Store VALUE under NAME and LABELS; return whether it was stored."""
        if name not in GAUGES or not math.isfinite(value):
            return False
        self._keep((name, _values(labels)), value)
        return True

    def _keep(self, key: _Key, value: ClientHistogram | float) -> None:
        client = _client(key)
        own = self._series[client] = self._series.pop(client, {})
        self._count += own.pop(key, None) is None
        own[key] = _Kept(value, self._now_ms())
        if self._count > self._series_max:
            # A client below its share drops a series of the largest client, and so reaches its
            # share soon.
            if len(own) <= max(1, self._series_max // len(self._series)):
                client = max(self._series, key=lambda one: len(self._series[one]))
            self._drop_oldest(client)
            self.dropped += 1

    def _drop_oldest(self, client: str) -> None:
        own = self._series[client]
        del own[next(iter(own))]
        self._count -= 1
        if not own:
            del self._series[client]

    def histograms(self, name: str) -> Iterator[tuple[LabelValues, ClientHistogram]]:
        """Yield the series of NAME."""
        for labels, value in self._of(name):
            if isinstance(value, ClientHistogram):
                yield labels, value

    def gauges(self, name: str) -> Iterator[tuple[LabelValues, float]]:
        """Yield the series of NAME."""
        for labels, value in self._of(name):
            if not isinstance(value, ClientHistogram):
                yield labels, value

    def _of(self, name: str) -> Sequence[tuple[LabelValues, ClientHistogram | float]]:
        self._forget_old()
        return [
            (key[1], kept.value)
            for own in self._series.values()
            for key, kept in own.items()
            if key[0] == name
        ]

    def _forget_old(self) -> None:
        oldest_ms = self._now_ms() - SERIES_AGE_MS
        for client, own in list(self._series.items()):
            for kept in list(own.values()):
                if kept.heard_ms >= oldest_ms:
                    break
                self._drop_oldest(client)


def _client(key: _Key) -> str:
    return key[1][0]


def _values(labels: Mapping[str, str]) -> LabelValues:
    return tuple(labels.get(name, "")[:LABEL_LENGTH_MAX] for name in LABELS)
