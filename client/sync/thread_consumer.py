"""The hand-written part of the pull consumer for threads: start, wait for a batch, call the listener, and close."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar, Unpack

from ..config import ConsumerConfig, ConsumerSettings, settled
from ..consuming.prefetch import Rebalanced
from ..lifecycle import SignalledClient
from ..loop_thread import LoopThread
from ..pull_consumer import AsyncPullConsumer, RebalanceListener, notify
from ..signals import Signals
from ..subscriptions import Topics

Value = TypeVar("Value")


class ThreadConsumer(SignalledClient):
    """Runs an AsyncPullConsumer on the clients' event loop. The application's thread owns the cursor."""

    def __init__(
        self,
        group: str | None,
        topics: Topics = (),
        nameservers: str | None = None,
        *,
        listener: RebalanceListener | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """Create and start a consumer. Close it, or use it in a `with` block.

        Args:
            group: The consumer group; None: no group.
            topics: Topics to subscribe to, or a filter by topic.
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            listener: Called when queues are assigned, revoked or lost.
            settings: Fields of ConsumerConfig.
        """
        self.config = settled(ConsumerConfig, nameservers, settings)
        self._listener = listener
        core = AsyncPullConsumer(
            group, topics, self.config.nameservers, listener=listener, **settings
        )
        self._core = core
        self.config = core.config
        self._cursor = core.cursor
        self._closed = False
        self._signals = Signals(self._finish)
        self._waits = False
        self._portal = LoopThread.acquire()
        try:
            self._portal.run(core.start())
        except BaseException:
            self._portal.release()
            raise
        self._opened()

    def _check_open(self) -> None:
        self._core._check_open()
        self._portal.check()

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        try:
            self._check_open()
        except BaseException:
            work.close()
            raise
        return self._portal.run(work)

    def _finish(self) -> bool:
        """Deliver no more; return whether the application is at a message, or waits for one."""
        if self._waits:
            self._portal.post(self._core.stop_waiting)
        return self._waits or self._cursor.begin < self._cursor.end

    def _next_batch(self, timeout_ms: int | None) -> bool:
        self._waits = True  # Set it first, so that a signal after the check below ends the waiting.
        try:
            if self._signals.received is not None:
                return False
            while isinstance(taken := self._run(self._core.take(timeout_ms)), Rebalanced):
                try:
                    notify(self._listener, taken)
                finally:
                    self._portal.run(self._core.acknowledge_rebalance(taken))
        finally:
            self._waits = False
        if taken is not None:
            self._cursor.open(taken)
        return taken is not None

    @abstractmethod
    def close(self, *, finished: bool = True) -> None:
        """Commit and disconnect."""

    def _close(self, *, finished: bool) -> None:
        if self._closed or self._portal.is_inherited:
            return
        self._closed = True
        self._ended()
        try:
            if (event := self._portal.run(self._core.pending_revocation())) is not None:
                notify(self._listener, event)
            self._portal.run(self._core.disconnect(finished=finished))
        finally:
            self._portal.release()

    def _leave(self, error: BaseException | None) -> None:
        self.close(finished=error is None)
