"""The hand-written part of the producer for threads: start and close."""

from __future__ import annotations

import logging
from random import Random
from typing import Unpack

from ...proto.clock import SystemClock
from ...proto.facts import Facts
from ..config import ProducerConfig, ProducerSettings, settled
from ..lifecycle import SignalledClient
from ..loop_thread import LoopThread
from ..producing.sender import Sender
from ..producing.transaction_checks import Checker, check_checker
from ..session import Session
from ..signals import Signals
from .send_queue import SendQueue

logger = logging.getLogger(__name__)


class ThreadProducer(SignalledClient):
    """Passes messages to a Sender on the clients' event loop."""

    def __init__(
        self,
        nameservers: str | None = None,
        *,
        checker: Checker | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        """Create and start a producer. Close it, or use it in a `with` block.

        Args:
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            checker: Called with a half message; returns whether its transaction was committed.
            settings: Fields of ProducerConfig.
        """
        self.config = settled(ProducerConfig, nameservers, settings)
        check_checker(checker, self.config.group)
        self._signals = Signals()
        self._portal = LoopThread.acquire()
        self._closed = False
        try:
            sender = self._portal.run(self._start(checker))
        except BaseException:
            self._portal.release()
            raise
        self._sender = SendQueue(self._portal, sender)
        self._opened()

    async def _start(self, checker: Checker | None) -> Sender:
        session = Session(self.config, None, SystemClock(), Random())
        sender = Sender(self.config, session, checker)
        await sender.start()
        return sender

    def _close_at_exit(self) -> None:
        failed = self._sender.metrics().messages_failed
        super()._close_at_exit()
        if count := self._sender.metrics().messages_failed - failed:
            logger.warning("messages not delivered at exit %s", Facts(count=count))

    def _close(self, timeout_ms: int) -> None:
        if self._closed or self._portal.is_inherited:
            return
        self._closed = True
        self._ended()
        try:
            self._sender.close(timeout_ms)
        finally:
            self._portal.release()
