"""Metrics from clients by OpenTelemetry's `MetricsService/Export`; each client sends them once per minute.

The settings of a client name the broker as receiver (service_v2/client_settings.py). Metrics other than histograms and
gauges, and points above `POINTS_MAX` in one request, are skipped and counted as rejected.

Source: opentelemetry-proto 1.x, metrics_service.proto; v2-protocol §1.4, `Metric`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from ...proto.gen import otlp_metrics_pb2 as otlp
from ...proto.rpc import Call, MethodTable, service, unary
from ..service_v2.heartbeats import LANGUAGE
from ..service_v2.service import CLIENT_ID
from .clients import POINTS_MAX, ClientHistogram, ClientMetrics

SERVICE: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"
#: Clients in Node.js use another name.
_LANGUAGES: Final = {"http": "node_js"}

_Point: TypeAlias = otlp.HistogramDataPoint | otlp.NumberDataPoint


class Measurements:
    """Passes metrics from clients to METRICS."""

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
        """Store the metrics in REQUEST."""
        metadata = call.metadata
        language = metadata.get(LANGUAGE, "").lower()
        caller = {
            "client_id": metadata.get(CLIENT_ID, ""),
            "language": _LANGUAGES.get(language, language),
        }
        points = _points(request)
        kept = [self._keep(metric, point, caller) for metric, point in islice(points, POINTS_MAX)]
        rejected = kept.count(False) + sum(1 for _ in points)
        if not rejected:
            return otlp.ExportMetricsServiceResponse()
        reason = f"{rejected} points have other metrics than those of clients, or exceed the limit {POINTS_MAX}"
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
