"""What clients of Apache RocketMQ 5 measure, kept for the broker's `/metrics`.

Such a client sends its histograms once a minute: how long its sends took, how old messages were when they came, how
long they waited for a listener, and how long that took; a push consumer says besides how much it holds. A series is one
name with one set of labels: client, topic, group, language, and the status of what was measured.

Bounds: `SERIES_MAX` series, shared between the clients: beyond, whoever has more than an equal share, and else whoever
has most, loses the one that was not heard of for longest, which is counted. One that was not heard of for
`SERIES_AGE_MS` is dropped when somebody asks. A histogram has at most `BUCKETS_MAX` bounds, a
label at most `LABEL_LENGTH_MAX` characters, the rest is cut off. What is no such histogram is not kept: `False`.

Not thread-safe: the event loop owns it.

What clients measure, as they send it: OpenTelemetry's protocol, or OpenCensus's.

The settings of a client name the broker itself as receiver (client_settings.py). Histograms and gauges go to
`ClientMetrics`, which says what is kept. Bounds: `_POINTS_MAX` points of one request or series of one message.

OpenTelemetry, `MetricsService/Export`, once a minute: what is neither histogram nor gauge is passed over, and counted
as rejected, like points beyond the bound. A series that does not say its client is that of the caller; its language is
what the caller says of itself.

OpenCensus, by clients in Go and C++: such a client opens three streams to the receiver. Only `MetricsService/Export` is
of interest: every message brings all series, counted from the start of the process; those beyond the bound are passed
over. The two for traces are held open and left alone, since the client would otherwise connect anew again and again.
The streams do not say whose they are; the series do, and a client's language is known from its session.

Source: opentelemetry-proto 1.x, metrics_service.proto; opencensus-proto 0.4, agent/metrics/v1 and agent/trace/v1;
v2-protocol §1.4, `Metric`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Final, TypeAlias

from ...proto.gen import opencensus_pb2 as census, otlp_metrics_pb2 as otlp
from ...proto.rpc import Call, MethodTable, Stream, bidi, service, unary
from ..service_v2.heartbeats import LANGUAGE
from ..service_v2.service import CLIENT_ID
from ..service_v2.sessions import Sessions

SERIES_MAX: Final = 1_000
SERIES_AGE_MS: Final = 900_000
BUCKETS_MAX: Final = 32
LABEL_LENGTH_MAX: Final = 255
_COUNT_MAX: Final = 1 << 63

#: What a client calls a label, and what `/metrics` does.
LABELS: Final = {
    "client_id": "client",
    "topic": "topic",
    "consumer_group": "group",
    "language": "language",
    "invocation_status": "status",
}
HISTOGRAMS: Final = {
    "rocketmq_send_cost_time": "How long sends took, in milliseconds, as clients measured it.",
    "rocketmq_delivery_latency": "How long messages travelled from the broker to the client, in milliseconds.",
    "rocketmq_await_time": "How long messages waited at the client for a listener, in milliseconds.",
    "rocketmq_process_time": "How long listeners took for a message, in milliseconds.",
}
GAUGES: Final = {
    "rocketmq_consumer_cached_messages": "Messages that a push consumer has received and not finished.",
    "rocketmq_consumer_cached_bytes": "Their bytes.",
}


@dataclass(frozen=True, slots=True)
class ClientHistogram:
    """How many values lay up to each of BOUNDS, which ascend, and in the last of COUNTS above them all; their TOTAL."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Return how many values there were."""
        return sum(self.counts)

    def is_sound(self) -> bool:
        """Is it within the bounds, and a histogram?"""
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
        """Return both together; OTHER alone if it has other bounds."""
        if other.bounds != self.bounds:
            return other
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return replace(self, counts=counts, total=self.total + other.total)


#: The values of LABELS, in their order; "" for one that was not given.
LabelValues = tuple[str, ...]
#: The name of a series, and its labels.
_Key = tuple[str, LabelValues]


@dataclass(slots=True)
class _Kept:
    value: ClientHistogram | float
    heard_ms: int


