"""PocketMQ as broker of Celery: a transport of kombu, on task queues with a lease for each task (task_queues.py).

    import pocketmq.tools.frameworks.kombu_transport  # makes the scheme known
    app = Celery("shop", broker="pocketmq://127.0.0.1:8081")

    a queue                     a topic of its name, and a group that reads it; each message is leased to one consumer
    x-max-priority = n          a topic of type PRIORITY with n + 1 queues, the highest first
    the header eta              the message is delivered then: workers do not hold it
    ack, requeue, reject        finished, redelivered at once, a dead letter
    auto_delete or exclusive    a queue of this connection, in memory: messages of the exchanges that it is bound
                                to, from then on; each such exchange is a topic that everybody follows

Kombu's base classes keep exchanges and bindings, for each process and broker: a publisher of an exchange declares its
durable queues, as Celery does. Messages come on the loop's thread into the inbox of their channel; the application's
thread takes them out, in `drain_events` or, under Celery's event loop, when a socket says that there are some.
"""

# kombu has no types, and its attributes begin as None.
# pyright: reportArgumentType=false, reportIncompatibleMethodOverride=false, reportOptionalMemberAccess=false
# pyright: reportIncompatibleVariableOverride=false, reportOptionalIterable=false, reportOptionalSubscript=false

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from amqp.protocol import queue_declare_ok_t
from kombu.transport import TRANSPORT_ALIASES, base, virtual
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from ... import __version__
from ...proto.clock import SystemClock
from ...proto.errors import ConnectionLost, PocketMQError, RequestTimeout
from ...proto.tls import Trust
from .task_queues import BATCH_MAX, LEASE_S, Consumer, Task, TaskQueues, lease_seconds

logger = logging.getLogger(__name__)
_clock: Final = SystemClock()

#: How long `basic_get` waits for what is there.
_GET_S: Final = 0.2
#: A message that is due later is sent on when this is over: brokers have a limit. The property says when that is.
_AHEAD_MAX_MS: Final = 23 * 3600 * 1000
_STAGE: Final = "pocketmq_stage_ms"
#: Messages that one event of the loop delivers.
_AT_ONCE: Final = 100
#: How long the result is cached that no queue is bound to an exchange.
_UNFOLLOWED_MS: Final = 5_000
_LEVELS_MAX: Final = 256
#: Messages in a queue of a connection; beyond, the oldest goes.
OWN_MAX: Final = 10_000


class QoS(virtual.QoS):
    """The messages in flight of a channel: leases, which are finished, returned, or dead-lettered."""

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag, self.channel.queues.finish)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._quick_ack(delivery_tag)
        queues = self.channel.queues
        self.channel.settle(delivery_tag, queues.give_back if requeue else queues.bury)

    def restore_unacked(self) -> list[Any]:
        """Return all messages in flight; one that cannot be returned is redelivered when its lease is over."""
        self._flush()
        while self._delivered:
            tag, _ = self._delivered.popitem(last=False)
            try:
                self.channel.settle(tag, self.channel.queues.give_back)
            except PocketMQError as error:
                logger.warning("task not returned, it will be redelivered reason=%r", error.message)
        return []


