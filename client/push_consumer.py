"""Push consumers: a listener is called with each message, in any order or in the order of each queue.

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

`AsyncPushConsumer` is the same for coroutines. Either takes a listener that is a coroutine function, which is awaited
on the loop, or one that is not, which is called on threads; up to `concurrency` calls run at once.

A listener that returns None or True has handled the message. One that returns False, or raises, has failed: the message
is redelivered after a delay that grows, until it has failed too often and is moved to the dead-letter queue. `Retry`
and `Reject` are more exact. In order (`ordered=True`) the queue waits, and the message is retried in its place.
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
    """Calls LISTENER with messages for GROUP. Settings are those of PushConfig.

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
        """SUBSCRIPTIONS: topics, or by topic what is wanted of it. CLOCK, CONNECTIONS, RANDOM: for tests."""
        self.config = settled(PushConfig, nameservers, settings)
        self._plan = PushPlan(group, subscriptions, listener, self.config)
        self._clock = clock
        self._connections = connections
        self._random = random or Random()
        self._pushing: Pushing | None = None
        self._signals = Signals(self._stop_waiting)
        self._waits = False

    def listener(self, function: AnyListener) -> AnyListener:
        """Have FUNCTION called; a decorator. Raises ConfigError if it cannot be called with a message."""
        self._plan.take(function)
        return function

    async def start(self) -> None:
        """Begin; `async with` and `run` do so."""
        if self._pushing is not None:
            self._pushing.check_open()
        else:
            connections, clock = (
                self._connections,
                self._clock or SystemClock(),
            )
            self._pushing = self._plan.pushing(connections, clock, self._random)

    async def wait(self) -> None:
        """Return once it is closed, or at SIGTERM or Ctrl-C. Raises what the group refused it with."""
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
        """Start, and continue until it is closed, cancelled, or at SIGTERM or Ctrl-C; then close, and return."""
        async with self:
            await self.wait()

    def _started(self) -> Pushing:
        if self._pushing is None:
            raise ClientClosed("the consumer was not started: use it in an `async with` block")
        return self._pushing

    def metrics(self) -> PushMetrics:
        """Return what it counts, at this moment; after the end, what it had counted."""
        return self._started().metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    async def close(self) -> None:
        """Deliver nothing more, let listeners at work end within close_timeout_ms, commit, disconnect."""
        if self._pushing is not None:
            await self._pushing.close()