class ClientMetrics:
    """The latest that clients have said. NOW_MS is the machine's time."""

    def __init__(self, now_ms: Callable[[], int], *, series_max: int = SERIES_MAX) -> None:
        self._now_ms = now_ms
        self._series_max = series_max
        #: By client; of clients, and of series, the one that was heard of last is last.
        self._series: dict[str, dict[_Key, _Kept]] = {}
        self._count = 0
        #: Series that others took the place of.
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
        """Keep HISTOGRAM under NAME and LABELS, which are as the client calls them; return whether it could be kept.

        IS_DELTA: it is to be added to what is kept; else it says all since the client began.
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
        """Keep VALUE under NAME and LABELS; return whether it could be kept."""
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
            # Whoever is below its share looks for the largest, and soon has its share.
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


# ---------------------------------------------------------------- what clients measure, as they send it


SERVICE: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"
_POINTS_MAX: Final = 10_000
#: Clients of Node.js go by another name.
_LANGUAGES: Final = {"http": "node_js"}

_Point: TypeAlias = otlp.HistogramDataPoint | otlp.NumberDataPoint
METRICS: Final = "opencensus.proto.agent.metrics.v1.MetricsService"
TRACES: Final = "opencensus.proto.agent.trace.v1.TraceService"


# --- OpenTelemetry


class Measurements:
    """Hands what clients measure to METRICS."""

    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            SERVICE,
            {
                "Export": unary(
                    otlp.ExportMetricsServiceRequest, otlp.ExportMetricsServiceResponse, self.take
                )
            },
        )

    def take(
        self, request: otlp.ExportMetricsServiceRequest, call: Call
    ) -> otlp.ExportMetricsServiceResponse:
        """Keep what REQUEST brings."""
        metadata = call.metadata
        language = metadata.get(LANGUAGE, "").lower()
        caller = {
            "client_id": metadata.get(CLIENT_ID, ""),
            "language": _LANGUAGES.get(language, language),
        }
        points = _points(request)
        kept = [self._keep(metric, point, caller) for metric, point in islice(points, _POINTS_MAX)]
        rejected = kept.count(False) + sum(1 for _ in points)
        if not rejected:
            return otlp.ExportMetricsServiceResponse()
        reason = f"{rejected} points are not what clients measure, or are beyond {_POINTS_MAX}"
        return otlp.ExportMetricsServiceResponse(
            partial_success=otlp.ExportMetricsPartialSuccess(
                rejected_data_points=rejected, error_message=reason
            )
        )

    def _keep(self, metric: otlp.Metric, point: _Point, caller: dict[str, str]) -> bool:
        labels = caller | _labels(point.attributes)
        if isinstance(point, otlp.NumberDataPoint):
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            return self._metrics.note_gauge(metric.name, labels, value)
        histogram = ClientHistogram(
            tuple(point.explicit_bounds), tuple(point.bucket_counts), point.sum
        )
        temporality = metric.histogram.aggregation_temporality
        is_delta = temporality == otlp.AGGREGATION_TEMPORALITY_DELTA
        return self._metrics.note(metric.name, labels, histogram, is_delta=is_delta)


def _points(
    request: otlp.ExportMetricsServiceRequest,
) -> Iterator[tuple[otlp.Metric, _Point]]:
    """Yield every point of REQUEST, with its metric."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.histogram.data_points:
                    yield metric, point
                for number in (*metric.gauge.data_points, *metric.sum.data_points):
                    yield metric, number


def _labels(attributes: Iterable[otlp.KeyValue]) -> dict[str, str]:
    return {
        attribute.key: attribute.value.string_value
        for attribute in attributes
        if attribute.value.WhichOneof("value") == "string_value"
    }


# --- OpenCensus


class CensusMeasurements:
    """Hands what clients measure to METRICS; SESSIONS tell their languages."""

    def __init__(self, metrics: ClientMetrics, sessions: Sessions) -> None:
        self._metrics = metrics
        self._sessions = sessions

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        request, reply = census.ExportMetricsServiceRequest, census.ExportMetricsServiceResponse
        export = bidi(request, reply, lambda stream: _MetricStream(stream, self))
        return service(METRICS, {"Export": export}) | trace_methods()

    def take(self, request: census.ExportMetricsServiceRequest) -> None:
        """Keep what REQUEST brings."""
        for metric, series in islice(_series(request), _POINTS_MAX):
            labels = _census_labels(metric.metric_descriptor, series)
            session = self._sessions.find(labels.get("client_id", ""))
            if session is not None:
                labels["language"] = session.language.lower()
            self._keep(metric.metric_descriptor.name, labels, series.points[-1])

    def _keep(self, name: str, labels: dict[str, str], point: census.Point) -> None:
        if not point.HasField("distribution_value"):
            is_int = point.HasField("int64_value")
            self._metrics.note_gauge(
                name, labels, point.int64_value if is_int else point.double_value
            )
            return
        found = point.distribution_value
        bounds = tuple(found.bucket_options.explicit.bounds)
        counts = tuple(bucket.count for bucket in found.buckets)
        self._metrics.note(name, labels, ClientHistogram(bounds, counts, found.sum))


def trace_methods() -> MethodTable:
    """Return the methods for traces, of which nothing is read, so that any type takes them."""
    any_type = census.ExportMetricsServiceResponse
    quiet = bidi(any_type, any_type, _QuietStream)
    return service(TRACES, {"Export": quiet, "Config": quiet})


class _QuietStream:
    """A stream that is held open and left alone."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def on_message(self, message: object) -> None:
        """Pass over what comes."""

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        """There is nothing to let go of."""


class _MetricStream(_QuietStream):
    """A stream of measurements."""

    def __init__(self, stream: Stream, measurements: CensusMeasurements) -> None:
        super().__init__(stream)
        self._measurements = measurements

    def on_message(self, message: object) -> None:
        assert isinstance(message, census.ExportMetricsServiceRequest)
        self._measurements.take(message)


def _series(
    request: census.ExportMetricsServiceRequest,
) -> Iterator[tuple[census.Metric, census.TimeSeries]]:
    """Yield every series of REQUEST that has a point."""
    for metric in request.metrics:
        for series in metric.timeseries:
            if series.points:
                yield metric, series


def _census_labels(
    descriptor: census.MetricDescriptor, series: census.TimeSeries
) -> dict[str, str]:
    return {
        key.key: label.value
        for key, label in zip(descriptor.label_keys, series.label_values, strict=False)
        if label.value
    }