class _OwnQueue:
    """A queue of one connection, which receives from the exchanges that it is bound to."""

    def __init__(self, has_levels: bool) -> None:
        self._has_levels = has_levels
        self._lock = threading.Lock()
        self._messages: list[tuple[float, dict[str, Any]]] = []
        #: What is wanted of each exchange that it follows.
        self.wanted: dict[str, list[Callable[[str], object]]] = {}
        self.followers: list[Consumer] = []

    def take(self, exchange: str, payload: dict[str, Any]) -> bool:
        """Keep PAYLOAD if a binding to EXCHANGE wants it."""
        key = payload["properties"]["delivery_info"].get("routing_key") or ""
        if not any(wants(key) for wants in self.wanted[exchange]):
            return False
        self.put(payload)
        return True

    def put(self, payload: dict[str, Any]) -> None:
        """Keep PAYLOAD, until it expires. Beyond OWN_MAX the oldest goes."""
        expiration = payload["properties"].get("expiration")
        end_ms = _clock.now_ms() + float(expiration) if expiration else float("inf")
        with self._lock:
            self._messages.append((end_ms, payload))
            if len(self._messages) > OWN_MAX:
                del self._messages[0]

    def size(self) -> int:
        """Return how many messages there are, without those that expired."""
        now_ms = _clock.now_ms()
        with self._lock:
            if any(end_ms <= now_ms for end_ms, _ in self._messages):
                self._messages = [one for one in self._messages if one[0] > now_ms]
            return len(self._messages)

    def pop(self) -> dict[str, Any]:
        """Return the oldest message, of the highest priority where the queue has some; there is one."""
        with self._lock:
            at = 0
            if self._has_levels:
                urgent = max(_priority_of(payload) for _, payload in self._messages)
                at = next(
                    at for at, (_, one) in enumerate(self._messages) if _priority_of(one) == urgent
                )
            return self._messages.pop(at)[1]

    def clear(self) -> None:
        with self._lock:
            self._messages.clear()

    def close(self) -> None:
        for follower in self.followers:
            follower.close()


