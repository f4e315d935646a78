"""What clients measure, as they send it: OpenTelemetry's protocol, `MetricsService/Export`, once a minute.

The settings of a client name the broker itself as receiver (settings.py). Histograms and gauges go to `ClientMetrics`,
which says what is kept; the others are passed over, and counted as rejected. A series that does not say its client is
that of the caller; its language is what the caller says of itself.

Bounds: `_POINTS_MAX` points of one request; further ones are rejected.

Source: opentelemetry-proto 1.x, metrics_service.proto; v2-protocol §1.4, `Metric`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from ...proto.gen import otlp_metrics_pb2 as otlp
from ...proto.rpc import Call, MethodTable, service, unary
from ..client_metrics import ClientMetrics, Histogram
from .service import CLIENT_ID
from .sessions import LANGUAGE

SERVICE: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"
_POINTS_MAX: Final = 10_000
#: Clients of Node.js go by another name.
_LANGUAGES: Final = {"http": "node_js"}

_Point: TypeAlias = otlp.HistogramDataPoint | otlp.NumberDataPoint


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
        reply = otlp.ExportMetricsServiceResponse()
        if rejected:
            reply.partial_success.rejected_data_points = rejected
            reply.partial_success.error_message = (
                f"{rejected} points are not what clients measure, or are beyond {_POINTS_MAX}"
            )
        return reply

    def _keep(self, metric: otlp.Metric, point: _Point, caller: dict[str, str]) -> bool:
        labels = caller | _labels(point.attributes)
        if isinstance(point, otlp.NumberDataPoint):
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            return self._metrics.note_gauge(metric.name, labels, value)
        histogram = Histogram(tuple(point.explicit_bounds), tuple(point.bucket_counts), point.sum)
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
