"""The push consumer: it calls your listener with each message, in any order or in the order of each queue.

    def charge(message):
        ...

    with PushConsumer("billing", {"orders": "paid || refunded"}, charge) as consumer:
        consumer.wait()

or

    billing = PushConsumer("billing", "orders")

    @billing.listener
    def charge(message):
        ...

    billing.run()

`AsyncPushConsumer` is the same for coroutines. With both, the listener may be a coroutine function, which is awaited on
the event loop, or an ordinary function, which is called in threads. Up to `concurrency` calls run at once.

If the listener returns None or True, the message is processed. If it returns False or raises, the message is
redelivered, later each time. After the maximum number of retries it is moved to the dead-letter queue. `Retry` and
`Reject` control this for one message. With `ordered=True` the queue pauses, and the message is retried in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TypeVar, Unpack

from ..proto.clock import Clock, SystemClock
from ..proto.errors import ClientClosed
from .config import settled
from .connections import Connections
from .lifecycle import AsyncSignalledClient
from .push_config import PushConfig, PushSettings
from .pushing.listening import Listener
from .pushing.plan import PushPlan
from .pushing.push_metrics import PushMetrics
from .pushing.pushing import Pushing
from .signals import Signals
from .subscriptions import Topics

AnyListener = TypeVar("AnyListener", bound=Listener)


class AsyncPushConsumer(AsyncSignalledClient):
    """Calls a listener with messages for a group. Settings are those of PushConfig.

    Not thread-safe: it belongs to the event loop on which it was started.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Topics,
        listener: Listener | None = None,
        nameservers: str | None = None,
        *,
        clock: Clock | None = None,
        connections: Connections | None = None,
        random: Random | None = None,
        **settings: Unpack[PushSettings],
    ) -> None:
        """Create a consumer; it starts with `async with`, `start` or `run`.

        Args:
            group: The consumer group.
            subscriptions: Topics, or a filter by topic.
            listener: Called with each message, or with lists of messages if listener_batch_size is above 1.
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            clock: For tests.
            connections: For tests.
            random: For tests.
            settings: Fields of PushConfig.
        """
        self.config = settled(PushConfig, nameservers, settings)
        self._plan = PushPlan(group, subscriptions, listener, self.config)
        self._clock = clock
        self._connections = connections
        self._random = random or Random()
        self._pushing: Pushing | None = None
        self._signals = Signals(self._stop_waiting)
        self._waits = False

    def listener(self, function: AnyListener) -> AnyListener:
        """Set FUNCTION as the listener: a decorator. Raises ConfigError if it cannot be called with one argument."""
        self._plan.take(function)
        return function

    async def start(self) -> None:
        """Start to fetch and process messages. `async with` and `run` call it."""
        if self._pushing is not None:
            self._pushing.check_open()
        else:
            clock = self._clock or SystemClock()
            self._pushing = self._plan.pushing(self._connections, clock, self._random)

    async def wait(self) -> None:
        """Return when the consumer is closed, or at SIGTERM or Ctrl-C. Raises the error if the group refused it."""
        pushing = self._started()
        self._waits = True
        try:
            with self._signals.returning():
                await pushing.until_ended()
        finally:
            self._waits = False

    def _stop_waiting(self) -> bool:
        if self._waits and self._pushing is not None:
            self._pushing.stop_waiting()
        return self._waits

    async def run(self) -> None:
        """Start, and run until the consumer is closed or cancelled, or until SIGTERM or Ctrl-C. Then close it."""
        async with self:
            await self.wait()

    def _started(self) -> Pushing:
        if self._pushing is None:
            raise ClientClosed("the consumer is not started: use it in an `async with` block")
        return self._pushing

    def metrics(self) -> PushMetrics:
        """Return a snapshot of the metrics, also after the consumer was closed."""
        return self._started().metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    async def close(self) -> None:
        """Stop delivering, wait up to close_timeout_ms for running listeners, commit, and disconnect."""
        if self._pushing is not None:
            await self._pushing.close()