class KombuChannel(virtual.Channel):
    """A channel: its inbox holds what came and was not delivered yet."""

    QoS = QoS
    supports_fanout = True
    from_transport_options = (*virtual.Channel.from_transport_options, "max_deliveries")
    #: Limit of deliveries in new queues; then a message is a dead letter. None: the default of the broker.
    max_deliveries: int | None = None

    def __init__(self, connection: Transport, **named: Any) -> None:
        super().__init__(connection, **named)
        self.queues = connection.queues
        self.transport = connection
        #: Leased tasks by delivery tag.
        self._tasks: dict[str, Task] = {}
        self._readers: dict[str, Consumer] = {}
        self._takers: dict[str, tuple[Callable[[Any], None], bool]] = {}
        #: Tasks, with the tags of their consumers.
        self._inbox: deque[tuple[str, Task]] = deque()

    def prepare_queue_arguments(self, arguments: dict[str, Any], **named: Any) -> dict[str, Any]:
        prepared: dict[str, Any] = base.to_rabbitmq_queue_arguments(arguments, **named)
        return prepared

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **named: Any
    ) -> queue_declare_ok_t:
        own = self.transport.own_queues
        if queue and not passive and (named.get("auto_delete") or named.get("exclusive")):
            levels = (named.get("arguments") or {}).get("x-max-priority")
            own.setdefault(queue, _OwnQueue(bool(levels)))
        if queue in own:
            return queue_declare_ok_t(queue, own[queue].size(), 0)
        return super().queue_declare(queue, passive, **named)

    def _new_queue(self, queue: str, arguments: dict[str, Any] | None = None, **_: Any) -> None:
        arguments = arguments or {}
        levels = min(int(arguments.get("x-max-priority") or 0) + 1, _LEVELS_MAX)
        deliveries = self.max_deliveries
        if (limit := arguments.get("x-delivery-limit")) is not None:
            deliveries = int(limit) + 1
        self.queues.declare(queue, levels, deliveries)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self.queues.exists(queue)

    def _size(self, queue: str) -> int:
        return self.queues.size(queue)

    def _purge(self, queue: str) -> int:
        if (own := self.transport.own_queues.get(queue)) is not None:
            count = own.size()
            own.clear()
            return count
        return self.queues.purge(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **named: Any
    ) -> None:
        own = self.transport.own_queues.pop(queue, None)
        if own is not None:
            own.close()
            return
        if if_empty and self._size(queue):
            return
        for exchange, key, arguments in list(self.state.queue_bindings(queue)):
            self.queue_unbind(queue, exchange, key, arguments)
        self.state.queue_bindings_delete(queue)
        self.queues.delete(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **named: Any,
    ) -> None:
        own = self.transport.own_queues.get(queue)
        if own is None:
            super().queue_bind(queue, exchange, routing_key, arguments, **named)
        elif exchange:
            wants = self._wants(exchange, queue, routing_key)
            if exchange in own.wanted:
                own.wanted[exchange].append(wants)
            else:
                own.wanted[exchange] = [wants]
                self.transport.follow(own, exchange)

    def _wants(self, exchange: str, queue: str, routing_key: str) -> Callable[[str], object]:
        """Return what says of a routing key whether a binding of QUEUE to EXCHANGE takes it."""
        kind = self.typeof(exchange)
        table = [kind.prepare_bind(queue, exchange, routing_key, {})]
        return lambda key: kind.lookup(table, exchange, key, None)

    def _queue_bind(self, *_: Any) -> None:
        """Nothing more: the base class has kept the binding."""

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **named: Any
    ) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        kind = self.typeof(exchange)
        table = self.state.exchanges.get(exchange, {}).get("table", ())
        bound = kind.lookup(table, exchange, routing_key, None)
        followed = self.transport.is_followed(exchange)
        if not (bound or followed) and self.deadletter_queue:
            self._new_queue(self.deadletter_queue)
            bound = {self.deadletter_queue}
        for queue in bound:
            self._put(queue, message)
        if followed:
            self.queues.send(_topic_of_exchange(exchange), _bytes_of(message))

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        own = self.transport.own_queues.get(queue)
        if own is not None:
            own.put(message)
            self.transport.notify()
            return
        properties = message["properties"]
        due_ms = _due_ms(message)
        properties.pop(_STAGE, None)
        if due_ms is not None and due_ms > _now_ms() + _AHEAD_MAX_MS:
            due_ms = properties[_STAGE] = _now_ms() + _AHEAD_MAX_MS
        self.queues.send(
            queue,
            _bytes_of(message),
            key=properties.get("correlation_id") or "",
            at_ms=due_ms,
            priority=_priority_of(message),
        )

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], None],
        consumer_tag: str,
        **_: Any,
    ) -> None:
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._takers[consumer_tag] = callback, no_ack
        if queue in self.transport.own_queues:
            self.transport.notify()
            return
        self._readers[consumer_tag] = self.queues.consume(
            queue, self._room, partial(self._arrived, consumer_tag), self.transport.failed
        )

    def basic_cancel(self, consumer_tag: str) -> None:
        if consumer_tag not in self._consumers:
            return
        self._consumers.discard(consumer_tag)
        with suppress(ValueError):
            self._active_queues.remove(self._tag_to_queue.pop(consumer_tag, None))
        reader = self._readers.pop(consumer_tag, None)
        if reader is not None:
            reader.close()
        self._takers.pop(consumer_tag, None)
        for entry in [one for one in list(self._inbox) if one[0] == consumer_tag]:
            self._inbox.remove(entry)
            self._give_back(entry[1])

    def _give_back(self, task: Task) -> None:
        try:
            self.queues.give_back(task)
        except PocketMQError as error:
            logger.warning("task not returned, it will be redelivered queue=%s reason=%r",
                           task.queue, error.message)  # fmt: skip

    def _room(self) -> int:
        """Return how many more messages may come. The loop's thread asks."""
        qos = self.qos
        if not qos.prefetch_count:
            return BATCH_MAX - len(self._inbox)
        out = len(qos._delivered) - len(qos._dirty)
        return int(qos.prefetch_count) - out - len(self._inbox)

    def _arrived(self, consumer_tag: str, task: Task) -> None:
        """Keep TASK for CONSUMER_TAG. Called on the loop's thread."""
        self._inbox.append((consumer_tag, task))
        self.transport.notify()

    def deliver_one(self) -> bool:
        """Deliver one message, if there is one and it may be."""
        for tag in list(self._consumers):
            own = self.transport.own_queues.get(self._tag_to_queue[tag])
            if own is not None and own.size() and self.qos.can_consume():
                self._hand_out(own.pop(), None, *self._takers[tag])
                return True
        while self._inbox and self.qos.can_consume():
            tag, task = self._inbox.popleft()
            payload = self._payload_of(task)
            if payload is not None:
                self._hand_out(payload, task, *self._takers[tag])
                return True
            self.wake()
        return False

    def _hand_out(
        self,
        payload: dict[str, Any],
        task: Task | None,
        take: Callable[[Any], None],
        no_ack: bool,
    ) -> None:
        message = self.Message(payload, channel=self)
        if no_ack:
            if task is not None:
                self.queues.finish(task)
                self.wake()
        else:
            if task is not None:
                self._tasks[message.delivery_tag] = task
            self.qos.append(message, message.delivery_tag)
        take(message)

    def _payload_of(self, task: Task) -> dict[str, Any] | None:
        """Return the payload of TASK; None: it is not for a worker now, and was handled."""
        try:
            payload: dict[str, Any] = loads(task.body.decode())
            properties = payload["properties"]
            due_ms, now_ms = _due_ms(payload), _now_ms()
            expires_ms = task.born_ms + float(properties.get("expiration") or "inf")
            payload["headers"] = payload.get("headers") or {}
            properties.setdefault("delivery_info", {})["redelivered"] = task.attempt > 1
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.error("no message of kombu queue=%s id=%s reason=%r: it is a dead letter now",
                         task.queue, task.message_id, error)  # fmt: skip
            self.queues.bury(task)
            return None
        # Celery's worker reports an expired task itself, and marks it as revoked, so that no caller waits for it.
        if now_ms >= expires_ms and not payload["headers"].get("expires"):
            self.queues.finish(task)
            return None
        if due_ms is not None and properties.get(_STAGE):
            try:
                self._put(task.queue, payload)
            except PocketMQError:
                self._give_back(task)
                raise
            self.queues.finish(task)
            return None
        properties["delivery_tag"] = uuid()
        return payload

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        found: list[Any] = []
        own = self.transport.own_queues.get(queue)
        if own is not None:
            if self.transport.wait(lambda: bool(own.size()), _GET_S):
                self._hand_out(own.pop(), None, found.append, no_ack)
            return found[0] if found else None
        while not found and (task := self.queues.get(queue, _GET_S)) is not None:
            payload = self._payload_of(task)
            if payload is not None:
                self._hand_out(payload, task, found.append, no_ack)
        return found[0] if found else None

    def settle(self, delivery_tag: str, what: Callable[[Task], None]) -> None:
        """Call WHAT with the task of DELIVERY_TAG; do nothing for a message without a lease."""
        task = self._tasks.pop(delivery_tag, None)
        if task is not None:
            what(task)
        self.wake()

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.wake()

    def wake(self) -> None:
        """Look again for what may come, and may be delivered."""
        for reader in list(self._readers.values()):
            reader.wake()
        if self._inbox:
            self.transport.notify()


