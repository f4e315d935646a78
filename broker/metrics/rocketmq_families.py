"""Metric families of Apache RocketMQ 5.5.0 on `/metrics`, for its dashboards, alerts, and RocketMQ Studio.

They have its names, units, types and labels. docs/metrics.md lists the differences; a test compares with a page of an
Apache RocketMQ broker. Counters start at 0 with the process.

The event loop copies the tables in one turn. A thread computes the numbers and renders the text. The loop reads when
the oldest messages were stored, in steps.

Limit: `broker.metrics_series_max` series of a kind. `pocketmq_metrics_series_dropped` counts the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.topics import RETRY_PREFIX, TIMER_TOPIC, is_system_topic
from ..groups.lag import GroupLag, Place, StoredTimes, age_ms, note_lag
from ..parts import BrokerParts
from ..service_v2.client_session import ClientSession
from .clients import LABEL_LENGTH_MAX
from .page import Labels, PageFigure
from .traffic import SIZE_BOUNDS, Distribution

#: RocketMQ's permission bits: readable, writable.
_READABLE: Final = 4
_WRITABLE: Final = 2
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
#: Values of broker.metrics_names.
WITH_UNITS: Final = "with-units"
PLAIN: Final = "plain"
#: Names to which newer exporters add another unit than milliseconds. (Other names have always
#: contained "bytes".)
_PLAIN_NAMES: Final[Mapping[str, str]] = {"rocketmq_storage_size_bytes": "rocketmq_storage_size"}
_STORAGE: Final = (("storage_medium", "disk"), ("storage_type", "local"))
#: RocketMQ's names of the ways in which consumers get messages.
_CONSUME_MODES: Final[Mapping[int, str]] = {v2.PULL_CONSUMER: "pull"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Noted:
    """Copy of the tables at one moment."""

    came_in: list[tuple[str, str, list[int], float]]
    went_out: list[tuple[str, str, bool, int, int]]
    dead: list[tuple[str, str, int]]
    outcomes: list[tuple[str, int, int, Distribution]]
    calls: list[tuple[str, str, bool, bool, Distribution]]
    halves: dict[str, int]
    timed: list[tuple[str, int]]
    producers: dict[tuple[str, str, str], int]
    consumers: dict[tuple[str, str, str, str, str], int]
    #: Single values: name, help text, value, labels.
    single: list[tuple[str, str, float, Labels]]
    left_out: dict[str, int]


class RocketMQFigures:
    """The families of a broker with PARTS. STATUS returns its state. SERIES_MAX returns the limit of series of one
    kind.

    NAMES: WITH_UNITS, or PLAIN for the names of exporters of 5.0 to 5.3.
    """

    def __init__(
        self,
        parts: BrokerParts,
        status: Callable[[], pb.BrokerStatusReply],
        series_max: Callable[[], int],
        names: Callable[[], str] = lambda: WITH_UNITS,
    ) -> None:
        self._names = names
        self._parts = parts
        self._status = status
        self._series_max = series_max
        self._times = StoredTimes(parts.store, parts.topics)

    async def __call__(self) -> Iterable[PageFigure]:
        """Return the present metrics."""
        parts, status = self._parts, self._status()
        noted = self._noted(status)
        lag_noted = note_lag(
            parts.store, parts.topics, parts.offsets, parts.pops, self._series_max()
        )
        noted.left_out["consumer_lag"] = lag_noted.left_out
        found, stored = await self._times.read(lag_noted)
        who: Labels = (
            ("cluster", status.cluster),
            ("node_id", status.broker_name),
            ("node_type", "broker"),
            ("otel_scope_name", "broker-meter"),
        )
        proxy: Labels = (*who[:2], ("node_type", "proxy"), who[3], ("proxy_mode", "local"))
        figures = _figures(noted, found, stored, status.now_ms, who, proxy)
        return figures if self._names() == WITH_UNITS else map(_without_unit, figures)

    def _noted(self, status: pb.BrokerStatusReply) -> _Noted:
        parts = self._parts
        traffic = parts.traffic
        producers = _producers(parts.clients.sessions)
        consumers = _consumers(parts.clients.sessions) + self._members(status.version)
        halves = parts.transactions.open_by_topic()
        for topic in traffic.outcomes:  # A topic that had open transactions has none now.
            halves.setdefault(topic, 0)
        timed = sorted(parts.store.timers.metrics.counts.items())
        return _Noted(
            came_in=[
                (topic, kind, sizes.counts.copy(), sizes.total)
                for (topic, kind), sizes in sorted(traffic.came_in.items())
            ],
            went_out=[
                (topic, group, retried or topic.startswith(RETRY_PREFIX), out.messages, out.bytes)
                for (topic, group, retried), out in traffic.went_out.items()
            ],
            dead=[(topic, group, count) for (topic, group), count in traffic.dead.items()],
            outcomes=[
                (topic, one.committed, one.rolled_back, one.waits_s.copy())
                for topic, one in sorted(traffic.outcomes.items())
            ],
            calls=[(*key, took.copy()) for key, took in sorted(traffic.calls.items())],
            halves=dict(sorted(halves.items())[: self._series_max()]),
            timed=timed[: self._series_max()],
            producers=dict(producers.most_common(self._series_max())),
            consumers=dict(consumers.most_common(self._series_max())),
            single=self._single(status),
            left_out={
                **traffic.left_out,
                "half_messages": max(0, len(halves) - self._series_max()),
                "timing_messages": max(0, len(timed) - self._series_max()),
                "producer_connections": max(0, len(producers) - self._series_max()),
                "consumer_connections": max(0, len(consumers) - self._series_max()),
            },
        )

    def _members(self, version: str) -> Counter[tuple[str, str, str, str, str]]:
        """Count members that share queues (PocketMQ clients)."""
        return Counter(
            {
                (group, "python", version, "push", "pocketmq"): count
                for group, count in self._parts.coordination.coordinator.member_counts()
            }
        )

    def _single(self, status: pb.BrokerStatusReply) -> list[tuple[str, str, float, Labels]]:
        parts, store = self._parts, self._parts.store
        timers = store.timers
        entered, timer_end = timers.queue_offset, store.queue_bounds(TIMER_TOPIC, 0)[1]
        waits = entered < timer_end
        waits_ms = store.stored_ms(TIMER_TOPIC, 0, entered) if waits else None
        oldest_ms = store.log_stored_ms(store.min_log_offset)
        return [
            (
                "topic_number",
                "Topics, system topics included.",
                len(parts.topics.names()),
                (),
            ),
            ("consumer_group_number", "Consumer groups.", len(parts.groups.all()), ()),
            (
                "broker_permission",
                "Permission of the broker: 6 read and write, 4 read only.",
                _READABLE | (_WRITABLE if status.writable else 0),
                (),
            ),
            (
                "processor_watermark",
                "Waiting calls: sends that wait for a flush, fetches that wait for messages.",
                parts.sends.waiting,
                (("processor", "send"),),
            ),
            (
                "processor_watermark",
                "",
                len(parts.purgatory),
                (("processor", "pull"),),
            ),
            (
                "storage_size_bytes",
                "Bytes of the log, from its oldest record to its newest.",
                store.max_log_offset - store.min_log_offset,
                _STORAGE,
            ),
            (
                "storage_flush_behind_bytes",
                "Bytes of the log that are not flushed to disk yet.",
                max(0, store.max_log_offset - store.flushed_offset),
                _STORAGE,
            ),
            (
                "storage_dispatch_behind_bytes",
                "Bytes of the log that are not entered in queues yet.",
                max(0, store.max_log_offset - store.dispatched_offset),
                _STORAGE,
            ),
            (
                "storage_message_reserve_time_milliseconds",
                "Age of the oldest record of the log.",
                _since(oldest_ms, status.now_ms),
                _STORAGE,
            ),
            (
                "timer_enqueue_lag",
                "Scheduled messages that are not entered in the timer wheel yet.",
                max(0, timer_end - entered),
                _STORAGE,
            ),
            (
                "timer_enqueue_latency_milliseconds",
                "Age of the oldest scheduled message that is not entered in the timer wheel yet.",
                _since(waits_ms, status.now_ms),
                _STORAGE,
            ),
            (
                "timer_dequeue_lag",
                "Messages in the timer wheel.",
                timers.pending,
                _STORAGE,
            ),
            (
                "timer_dequeue_latency_milliseconds",
                "Time by which the timer wheel is behind the clock.",
                _since(timers.read_ms if timers.pending else None, status.now_ms),
                _STORAGE,
            ),
        ]


def _since(at_ms: int | None, now_ms: int) -> int:
    return 0 if at_ms is None else max(0, now_ms - at_ms)


def _producers(sessions: Iterable[ClientSession]) -> Counter[tuple[str, str, str]]:
    """Count the official clients that produce, by language, version and protocol."""
    return Counter(
        (*_agent(one), "grpc")
        for one in sessions
        if one.settings is not None and one.settings.HasField("publishing")
    )


def _consumers(sessions: Iterable[ClientSession]) -> Counter[tuple[str, str, str, str, str]]:
    """Count the official clients that consume, by group, language, version, consume mode and protocol."""
    return Counter(
        (
            one.settings.subscription.group.name,
            *_agent(one),
            _CONSUME_MODES.get(one.settings.client_type, "pop"),
            "grpc",
        )
        for one in sessions
        if one.settings is not None and one.settings.HasField("subscription")
    )


def _agent(session: ClientSession) -> tuple[str, str]:
    version = "" if session.settings is None else session.settings.user_agent.version
    return session.language.lower()[:LABEL_LENGTH_MAX], version.lower()[:LABEL_LENGTH_MAX]


def _figures(
    noted: _Noted,
    found: Iterable[GroupLag],
    stored: Mapping[Place, int],
    now_ms: int,
    who: Labels,
    proxy: Labels,
) -> Iterator[PageFigure]:
    """Yield all families: what was NOTED, and the lags FOUND, whose oldest messages were STORED; WHO is on all."""
    yield PageFigure("gauge", "target_info", "Identity of the broker (OpenTelemetry).", 1)
    yield PageFigure("gauge", "rocketmq_proxy_up", "1: official clients are served.", 1, proxy)
    for name, what, value, labels in noted.single:
        yield PageFigure("gauge", f"rocketmq_{name}", what, value, who + labels)
    yield from _traffic(noted, who)
    yield from _transactions(noted, who)
    yield from _clients(noted, who)
    yield from _lag(list(found), stored, now_ms, who)
    for kind, left_out in noted.left_out.items():
        yield PageFigure(
            "gauge",
            "pocketmq_metrics_series_dropped",
            "Series above broker.metrics_series_max: gauges not shown, counters dropped.",
            left_out,
            (("kind", kind),),
        )


def _traffic(noted: _Noted, who: Labels) -> Iterator[PageFigure]:
    came = [
        ((*who, *_topic(topic), ("message_type", kind)), counts, total)
        for topic, kind, counts, total in noted.came_in
    ]
    for labels, counts, _ in came:
        name, what = "rocketmq_messages_in_total", "Messages received and stored."
        yield PageFigure("counter", name, what, sum(counts), labels)
    for labels, _, total in came:
        name, what = "rocketmq_throughput_in_total", "Record bytes of received messages."
        yield PageFigure("counter", name, what, total, labels)
    for labels, counts, total in came:
        name, what = "rocketmq_message_size", "Record sizes of stored messages, in bytes."
        sizes = Distribution(SIZE_BOUNDS, counts, total)
        yield PageFigure("histogram", name, what, sizes, labels)
    went = [
        ((*who, *_pair(group, topic), _retry(is_retry)), messages, size)
        for topic, group, is_retry, messages, size in noted.went_out
    ]
    for labels, messages, _ in went:
        name, what = "rocketmq_messages_out_total", "Messages delivered to groups."
        yield PageFigure("counter", name, what, messages, labels)
    for labels, _, size in went:
        name, what = "rocketmq_throughput_out_total", "Record bytes of delivered messages."
        yield PageFigure("counter", name, what, size, labels)
    for topic, group, count in noted.dead:
        name, what = "rocketmq_send_to_dlq_messages_total", "Messages moved to dead-letter queues."
        yield PageFigure("counter", name, what, count, (*who, *_pair(group, topic)))
    for topic, count in noted.timed:
        name, what = "rocketmq_timing_messages", "Scheduled messages, not delivered yet."
        yield PageFigure("gauge", name, what, count, (*who, ("topic", topic), *_STORAGE))


def _transactions(noted: _Noted, who: Labels) -> Iterator[PageFigure]:
    for topic, count in noted.halves.items():
        name, what = "rocketmq_half_messages", "Transactions that have not ended."
        yield PageFigure("gauge", name, what, count, (*who, ("topic", topic)))
    for topic, committed, _, _ in noted.outcomes:
        name, what = "rocketmq_commit_messages_total", "Committed transactions."
        yield PageFigure("counter", name, what, committed, (*who, ("topic", topic)))
    for topic, _, rolled_back, _ in noted.outcomes:
        name, what = "rocketmq_rollback_messages_total", "Rolled back transactions."
        yield PageFigure("counter", name, what, rolled_back, (*who, ("topic", topic)))
    for topic, _, _, waits_s in noted.outcomes:
        name = "rocketmq_finish_message_latency_milliseconds"
        what = "Time until transactions ended; in seconds as in Apache RocketMQ, despite the name."
        yield PageFigure("histogram", name, what, waits_s, (*who, ("topic", topic)))


def _clients(noted: _Noted, who: Labels) -> Iterator[PageFigure]:
    for (language, version, protocol), count in sorted(noted.producers.items()):
        name, what = "rocketmq_producer_connections", "Official clients that send messages."
        agent: Labels = (("language", language), ("protocol_type", protocol), ("version", version))
        yield PageFigure("gauge", name, what, count, who + agent)
    for (group, language, version, mode, protocol), count in sorted(noted.consumers.items()):
        name, what = (
            "rocketmq_consumer_connections",
            "Clients that consume messages, as members of groups.",
        )
        member: Labels = (
            ("consume_mode", mode),
            ("consumer_group", group),
            ("is_system", _text(group.startswith(_SYSTEM_GROUP_PREFIX))),
            ("language", language),
            ("protocol_type", protocol),
            ("version", version),
        )
        yield PageFigure("gauge", name, what, count, who + member)
    for method, code, waited, failed, took in noted.calls:
        name, what = "rocketmq_rpc_latency_milliseconds", "Duration of calls of official clients."
        call: Labels = (
            ("is_long_polling", _text(waited)),
            ("protocol_type", "grpc"),
            ("request_code", method),
            ("response_code", code),
            ("result", "process_request_failed" if failed else "success"),
        )
        yield PageFigure("histogram", name, what, took, who + call)


def _lag(
    found: list[GroupLag], stored: Mapping[Place, int], now_ms: int, who: Labels
) -> Iterator[PageFigure]:
    shown = [((*who, *_pair(lag.group, lag.topic), _retry(lag.is_retry)), lag) for lag in found]
    families: list[tuple[str, str, Callable[[GroupLag], int]]] = [
        (
            "lag_messages",
            "Messages that a group has not processed: ready or in flight.",
            lambda lag: lag.messages,
        ),
        (
            "lag_latency_milliseconds",
            "Age of the oldest message that a group has not processed.",
            lambda lag: age_ms(lag.unfinished, stored, now_ms),
        ),
        (
            "inflight_messages",
            "Messages delivered to a group and not processed yet.",
            lambda lag: lag.in_flight,
        ),
        (
            "queueing_latency_milliseconds",
            "Age of the oldest message that was not delivered to a group yet.",
            lambda lag: age_ms(lag.unread, stored, now_ms),
        ),
        (
            "ready_messages",
            "Messages that were not delivered to a group yet, or are due for redelivery.",
            lambda lag: lag.ready,
        ),
    ]
    for name, what, value in families:
        for labels, lag in shown:
            yield PageFigure("gauge", f"rocketmq_consumer_{name}", what, value(lag), labels)


def _without_unit(figure: PageFigure) -> PageFigure:
    """Return `figure` under its name in exporters of 5.0 to 5.3: without the unit that later ones add."""
    name = figure.name.removesuffix("_milliseconds")
    return figure._replace(name=_PLAIN_NAMES.get(name, name))


def _topic(topic: str) -> Labels:
    return ("topic", topic), ("is_system", _text(is_system_topic(topic)))


def _pair(group: str, topic: str) -> Labels:
    is_system = is_system_topic(topic) or group.startswith(_SYSTEM_GROUP_PREFIX)
    return ("topic", topic), ("consumer_group", group), ("is_system", _text(is_system))


def _retry(is_retry: bool) -> tuple[str, str]:
    return "is_retry", _text(is_retry)


def _text(value: bool) -> str:
    return "true" if value else "false"
