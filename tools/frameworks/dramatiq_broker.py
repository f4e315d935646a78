"""dramatiq on PocketMQ: a broker that delivers messages one by one (task_queues.py); the server delays them.

    import dramatiq
    from pocketmq.tools.frameworks.dramatiq_broker import PocketmqBroker

    dramatiq.set_broker(PocketmqBroker("127.0.0.1:8081"))

    a queue             a topic, NAMESPACE and its name, and the group that reads it
    delay               the message is delivered then; there are no delay queues
    ack, nack           finished, a dead letter in %DLQ% and the topic's name
    a worker's end      its messages are redelivered at once; if it was killed, when its leases expire

Queues are made when they are first used, so that modules with actors are imported without a server. A process that was
forked connects again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from dramatiq import Broker, Message, Middleware
from dramatiq.broker import Consumer as DramatiqConsumer, MessageProxy
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from ...proto.clock import SystemClock
from ...proto.errors import PocketMQError
from ...proto.tls import Trust
from .task_queues import LEASE_S, Task, TaskQueues, lease_seconds

#: What is due later is sent on when this is over: brokers have a limit.
_AHEAD_MAX_MS: Final = 23 * 3600 * 1000
#: The option that says when such a message is due.
_DUE: Final = "pocketmq_due_ms"

_clock: Final = SystemClock()


class LentMessage(MessageProxy):
    """A message, and the task that it came with."""

    def __init__(self, message: Message[Any], task: Task) -> None:
        super().__init__(message)
        self.task = task


class PocketmqBroker(Broker):
    """The broker, or replica set, at ADDRESS."""

    def __init__(
        self,
        address: str = "127.0.0.1:8081",
        *,
        middleware: list[Middleware] | None = None,
        namespace: str = "dramatiq",
        lease_s: float = LEASE_S,
        max_deliveries: int | None = None,
        trust: Trust | None = None,
    ) -> None:
        """LEASE_S: time until messages of a killed worker are redelivered. MAX_DELIVERIES: their limit; None: 17.

        TRUST: TLS, and the user by whom calls are signed; None: as the environment says.
        """
        super().__init__(middleware=middleware)
        self.address = address
        self.namespace = namespace
        self.lease_s = lease_seconds(lease_s, "lease_s")
        self.max_deliveries = max_deliveries
        self.queues: set[str] = set()
        self._trust = trust
        self._lock = threading.Lock()
        self._connected: tuple[int, TaskQueues] | None = None
        #: Queues that are there for sure.
        self._made: set[str] = set()

    def server(self) -> TaskQueues:
        """Return the connection of this process."""
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                queues = TaskQueues(self.address, self._trust, self.lease_s)
                self._connected = os.getpid(), queues
                self._made = set()
            return self._connected[1]

    def close(self) -> None:
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is not None:
            connected[1].close()

    def topic(self, queue_name: str) -> str:
        """Return what QUEUE_NAME is called at the server."""
        return f"{self.namespace}-{queue_name}" if self.namespace else queue_name

    def _there(self, queue_name: str) -> str:
        """Return what QUEUE_NAME, which is there then, is called at the server."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        name = self.topic(queue_name)
        server = self.server()
        if name not in self._made:
            with told():
                server.declare(name, deliveries=self.max_deliveries)
            self._made.add(name)
        return name

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        return self.queues.copy()

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Send MESSAGE, to be delivered after DELAY milliseconds. Raises QueueNotFound, ConnectionClosed."""
        name = self._there(message.queue_name)
        self.emit_before("enqueue", message, delay)
        self._send(name, message, None if delay is None else _now_ms() + max(0, delay))
        self.emit_after("enqueue", message, delay)
        return message

    def _send(self, name: str, message: Message[Any], due_ms: int | None) -> None:
        latest_ms = _now_ms() + _AHEAD_MAX_MS
        at_ms = due_ms
        if due_ms is not None and due_ms > latest_ms:
            message = message.copy(options={_DUE: due_ms})
            at_ms = latest_ms
        with told():
            self.server().send(name, message.encode(), key=message.message_id, at_ms=at_ms)

    def send_on(self, name: str, message: Message[Any]) -> bool:
        """Send on MESSAGE, which came in NAME, if a stage of its delay is over; return whether it was."""
        due_ms = message.options.pop(_DUE, None)
        if due_ms is None or due_ms <= _now_ms():
            return False
        self._send(name, message, due_ms)
        return True

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5_000) -> DramatiqConsumer:
        """Return an iterator over messages of QUEUE_NAME, PREFETCH in flight at once; None after TIMEOUT ms."""
        return _Consumer(self, self._there(queue_name), prefetch, timeout)

    def flush(self, queue_name: str) -> None:
        """Finish all messages of QUEUE_NAME, but for those that are scheduled."""
        name = self._there(queue_name)
        with told():
            self.server().purge(name)

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until nothing of QUEUE_NAME is left, and no message of any queue is scheduled.

        INTERVAL and TIMEOUT are milliseconds. Raises QueueJoinTimeout.
        """
        name = self._there(queue_name)
        server = self.server()
        end_ms = float("inf") if timeout is None else _clock.now_ms() + timeout
        pause = threading.Event()
        while True:
            with told():
                if server.is_idle(name):
                    return
            if _clock.now_ms() >= end_ms:
                raise QueueJoinTimeout(queue_name)
            pause.wait(interval / 1000)


