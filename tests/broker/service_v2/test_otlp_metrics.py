"""What clients measure arrives, by client; what is none of it is rejected."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.broker.metrics.clients import ClientHistogram, ClientMetrics
from pocketmq.broker.metrics.opentelemetry import Measurements
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import otlp_metrics_pb2 as otlp
from pocketmq.proto.rpc import MethodTable

from ...fake_calls import FakeCall

COST = "rocketmq_send_cost_time"
CACHED = "rocketmq_consumer_cached_messages"
PATH = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


@pytest.fixture
def metrics() -> ClientMetrics:
    return ClientMetrics(VirtualClock().now_ms)


def histogram(*counts: int, **labels: str) -> otlp.HistogramDataPoint:
    return otlp.HistogramDataPoint(
        attributes=attributes(labels),
        count=sum(counts),
        sum=7.5,
        bucket_counts=counts,
        explicit_bounds=[1.0, 5.0],
    )


def attributes(labels: dict[str, str]) -> list[otlp.KeyValue]:
    return [
        otlp.KeyValue(key=key, value=otlp.AnyValue(string_value=value))
        for key, value in labels.items()
    ]


def export(metrics: ClientMetrics, *found: otlp.Metric, language: str = "JAVA") -> Any:
    methods: MethodTable = Measurements(metrics).methods()
    scope = otlp.ScopeMetrics(metrics=found)
    request = otlp.ExportMetricsServiceRequest(
        resource_metrics=[otlp.ResourceMetrics(scope_metrics=[scope])]
    )
    metadata = {"x-mq-client-id": "c", "x-mq-language": language}
    return methods[PATH].handler(request, FakeCall(metadata=metadata))


def costs(*points: otlp.HistogramDataPoint, is_delta: bool = False) -> otlp.Metric:
    temporality = (
        otlp.AGGREGATION_TEMPORALITY_DELTA if is_delta else otlp.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    return otlp.Metric(
        name=COST,
        histogram=otlp.Histogram(data_points=points, aggregation_temporality=temporality),
    )


def test_a_histogram_is_kept_with_its_labels_and_whose_it_is(metrics: ClientMetrics) -> None:
    reply = export(metrics, costs(histogram(1, 2, 3, topic="T", invocation_status="success")))

    assert not reply.HasField("partial_success")
    assert list(metrics.histograms(COST)) == [
        (("c", "T", "", "java", "success"), ClientHistogram((1.0, 5.0), (1, 2, 3), 7.5))
    ]


def test_counts_since_the_last_time_add_up_and_those_since_the_start_do_not(
    metrics: ClientMetrics,
) -> None:
    for topic, is_delta in (("added", True), ("whole", False)):
        for _ in range(2):
            export(metrics, costs(histogram(1, 0, 1, topic=topic), is_delta=is_delta))

    counts = {labels[1]: kept.counts for labels, kept in metrics.histograms(COST)}
    assert counts == {"added": (2, 0, 2), "whole": (1, 0, 1)}


def test_the_clients_own_word_for_itself_wins(metrics: ClientMetrics) -> None:
    export(metrics, costs(histogram(1, 0, 0, client_id="me")), language="HTTP")

    ((labels, _),) = metrics.histograms(COST)
    assert (labels[0], labels[3]) == ("me", "node_js")


@pytest.mark.parametrize("kind", ["gauge", "sum"])
@pytest.mark.parametrize("value", [{"as_int": 3}, {"as_double": 3.0}], ids=["int", "double"])
def test_numbers_are_kept(metrics: ClientMetrics, kind: str, value: dict[str, Any]) -> None:
    point = otlp.NumberDataPoint(attributes=attributes({"topic": "T"}), **value)
    metric = otlp.Metric(name=CACHED)
    getattr(metric, kind).data_points.append(point)

    export(metrics, metric)

    assert [kept for _, kept in metrics.gauges(CACHED)] == [3.0]


def test_what_is_none_of_the_clients_is_rejected_and_the_rest_kept(metrics: ClientMetrics) -> None:
    torn = otlp.HistogramDataPoint(bucket_counts=[1], explicit_bounds=[2.0, 1.0])
    other = otlp.Metric(name="jvm_memory", histogram=costs(histogram(1, 1, 1)).histogram)

    reply = export(metrics, other, costs(torn, histogram(1, 1, 1)))

    assert reply.partial_success.rejected_data_points == 2
    assert len(metrics) == 1


def test_points_beyond_the_bound_are_rejected(metrics: ClientMetrics) -> None:
    points = [histogram(1, 1, 1, topic=str(number % 10)) for number in range(10_003)]

    reply = export(metrics, costs(*points))

    assert reply.partial_success.rejected_data_points == 3
    assert len(metrics) == 10
