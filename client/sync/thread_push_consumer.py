"""The hand-written part of the push consumer for threads: start, wait, and close."""

from __future__ import annotations

import threading
from random import Random
from typing import Self, Unpack

from ...proto.clock import SystemClock
from ...proto.errors import ClientClosed
from ..config import settled
from ..lifecycle import SignalledClient
from ..loop_thread import LoopThread
from ..push_config import PushConfig, PushSettings
from ..pushing.listening import Listener
from ..pushing.plan import PushPlan
from ..pushing.push_metrics import PushMetrics
from ..pushing.pushing import Pushing
from ..signals import Signals
from ..subscriptions import Topics


class ThreadPushConsumer(SignalledClient):
    """Runs a push consumer on the clients' event loop."""

    def __init__(
        self,
        group: str,
        subscriptions: Topics,
        listener: Listener | None = None,
        nameservers: str | None = None,
        **settings: Unpack[PushSettings],
    ) -> None:
        """Create a consumer; it starts with `with`, `start` or `run`.

        Args:
            group: The consumer group.
            subscriptions: Topics, or a filter by topic.
            listener: Called with each message, or with lists of messages if listener_batch_size is above 1.
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            settings: Fields of PushConfig.
        """
        self.config = settled(PushConfig, nameservers, settings)
        self._plan = PushPlan(group, subscriptions, listener, self.config)
        self._portal: LoopThread | None = None
        self._pushing: Pushing | None = None
        self._closed = False
        self._signals = Signals(self._stop_waiting)
        self._waits = False

    def _start(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed: create a new one to read more")
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
            raise ClientClosed("the consumer is not started: use it in a `with` block")
        return self._portal, self._pushing

    def _wait(self) -> None:
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

    def _metrics(self) -> PushMetrics:
        portal, pushing = self._started()
        if self._closed:
            return pushing.metrics()

        async def ask() -> PushMetrics:
            return pushing.metrics()

        return portal.run(ask())

    def _close(self) -> None:
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
        self._start()
        return super().__enter__()