class _Consumer(DramatiqConsumer):
    """The messages in flight with one consumer of a worker. Its threads acknowledge, one iterates."""

    def __init__(self, broker: PocketmqBroker, name: str, prefetch: int, timeout_ms: int) -> None:
        self._broker = broker
        self._name = name
        self._prefetch = prefetch
        self._timeout_ms = timeout_ms
        self._server = broker.server()
        self._inbox: deque[Task] = deque()
        self._news = threading.Event()
        #: Delivered messages that are not finished.
        self._out: set[Task] = set()
        self._failure: PocketMQError | None = None
        with told():
            self._reader = self._server.consume(name, self._room, self._arrived, self._failed)

    def _room(self) -> int:
        return self._prefetch - len(self._out) - len(self._inbox)

    def _arrived(self, task: Task) -> None:
        self._inbox.append(task)
        self._news.set()

    def _failed(self, error: PocketMQError) -> None:
        self._failure = error
        self._news.set()

    def __next__(self) -> MessageProxy | None:
        end_ms = _clock.now_ms() + self._timeout_ms
        while True:
            self._news.clear()
            while self._inbox:
                task = self._inbox.popleft()
                self._out.add(task)
                message = self._message_of(task)
                if message is not None:
                    return message
            failure, self._failure = self._failure, None
            if failure is not None:
                raise ConnectionClosed(failure)
            if not self._news.wait(max(0, end_ms - _clock.now_ms()) / 1000):
                return None

    def _message_of(self, task: Task) -> LentMessage | None:
        """Return the message of TASK; None: it is not for a worker now, and was handled."""
        try:
            message = Message.decode(task.body)
        except DecodeError:
            self._broker.logger.error("No message of dramatiq: it is a dead letter now.")
            self._over(task, lambda task: self._server.bury(task, "no message of dramatiq"))
            return None
        try:
            with told():
                is_sent_on = self._broker.send_on(self._name, message)
        except (PocketMQError, ConnectionClosed):
            with suppress(PocketMQError, ConnectionClosed):
                self._over(task, self._server.give_back)
            raise
        if is_sent_on:
            self._over(task, self._server.finish)
            return None
        return LentMessage(message, task)

    def _over(self, task: Task, what: Callable[[Task], None]) -> None:
        try:
            with told():
                what(task)
        except (
            PocketMQError
        ):  # Trying again is of no use: it is redelivered when its lease is over.
            self._out.discard(task)
            raise
        self._out.discard(task)
        self._reader.wake()

    # A message from elsewhere cannot be acknowledged: ignore it, as other brokers do.

    def ack(self, message: MessageProxy) -> None:
        if isinstance(message, LentMessage):
            self._over(message.task, self._server.finish)

    def nack(self, message: MessageProxy) -> None:
        if isinstance(message, LentMessage):
            reason = _reason_of(message)
            self._over(message.task, lambda task: self._server.bury(task, reason))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        for message in messages:
            assert isinstance(message, LentMessage)
            self._over(message.task, self._server.give_back)

    def close(self) -> None:
        with suppress(PocketMQError):
            self._reader.close()
        while self._inbox:
            with suppress(PocketMQError):
                self._server.give_back(self._inbox.popleft())


@contextmanager
def told() -> Iterator[None]:
    """Have errors that pass by themselves raised as dramatiq has them, so that its workers try again."""
    try:
        yield
    except PocketMQError as error:
        if error.retriable:
            raise ConnectionClosed(error) from error
        raise


def _reason_of(message: LentMessage) -> str:
    """Return the exception that MESSAGE failed with, on one line; "" where there is none."""
    error = message._exception
    if error is None:
        return ""
    with suppress(Exception):  # Its __str__ is the application's.
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    return type(error).__name__


def _now_ms() -> int:
    return _clock.unix_ms()