class Transport(virtual.Transport):
    """A connection to the broker, or replica set, that the URL names."""

    Channel = KombuChannel
    default_port = 8081
    driver_type = "pocketmq"
    driver_name = "pocketmq"
    connection_errors = (*base.Transport.connection_errors, ConnectionLost, RequestTimeout, OSError)
    channel_errors = (*base.Transport.channel_errors, PocketMQError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(("direct", "topic", "fanout")),
        heartbeats=False,
    )

    #: Exchanges and durable bindings of this process, by broker.
    _states: Final[dict[str, virtual.BrokerState]] = {}

    def __init__(self, client: Any, **named: Any) -> None:
        super().__init__(client, **named)
        host, port = client.hostname or "localhost", client.port or self.default_port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.state = self._states.setdefault(self.address, virtual.BrokerState())
        self.queues: TaskQueues
        self.own_queues: dict[str, _OwnQueue] = {}
        self._news = threading.Event()
        self._failure: PocketMQError | None = None
        #: When an exchange was found without bound queues; 0: it has some.
        self._unfollowed_ms: dict[str, float] = {}
        self._turn = 0
        #: The loop of Celery, and the socket that it watches, with the other end.
        self._hub: Any = None
        self._pair: tuple[socket.socket, socket.socket] | None = None

    def driver_version(self) -> str:
        return __version__

    def establish_connection(self) -> Any:
        client = self.client
        options = client.transport_options
        ssl = client.ssl if isinstance(client.ssl, dict) else {}
        trust = Trust(
            tls=True if client.ssl else None,
            ca=ssl.get("ca_certs", ""),
            cert=ssl.get("certfile", ""),
            key=ssl.get("keyfile", ""),
            user=client.userid or "",
            secret=client.password or "",
        )
        lease_s = lease_seconds(options.get("visibility_timeout", LEASE_S), "visibility_timeout")
        self.queues = TaskQueues(self.address, trust, lease_s)
        try:
            self.queues.check()
        except PocketMQError:
            self.queues.close()
            raise
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        pair, self._pair = self._pair, None
        if pair is not None:
            self._hub.remove(pair[0])
            for end in pair:
                end.close()
        super().close_connection(connection)
        own, self.own_queues = self.own_queues, {}
        with suppress(PocketMQError):
            for queue in own.values():
                queue.close()
        self.queues.close()

    def verify_connection(self, connection: Any) -> bool:
        return self._failure is None

    def follow(self, own: _OwnQueue, exchange: str) -> None:
        """Have OWN follow EXCHANGE."""
        topic = _topic_of_exchange(exchange)
        self.queues.declare(topic)
        self._unfollowed_ms[exchange] = 0

        def deliver(body: bytes) -> None:
            payload = loads(body.decode())
            payload["properties"]["delivery_tag"] = uuid()
            if own.take(exchange, payload):
                self.notify()

        own.followers.append(self.queues.follow(topic, deliver, self.failed))

    def is_followed(self, exchange: str) -> bool:
        """Can a queue be bound to EXCHANGE?"""
        since_ms = self._unfollowed_ms.get(exchange)
        if since_ms is None or (since_ms and _clock.now_ms() - since_ms > _UNFOLLOWED_MS):
            there = self.queues.exists(_topic_of_exchange(exchange))
            since_ms = self._unfollowed_ms[exchange] = 0 if there else _clock.now_ms()
        return not since_ms

    def failed(self, error: PocketMQError) -> None:
        """Note the error of receiving. Called on the loop's thread."""
        if error.retriable:
            logger.warning("not reached broker=%s reason=%r: trying again",
                           self.address, error.message)  # fmt: skip
            return
        self._failure = error
        self.notify()

    def notify(self) -> None:
        """Wake the thread that waits for messages. Any thread may call."""
        self._news.set()
        if (pair := self._pair) is not None:
            with suppress(OSError):
                pair[1].send(b"!")

    def wait(self, what: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return WHAT, once it is true or TIMEOUT_S is over."""
        end_ms = None if timeout_s is None else _clock.now_ms() + timeout_s * 1000
        while True:
            self._news.clear()
            if what():
                return True
            left_s = None if end_ms is None else max(0.0, end_ms - _clock.now_ms()) / 1000
            if not self._news.wait(left_s):
                return what()

    def _deliver_one(self) -> bool:
        error, self._failure = self._failure, None
        if error is not None:
            raise error
        channels = list(self.channels)
        self._turn += 1
        return any(
            channels[(self._turn + at) % len(channels)].deliver_one() for at in range(len(channels))
        )

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        if not self.wait(self._deliver_one, timeout):
            raise TimeoutError("no message came")

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._hub, pair = loop, socket.socketpair()
        for end in pair:
            end.setblocking(False)
        loop.add_reader(pair[0], self._on_readable, pair[0])
        self._pair = pair
        self.notify()

    def _on_readable(self, heard: socket.socket) -> None:
        with suppress(BlockingIOError):
            while heard.recv(4096):
                pass
        for _ in range(_AT_ONCE):
            if not self._deliver_one():
                return
        self.notify()


def _topic_of_exchange(exchange: str) -> str:
    return f"{exchange}/exchange"


def _bytes_of(message: dict[str, Any]) -> bytes:
    text: str = dumps(message)
    return text.encode()


def _priority_of(message: dict[str, Any]) -> int:
    try:
        return max(0, min(int(message["properties"]["priority"]), _LEVELS_MAX - 1))
    except (TypeError, ValueError, KeyError):
        return 0


def _now_ms() -> int:
    return _clock.unix_ms()


def _due_ms(message: dict[str, Any]) -> int | None:
    """Return when MESSAGE of Celery is to be run, if it says so and that is ahead."""
    eta = (message.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        when = datetime.fromisoformat(eta)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    due_ms = int(when.timestamp() * 1000)
    return due_ms if due_ms > _now_ms() else None


TRANSPORT_ALIASES["pocketmq"] = f"{__name__}:Transport"
