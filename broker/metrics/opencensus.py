"""Metrics from clients by OpenCensus's agent protocol, which RocketMQ clients in Go and C++ use.

Such a client opens three streams. On that of `MetricsService/Export`, each message brings all series, counted from the
start of the process; series above `POINTS_MAX` are skipped. The streams do not name the client. The series do, and the
session of the client gives its language.

Source: opencensus-proto 0.4, agent/metrics/v1 and agent/trace/v1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from ...proto.gen import opencensus_pb2 as census
from ...proto.rpc import MethodTable, Stream, bidi, service
from ..service_v2.sessions import Sessions
from .clients import POINTS_MAX, ClientHistogram, ClientMetrics

METRICS: Final = "opencensus.proto.agent.metrics.v1.MetricsService"
TRACES: Final = "opencensus.proto.agent.trace.v1.TraceService"


class CensusMeasurements:
    """Passes metrics from clients to METRICS. SESSIONS return the languages of clients."""

    def __init__(self, metrics: ClientMetrics, sessions: Sessions) -> None:
        self._metrics = metrics
        self._sessions = sessions

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        request, reply = census.ExportMetricsServiceRequest, census.ExportMetricsServiceResponse
        export = bidi(request, reply, lambda stream: _MetricStream(stream, self))
        return service(METRICS, {"Export": export}) | trace_methods()

    def take(self, request: census.ExportMetricsServiceRequest) -> None:
        """Store the metrics in REQUEST."""
        for metric, series in islice(_series(request), POINTS_MAX):
            labels = _labels(metric.metric_descriptor, series)
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
    """Return the methods for traces. They read nothing, so the type of the messages does not matter."""
    any_type = census.ExportMetricsServiceResponse
    quiet = bidi(any_type, any_type, _QuietStream)
    return service(TRACES, {"Export": quiet, "Config": quiet})


class _QuietStream:
    """A stream that stays open; its messages are ignored."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def on_message(self, message: object) -> None:
        """Ignore the message."""

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        """Nothing to release."""


class _MetricStream(_QuietStream):
    """A stream of metrics."""

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


def _labels(descriptor: census.MetricDescriptor, series: census.TimeSeries) -> dict[str, str]:
    return {
        key.key: label.value
        for key, label in zip(descriptor.label_keys, series.label_values, strict=False)
        if label.value
    }
