"""What clients measure and send as OpenCensus has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.metrics.clients import ClientHistogram, ClientMetrics
from pocketmq.broker.metrics.opencensus import METRICS, TRACES, CensusMeasurements
from pocketmq.proto.gen import opencensus_pb2 as census

from ...fake_calls import FakeStream
from .connected import Connected

COST = "rocketmq_send_cost_time"
CACHED = "rocketmq_consumer_cached_messages"


class Agent:
    """Measurements, and the sessions beside them."""

    def __init__(self, folder: Path) -> None:
        connected = Connected(folder)
        connected.sessions.record_activity("c", "GO")
        self.metrics = ClientMetrics(connected.clock.now_ms)
        self._methods = CensusMeasurements(self.metrics, connected.sessions).methods()

    def export(self, *metrics: census.Metric) -> FakeStream:
        """Send METRICS on a stream, and close it."""
        stream = FakeStream()
        receiver = self._methods[f"/{METRICS}/Export"].handler(stream)
        receiver.on_message(census.ExportMetricsServiceRequest())
        receiver.on_message(census.ExportMetricsServiceRequest(metrics=metrics))
        receiver.on_end()
        receiver.on_close()
        return stream

    def open_trace(self, method: str) -> FakeStream:
        stream = FakeStream()
        receiver = self._methods[f"/{TRACES}/{method}"].handler(stream)
        receiver.on_message(census.ExportMetricsServiceResponse())
        assert not stream.is_over
        receiver.on_end()
        receiver.on_close()
        return stream


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def metric(name: str, *points: census.Point, **labels: str) -> census.Metric:
    descriptor = census.MetricDescriptor(
        name=name, label_keys=[census.LabelKey(key=key) for key in labels]
    )
    values = [census.LabelValue(value=value, has_value=True) for value in labels.values()]
    series = census.TimeSeries(label_values=values, points=points)
    return census.Metric(metric_descriptor=descriptor, timeseries=[series])


def distribution(*counts: int) -> census.Point:
    value = census.DistributionValue(
        count=sum(counts),
        sum=7.5,
        buckets=[census.DistributionValue.Bucket(count=count) for count in counts],
    )
    value.bucket_options.explicit.bounds.extend([1.0, 5.0])
    return census.Point(distribution_value=value)


def test_a_distribution_is_kept_with_its_labels_and_the_clients_language(agent: Agent) -> None:
    found = metric(COST, distribution(1, 2, 3), topic="T", client_id="c", invocation_status="")

    stream = agent.export(found)

    assert stream.is_over
    assert not stream.sent
    assert list(agent.metrics.histograms(COST)) == [
        (("c", "T", "", "go", ""), ClientHistogram((1.0, 5.0), (1, 2, 3), 7.5))
    ]


def test_the_latest_point_of_a_client_that_nobody_knows_counts(agent: Agent) -> None:
    agent.export(metric(COST, distribution(1, 0, 0), distribution(2, 0, 0), client_id="other"))

    ((labels, kept),) = agent.metrics.histograms(COST)
    assert (labels[0], labels[3], kept.counts) == ("other", "", (2, 0, 0))


@pytest.mark.parametrize(
    "point", [census.Point(int64_value=3), census.Point(double_value=3.0)], ids=["int", "double"]
)
def test_numbers_are_kept(agent: Agent, point: census.Point) -> None:
    agent.export(metric(CACHED, point, topic="T"))

    assert [value for _, value in agent.metrics.gauges(CACHED)] == [3.0]


def test_what_is_none_of_the_clients_is_passed_over(agent: Agent) -> None:
    torn = census.Point(distribution_value=census.DistributionValue())

    agent.export(metric(COST, torn), metric(COST), metric("goroutines", distribution(1, 1, 1)))

    assert not len(agent.metrics)


@pytest.mark.parametrize("method", ["Export", "Config"])
def test_streams_for_traces_are_held_open_and_left_alone(agent: Agent, method: str) -> None:
    stream = agent.open_trace(method)

    assert stream.is_over
    assert stream.error is None
    assert not stream.sent
