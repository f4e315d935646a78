"""The maximum number of items in each repeated field of a request, for every protocol that is served.

    table = bounded(table)        # for a server: larger requests are INVALID_ARGUMENT, and handlers do not see them

The limits keep one request from blocking the event loop before its sender is authenticated. Handlers may have lower
limits of their own, for settings or sums. Items of large requests are counted before they are decoded
(request_wire.py). A type has one entry, wherever it occurs. A type without repeated fields costs nothing, others two
look-ups per field of a request.

A test walks all requests that are served and fails if a repeated field has no limit here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from .request_wire import check_data_of
from .rpc import MethodTable
from .rpc.errors import BadRequest

_V1: Final = "pocketmq.v1"
_V2: Final = "apache.rocketmq.v2"
_OTLP: Final = "opentelemetry.proto.collector.metrics.v1"
_CENSUS: Final = "opencensus.proto.agent.metrics.v1"

#: By type and field. Where a setting is the exact limit, the value here is higher than any sensible setting.
BOUNDS: Final[dict[str, int]] = {
    # Official clients. They send one message, and acknowledge the messages of one receive: 32.
    f"{_V2}.SendMessageRequest.messages": 1_024,
    f"{_V2}.AckMessageRequest.entries": 1_024,
    f"{_V2}.Message.user_properties": 1_024,
    f"{_V2}.SystemProperties.keys": 1_024,
    f"{_V2}.Endpoints.addresses": 1_024,
    f"{_V2}.MessageQueue.accept_message_types": 64,
    f"{_V2}.CustomizedBackoff.next": 1_024,
    f"{_V2}.Publishing.topics": 10_000,
    f"{_V2}.Subscription.subscriptions": 10_000,
    f"{_V2}.Settings.client_properties": 1_024,
    f"{_V2}.SyncLiteSubscriptionRequest.lite_topic_set": 10_000,
    # Messages of PocketMQ's clients: columns. A million items take a few milliseconds.
    f"{_V1}.ProduceRun.sizes": 1_000_000,
    f"{_V1}.LookedAt.steps": 1_000_000,
    f"{_V1}.AtomicCommitRequest.offsets": 1_000,
    f"{_V1}.AtomicCommitRequest.runs": 1_000,
    f"{_V1}.AtomicRun.sizes": 10_000,
    # Queues, members and topics.
    f"{_V1}.CommitOffsetsRequest.offsets": 10_000,
    f"{_V1}.GroupOffsetsRequest.queues": 10_000,
    f"{_V1}.QueueOffsetsRequest.queues": 10_000,
    f"{_V1}.LeaseRequest.queues": 10_000,
    f"{_V1}.ReleaseRequest.queues": 10_000,
    f"{_V1}.Join.subscriptions": 1_000,
    f"{_V1}.Join.held": 10_000,
    f"{_V1}.Heartbeat.held": 10_000,
    f"{_V1}.Plan.shares": 100_000,
    f"{_V1}.Share.queues": 100_000,
    f"{_V1}.GroupConfig.retry_intervals_ms": 1_024,
    f"{_V1}.ResendDeadLettersRequest.queue_offsets": 1_000,
    f"{_V1}.TransactionListener.topics": 10_000,
    f"{_V1}.TopicConfig.attributes": 1_024,
    f"{_V1}.CreateTopicRequest.fields": 64,
    f"{_V1}.CreateGroupRequest.fields": 64,
    # Name servers: the limits are settings (topics_per_route_max, topics_per_broker_max).
    f"{_V1}.RouteRequest.topics": 100_000,
    f"{_V1}.BrokerRegistration.topics": 1_000_000,
    f"{_V1}.BrokerRegistration.gone": 1_000_000,
    # Replicas: one epoch per election.
    f"{_V1}.FollowHello.epochs": 1_000_000,
    f"{_V1}.FollowHello.state_versions": 1_024,
    # Metrics of clients: further points are dropped (broker/metrics/opentelemetry.py).
    f"{_OTLP}.ExportMetricsServiceRequest.resource_metrics": 1_024,
    f"{_OTLP}.Resource.attributes": 1_024,
    f"{_OTLP}.ResourceMetrics.scope_metrics": 1_024,
    f"{_OTLP}.ScopeMetrics.metrics": 1_024,
    f"{_OTLP}.Gauge.data_points": 100_000,
    f"{_OTLP}.Sum.data_points": 100_000,
    f"{_OTLP}.Histogram.data_points": 100_000,
    f"{_OTLP}.NumberDataPoint.attributes": 1_024,
    f"{_OTLP}.HistogramDataPoint.attributes": 1_024,
    f"{_OTLP}.HistogramDataPoint.bucket_counts": 1_024,
    f"{_OTLP}.HistogramDataPoint.explicit_bounds": 1_024,
    f"{_CENSUS}.ExportMetricsServiceRequest.metrics": 1_024,
    f"{_CENSUS}.MetricDescriptor.label_keys": 1_024,
    f"{_CENSUS}.Metric.timeseries": 100_000,
    f"{_CENSUS}.TimeSeries.label_values": 1_024,
    f"{_CENSUS}.TimeSeries.points": 1_024,
    f"{_CENSUS}.DistributionValue.BucketOptions.Explicit.bounds": 1_024,
    f"{_CENSUS}.DistributionValue.buckets": 1_024,
}

Check: TypeAlias = Callable[[Any], None]


def bounded(table: MethodTable) -> MethodTable:
    """Return TABLE with a check of requests before and after they are decoded.

    Raises KeyError if a repeated field has no limit.
    """
    return MethodTable(
        {
            method.path: replace(
                method,
                check=check_of(method.request_type.DESCRIPTOR),
                check_data=check_data_of(method.request_type, BOUNDS),
            )
            for method in table
        }
    )


def is_repeated(field: FieldDescriptor) -> bool:
    """Is FIELD repeated, or a map?"""
    return bool(field.is_repeated)


class _Field(NamedTuple):
    name: str
    #: None: the field is one message.
    limit: int | None
    inner: Check | None


@cache
def check_of(kind: Descriptor) -> Check | None:
    """Return a function that checks messages of KIND and all messages in them; None: they have no repeated fields."""
    fields = [found for field in kind.fields if (found := _field(field)) is not None]
    if not fields:
        return None
    name = kind.full_name

    def check(message: Message) -> None:
        for field, limit, inner in fields:
            if limit is None:
                if inner is not None and message.HasField(field):
                    inner(getattr(message, field))
                continue
            items = getattr(message, field)
            if not items:
                continue
            if len(items) > limit:
                raise BadRequest(
                    f"{name}.{field}: {len(items)} in one request, the limit is {limit}: send it in parts",
                    field=field,
                    limit=limit,
                    value=len(items),
                )
            if inner is not None:
                for item in items:
                    inner(item)

    return check


def _field(field: FieldDescriptor) -> _Field | None:
    kind = field.message_type
    if not is_repeated(field):
        inner = None if kind is None else check_of(kind)
        return None if inner is None else _Field(field.name, None, inner)
    assert field.containing_type is not None
    limit = BOUNDS[f"{field.containing_type.full_name}.{field.name}"]
    if kind is None or kind.GetOptions().map_entry:
        return _Field(field.name, limit, None)
    return _Field(field.name, limit, check_of(kind))
