"""The client library: producers, push and pull consumers, administration.

    from pocketmq.client import Message, Producer, PullConsumer

    with Producer() as producer:
        receipt = producer.send(Message("orders", b"...", key="order-1"))
    with PullConsumer("billing", "orders") as consumer:
        for message in consumer:
            ...
    PushConsumer("billing", "orders", lambda message: ...).run()

Each client has a class for threads (`Producer`, `PullConsumer`, `PushConsumer`, `Admin`) and one for asyncio
(`Async…`). All errors are subclasses of `PocketMQError`, and this package exports them too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..proto import errors
from ..proto.errors import *  # noqa: F403  (its __all__ is part of this one)
from ..proto.renamed import CLASSES

if TYPE_CHECKING:
    from .administration.admin import AsyncAdmin
    from .administration.clocks import AsyncClockAdmin, BrokerClock
    from .administration.dead_letters import DeadLetter, ResentDeadLetter
    from .administration.descriptions import (
        BrokerDescription,
        FilterStats,
        GroupDescription,
        GroupMember,
        GroupPosition,
        GroupQueue,
        GroupStatus,
        OffsetReset,
        QueueDescription,
        TopicDescription,
        TopicTraffic,
    )
    from .administration.groups import OffsetChange, OffsetTarget
    from .config import ConsumerConfig, ProducerConfig
    from .consuming.held_queue import OffsetAndMetadata
    from .consuming.parts import ConsumerMetrics
    from .consuming.queue_reader import PullResult
    from .consuming.sending_back import SendBackResult
    from .message import Message, UnserializedMessage
    from .message_batch import MessageBatch
    from .metrics import HistogramSnapshot, ProducerMetrics
    from .once import Deduplicator
    from .producer import AsyncProducer
    from .producing.atomic_commit import AsyncAtomicCommit
    from .producing.interceptors import Interceptor
    from .producing.receipt import Receipt, Receipts
    from .producing.transaction import AsyncTransaction, Resolution
    from .pull_consumer import AsyncPullConsumer, RebalanceListener
    from .push_config import PushConfig
    from .push_consumer import AsyncPushConsumer
    from .pushing.listening import Reject, Retry
    from .pushing.push_metrics import PushMetrics
    from .queue import Queue
    from .received_message import ReceivedMessage
    from .subscriptions import Filter, Sql
    from .sync.gen.admin import Admin
    from .sync.gen.atomic_commit import AtomicCommit
    from .sync.gen.producer import Producer
    from .sync.gen.pull_consumer import PullConsumer
    from .sync.gen.push_consumer import PushConsumer
    from .sync.gen.transaction import Transaction

__all__ = [
    "Message",
    "UnserializedMessage",
    "Interceptor",
    "ProducerMetrics",
    "HistogramSnapshot",
    "Producer",
    "AsyncProducer",
    "ProducerConfig",
    "Receipt",
    "Receipts",
    "Transaction",
    "AsyncTransaction",
    "Resolution",
    "AtomicCommit",
    "AsyncAtomicCommit",
    "PullConsumer",
    "AsyncPullConsumer",
    "ConsumerConfig",
    "PushConsumer",
    "AsyncPushConsumer",
    "PushConfig",
    "Retry",
    "Reject",
    "Deduplicator",
    "PushMetrics",
    "RebalanceListener",
    "ConsumerMetrics",
    "ReceivedMessage",
    "MessageBatch",
    "Filter",
    "Sql",
    "SendBackResult",
    "PullResult",
    "OffsetAndMetadata",
    "Queue",
    "Admin",
    "AsyncAdmin",
    "AsyncClockAdmin",
    "BrokerClock",
    "TopicDescription",
    "QueueDescription",
    "GroupDescription",
    "GroupPosition",
    "TopicTraffic",
    "BrokerDescription",
    "GroupStatus",
    "GroupMember",
    "GroupQueue",
    "OffsetReset",
    "FilterStats",
    "OffsetTarget",
    "OffsetChange",
    "DeadLetter",
    "ResentDeadLetter",
]
__all__ += errors.__all__

#: The module of each name. It is imported at the first access, so that a program imports only what it uses.
_MODULES = {
    "Admin": "sync.gen.admin",
    "AsyncAdmin": "administration.admin",
    "DeadLetter": "administration.dead_letters",
    "ResentDeadLetter": "administration.dead_letters",
    "BrokerDescription": "administration.descriptions",
    "GroupDescription": "administration.descriptions",
    "GroupPosition": "administration.descriptions",
    "TopicTraffic": "administration.descriptions",
    "QueueDescription": "administration.descriptions",
    "TopicDescription": "administration.descriptions",
    "GroupMember": "administration.descriptions",
    "OffsetReset": "administration.descriptions",
    "GroupQueue": "administration.descriptions",
    "GroupStatus": "administration.descriptions",
    "FilterStats": "administration.descriptions",
    "OffsetChange": "administration.groups",
    "OffsetTarget": "administration.groups",
    "AsyncProducer": "producer",
    "AsyncPullConsumer": "pull_consumer",
    "AsyncClockAdmin": "administration.clocks",
    "BrokerClock": "administration.clocks",
    "ConsumerConfig": "config",
    "ConsumerMetrics": "consuming.parts",
    "OffsetAndMetadata": "consuming.held_queue",
    "PullResult": "consuming.queue_reader",
    "SendBackResult": "consuming.sending_back",
    "UnserializedMessage": "message",
    "Filter": "subscriptions",
    "Sql": "subscriptions",
    "Message": "message",
    "MessageBatch": "message_batch",
    "Deduplicator": "once",
    "Producer": "sync.gen.producer",
    "ProducerConfig": "config",
    "AsyncAtomicCommit": "producing.atomic_commit",
    "AtomicCommit": "sync.gen.atomic_commit",
    "Interceptor": "producing.interceptors",
    "HistogramSnapshot": "metrics",
    "ProducerMetrics": "metrics",
    "Receipt": "producing.receipt",
    "Receipts": "producing.receipt",
    "AsyncTransaction": "producing.transaction",
    "Resolution": "producing.transaction",
    "Transaction": "sync.gen.transaction",
    "PullConsumer": "sync.gen.pull_consumer",
    "AsyncPushConsumer": "push_consumer",
    "PushConfig": "push_config",
    "PushConsumer": "sync.gen.push_consumer",
    "Reject": "pushing.listening",
    "Retry": "pushing.listening",
    "PushMetrics": "pushing.push_metrics",
    "Queue": "queue",
    "RebalanceListener": "pull_consumer",
    "ReceivedMessage": "received_message",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        new = CLASSES.get(name)
        hint = f": it is {new} now" if new else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    found = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
