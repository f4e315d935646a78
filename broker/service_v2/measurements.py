"""What clients measure, as they send it: OpenTelemetry's protocol, or OpenCensus's.

The settings of a client name the broker itself as receiver (telemetry.py). Histograms and gauges go to `ClientMetrics`,
which says what is kept. Bounds: `_POINTS_MAX` points of one request or series of one message.

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

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from ...proto.gen import opencensus_pb2 as census
from ...proto.gen import otlp_metrics_pb2 as otlp
from ...proto.rpc import Call, MethodTable, Stream, bidi, service, unary
from ..metrics.clients import ClientHistogram, ClientMetrics
from .service import CLIENT_ID
from .sessions import LANGUAGE, Sessions

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
