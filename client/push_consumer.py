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
on the loop, or one that is not, which is called on threads; both get `concurrency` calls at once at most.

A listener that returns None or True has handled the message. One that returns False, or raises, has failed: the
message comes again later, after a delay that grows, until it has failed too often and lies in the group's dead letters.
`Retry` and `Reject` say it more exactly. In order (`ordered=True`) the queue stands still instead, and the message is
tried again in its place.

The offset that is committed is that of the lowest message that is not finished. At the end (`close`, or the end of the
`with` block) nothing is handed out any more, listeners at work end within close_timeout_ms, and what is finished is
committed; no thread is left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from random import Random
from typing import Self, TypeVar, Unpack

from ..proto.clock import Clock, SystemClock
from ..proto.errors import ClientClosed, ConfigError
from ..proto.topics import check_group
from .config import PushConfig, PushSettings, settled
from .connections import Connections
from .lifecycle import AsyncSignalledClient, SignalledClient
from .loop_thread import LoopThread
from .once import remembers
from .pushing.listening import Listener, check_listener
from .pushing.process_queue import PushMetrics
from .pushing.pushing import Pushing
from .queue import Topics, subscriptions_of
from .session import Session
from .signals import Signals

AnyListener = TypeVar("AnyListener", bound=Listener)


class _Plan:
    """What a push consumer will do, before it is started."""

    def __init__(
        self, group: str, wanted: Topics, listener: Listener | None, config: PushConfig
    ) -> None:
        self.group = check_group(group)
        self.subscriptions = subscriptions_of(wanted)
        self.config = config
        self.listener: Listener | None = None
        if listener is not None:
            self.take(listener)

    def take(self, listener: Listener) -> None:
        """Have LISTENER called. Raises ConfigError if it cannot be."""
        check_listener(listener)
        self.listener = listener

    def pushing(self, connections: Connections | None, clock: Clock, random: Random) -> Pushing:
        """Return a started core; on its loop only."""
        if self.listener is None:
            raise ConfigError(
                "the consumer has no listener: hand one over, or decorate one with @consumer.listener",
                field="listener",
            )
        self._check_delivery(self.listener)
        session = Session(self.config, connections, clock, random)
        pushing = Pushing(self.group, self.subscriptions, self.listener, self.config, session)
        pushing.start()
        return pushing

    def _check_delivery(self, listener: Listener) -> None:
        if self.config.delivery == "effectively_once" and not remembers(listener):
            raise ConfigError(
                'delivery "effectively_once" needs a listener that remembers what it has done: decorate it with'
                " a Once (see docs/pushing.md), or say at_least_once",
                field="delivery",
                value="effectively_once",
            )


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
        self._plan = _Plan(group, subscriptions, listener, self.config)
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
        """Start, and go on until it is closed, cancelled, or at SIGTERM or Ctrl-C; then close, and return."""
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
        """Hand out nothing more, let listeners at work end within close_timeout_ms, commit, disconnect."""
        if self._pushing is not None:
            await self._pushing.close()


class PushConsumer(SignalledClient):
    """Calls LISTENER with messages for GROUP, in the background. Settings are those of PushConfig.

    Any thread may use it.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Topics,
        listener: Listener | None = None,
        nameservers: str | None = None,
        **settings: Unpack[PushSettings],
    ) -> None:
        """SUBSCRIPTIONS: topics, or by topic what is wanted of it."""
        self.config = settled(PushConfig, nameservers, settings)
        self._plan = _Plan(group, subscriptions, listener, self.config)
        self._portal: LoopThread | None = None
        self._pushing: Pushing | None = None
        self._closed = False
        self._signals = Signals(self._stop_waiting)
        self._waits = False

    def listener(self, function: AnyListener) -> AnyListener:
        """Have FUNCTION called; a decorator. Raises ConfigError if it cannot be called with a message."""
        self._plan.take(function)
        return function

    def start(self) -> None:
        """Begin; `with` and `run` do so."""
        if self._closed:
            raise ClientClosed("the consumer was closed; make a new one to go on")
        if self._portal is None:
            portal = LoopThread.acquire()
            try:
                self._pushing = portal.run(self._begin())
            except BaseException:
                portal.release()
                raise
            self._portal = portal
            self._opened()

    async def _begin(self) -> Pushing:
        return self._plan.pushing(None, SystemClock(), Random())

    def _started(self) -> tuple[LoopThread, Pushing]:
        if self._portal is None or self._pushing is None:
            raise ClientClosed("the consumer was not started: use it in a `with` block")
        return self._portal, self._pushing

    def wait(self) -> None:
        """Return once it is closed, by another thread, or at SIGTERM or Ctrl-C, if this is the main one.

        Raises what the group refused it with.
        """
        portal, pushing = self._started()
        if threading.current_thread() is not threading.main_thread():
            portal.run(pushing.until_ended())
            return
        self._waits = True
        try:
            with self._signals.returning():
                portal.run(pushing.until_ended())
        finally:
            self._waits = False

    def _stop_waiting(self) -> bool:
        if self._waits:
            portal, pushing = self._started()
            portal.post(pushing.stop_waiting)
        return self._waits

    def run(self) -> None:
        """Start, and go on until it is closed, or at SIGTERM or Ctrl-C; then close, and return.

        Listeners at work end first, within close_timeout_ms. A second signal does not wait for them.
        """
        with self:
            self.wait()

    def metrics(self) -> PushMetrics:
        """Return what it counts, at this moment; after the end, what it had counted."""
        portal, pushing = self._started()
        if self._closed:
            return pushing.metrics()

        async def ask() -> PushMetrics:
            return pushing.metrics()

        return portal.run(ask())

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def close(self) -> None:
        """Hand out nothing more, let listeners at work end within close_timeout_ms, commit, disconnect."""
        portal, pushing = self._portal, self._pushing
        if self._closed or portal is None or pushing is None or portal.is_inherited:
            return
        self._closed = True
        self._ended()
        try:
            portal.run(pushing.close())
        finally:
            portal.release()

    def __enter__(self) -> Self:
        self.start()
        return super().__enter__()
