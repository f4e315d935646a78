"""The client library: producers, pull consumers, administration.

    from pocketmq.client import Message, Producer, PullConsumer

    with Producer() as producer:
        receipt = producer.send(Message("orders", b"...", key="order-1"))
    with PullConsumer("billing", "orders") as consumer:
        for message in consumer:
            ...

Each client has a synchronous face (`Producer`, `PullConsumer`, `Admin`) and one for asyncio (`Async…`). All errors are
`PocketMQError`s, which stand in `pocketmq.proto.errors`.
"""

from .admin import Admin
from .async_admin import AsyncAdmin
from .clock import AsyncClocks, BrokerClock
from .dead_letters import DeadLetter, ResentDeadLetter
from .descriptions import (
    BrokerDescription,
    GroupDescription,
    GroupPosition,
    QueueDescription,
    TopicDescription,
)
from .message import Message
from .producer import AsyncProducer, Producer
from .pull_consumer import AsyncPullConsumer, PullConsumer
from .queue import Queue
from .reading import Pulled
from .receipt import Receipt, Receipts
from .received_message import ReceivedMessage
from .sending_back import SentBack
from .transaction import AsyncTransaction, Resolution, Transaction

__all__ = [
    "Message",
    "Producer",
    "AsyncProducer",
    "Receipt",
    "Receipts",
    "Transaction",
    "AsyncTransaction",
    "Resolution",
    "PullConsumer",
    "AsyncPullConsumer",
    "ReceivedMessage",
    "SentBack",
    "Pulled",
    "Queue",
    "Admin",
    "AsyncAdmin",
    "AsyncClocks",
    "BrokerClock",
    "TopicDescription",
    "QueueDescription",
    "GroupDescription",
    "GroupPosition",
    "BrokerDescription",
    "DeadLetter",
    "ResentDeadLetter",
]
