"""The settings with which the broker answers an official client.

The answer has the settings of the client, with these values of the broker:

    producer   three attempts, 10 ms to 1 s apart; the largest body; that types are checked
    consumer   from its group: orderly or not, attempts, and the back-off between them; batches of 32; polls of 20 s
    both       the receiver of the client's metrics

A group that does not exist counts as one with the defaults: the broker creates it at the first receive. Clients of
Node.js understand only an exponential back-off.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from ...proto.errors import GroupNotFound, InvalidArgument
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...store.format.beans import INT_MAX
from ...store.format.state_tables import GroupConfig
from ..consumer_groups import Groups
from ..pop.lite_receives import BIND_TOPIC
from ..pop.service import BATCH_MAX
from ..retry_policies import announced_retry_intervals_of, exponential_of
from .receiving import POLLING_MOST_MS
from .request_checks import INVISIBLE_MAX_MS, LITE_TOPIC_LENGTH_MAX, group_name, topic_name
from .statuses import Refused

LITE_TOPICS_MAX: Final = 2_000
LITE_CONSUMERS: Final = frozenset({v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER})
SETTINGS_BYTES_MAX: Final = 1024 * 1024
#: Group attribute: limit of lite topics per client.
_LITE_QUOTA_ATTRIBUTE: Final = "lite.sub.client.quota"
_SEND_ATTEMPTS: Final = 3
_SEND_BACKOFF_MS: Final = (10, 1_000, 2.0)
#: For clients that do not support a list of delays; the broker replaces delays that are too short.
_NODE_BACKOFF_MS: Final = (1_000, 7_200_000, 2.0)
_CONSUMERS: Final = frozenset(
    {
        v2.CLIENT_TYPE_UNSPECIFIED,
        v2.PUSH_CONSUMER,
        v2.SIMPLE_CONSUMER,
        v2.PULL_CONSUMER,
        v2.LITE_PUSH_CONSUMER,
        v2.LITE_SIMPLE_CONSUMER,
    }
)


class SettingsRules:
    """Checks and answers settings. RETRY_DELAYS_MS applies to groups without a retry policy.

    CHECKS_TYPES: whether messages of another type than their topic's are refused. BODY_MAX: limit of a body in bytes.
    """

    def __init__(
        self, groups: Groups, retry_delays_ms: Sequence[int], *, checks_types: bool, body_max: int
    ) -> None:
        self._groups = groups
        self._body_max = body_max
        self._checks_types = checks_types
        self._retry_delays_ms = retry_delays_ms

    def check(self, settings: v2.Settings) -> None:
        """Raise InvalidArgument for invalid SETTINGS."""
        size = settings.ByteSize()
        if size > SETTINGS_BYTES_MAX:
            raise InvalidArgument(
                f"settings have {size} bytes, the limit is {SETTINGS_BYTES_MAX}: use fewer topics",
                field="settings",
                limit=SETTINGS_BYTES_MAX,
                value=size,
            )
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise InvalidArgument(
                "settings have neither publishing nor subscription: set the one that the client does",
                field="settings",
            )
        is_producer = kind == "publishing"
        if settings.client_type not in (
            (v2.CLIENT_TYPE_UNSPECIFIED, v2.PRODUCER) if is_producer else _CONSUMERS
        ):
            raise InvalidArgument(
                f"client_type is {_type_name(settings.client_type)}, but the settings are those of a"
                f" {'producer' if is_producer else 'consumer'}: send settings of the same type",
                field="client_type",
                value=_type_name(settings.client_type),
            )
        if is_producer:
            for topic in settings.publishing.topics:
                topic_name(topic)
        else:
            group = group_name(settings.subscription.group, self._groups)
            for entry in settings.subscription.subscriptions:
                topic_name(entry.topic)
            self._check_lite(settings, group)

    def _check_lite(self, settings: v2.Settings, group: str) -> None:
        """Raise an error unless the group is for lite consumers, and only then they are in it."""
        known = self._groups.find(group)
        parent = "" if known is None else known.attributes.get(BIND_TOPIC, "")
        is_lite = settings.client_type in LITE_CONSUMERS
        if is_lite and not parent:
            raise InvalidArgument(
                f"group {group!r} is not for lite consumers: create it with `pocketmq group create {group}"
                " --lite TOPIC`, or use an ordinary consumer",
                field="group",
                value=group,
            )
        if parent and not is_lite:
            raise InvalidArgument(
                f"group {group!r} is for lite consumers of topic {parent!r} ({BIND_TOPIC}): use a lite consumer, or"
                " another group",
                field="client_type",
                value=_type_name(settings.client_type),
            )
        for entry in settings.subscription.subscriptions if is_lite else ():
            check_parent(known, entry.topic.name)

    def answer(self, settings: v2.Settings, measurements: v2.Endpoints | None) -> v2.Settings:
        """Return the settings for a client with SETTINGS. MEASUREMENTS: the receiver of its metrics; None: it sends
        none.
        """
        answer = v2.Settings()
        answer.CopyFrom(settings)
        if settings.HasField("publishing"):
            self._answer_producer(answer)
        else:
            self._answer_consumer(answer)
        answer.metric.CopyFrom(
            v2.Metric(on=False)
            if measurements is None
            else v2.Metric(on=True, endpoints=measurements)
        )
        return answer

    def _answer_producer(self, answer: v2.Settings) -> None:
        publishing = answer.publishing
        publishing.max_body_size = self._body_max
        publishing.validate_message_type = self._checks_types
        answer.backoff_policy.CopyFrom(
            v2.RetryPolicy(
                max_attempts=_SEND_ATTEMPTS, exponential_backoff=_backoff(*_SEND_BACKOFF_MS)
            )
        )

    def _answer_consumer(self, answer: v2.Settings) -> None:
        group = self._group(answer.subscription.group.name)
        subscription = answer.subscription
        subscription.fifo = group.consume_message_orderly
        subscription.receive_batch_size = BATCH_MAX
        subscription.long_polling_timeout.FromMilliseconds(POLLING_MOST_MS)
        subscription.lite_subscription_quota = lite_quota(group)
        subscription.max_lite_topic_size = LITE_TOPIC_LENGTH_MAX
        policy = v2.RetryPolicy(max_attempts=min(max(group.retry_times_max, 0) + 1, INT_MAX))
        growing = exponential_of(group.retry_policy)
        if growing is not None:
            initial, longest, multiplier = growing
            policy.exponential_backoff.CopyFrom(
                _backoff(min(initial, INVISIBLE_MAX_MS), min(longest, INVISIBLE_MAX_MS), multiplier)
            )
        elif answer.user_agent.language == v2.NODE_JS:
            policy.exponential_backoff.CopyFrom(_backoff(*_NODE_BACKOFF_MS))
        else:
            delays = announced_retry_intervals_of(group.retry_policy) or self._retry_delays_ms
            policy.customized_backoff.CopyFrom(
                v2.CustomizedBackoff(
                    next=[timedelta(milliseconds=min(one, INVISIBLE_MAX_MS)) for one in delays]
                )
            )
        answer.backoff_policy.CopyFrom(policy)

    def _group(self, name: str) -> GroupConfig:
        try:
            return self._groups.get(name)
        except GroupNotFound:
            return GroupConfig(name=name)


def check_parent(group: GroupConfig | None, topic: str) -> None:
    """Raise Refused (ILLEGAL_TOPIC) unless GROUP consumes the lite topics of TOPIC."""
    parent = "" if group is None else group.attributes.get(BIND_TOPIC, "")
    if group is not None and parent != topic:
        to = f"of topic {parent!r}" if parent else "not for lite consumers"
        raise Refused(
            v2.ILLEGAL_TOPIC,
            f"group {group.name!r} is {to} ({BIND_TOPIC}), and not of {topic!r}",
            field="topic",
            value=topic,
        )


def lite_quota(group: GroupConfig) -> int:
    """Return the limit of lite topics per client of GROUP; negative: no limit."""
    quota = group.attributes.get(_LITE_QUOTA_ATTRIBUTE, "")
    if quota.startswith("-") and quota[1:].isdecimal():
        return -1
    return int(quota) if quota.isdecimal() and len(quota) < 10 else LITE_TOPICS_MAX


def _type_name(client_type: int) -> str:
    known = client_type in v2.ClientType.values()
    return v2.ClientType.Name(client_type) if known else str(client_type)


def _backoff(initial_ms: int, longest_ms: int, multiplier: float) -> v2.ExponentialBackoff:
    return v2.ExponentialBackoff(
        initial=timedelta(milliseconds=initial_ms),
        max=timedelta(milliseconds=longest_ms),
        multiplier=multiplier,
    )
