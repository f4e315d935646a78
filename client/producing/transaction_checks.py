"""Transaction checks: a producer answers brokers that ask whether to commit or roll back a transaction.

A producer with a checker keeps one stream open to every broker of its cluster, because another producer of the group
may have sent half messages to any of them before it died. Every `REFRESH_MS` it looks for new brokers. It reopens a
broken stream, with growing pauses.

The checker gets the message with its real topic and queue. It returns COMMIT or ROLLBACK (True, False), or None if it
does not know yet. If it raises, the error is logged and the broker asks again. A coroutine function runs on the event
loop, an ordinary function in a thread. At most `CHECKS_MAX` checks run at once; more wait on their streams.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import REAL_QUEUE_ID
from ...proto.record import decode_record, encode_record
from ..config import ProducerConfig
from ..message import Message
from ..session import Session
from .transaction import (
    AsyncTransaction,
    Ending,
    Resolution,
    Send,
    Verdict,
    half_message,
    resolution_of,
)

if TYPE_CHECKING:
    from ..received_message import ReceivedMessage

logger = logging.getLogger(__name__)

#: Returns whether the transaction of a message was committed.
Checker: TypeAlias = (
    "Callable[[ReceivedMessage], Verdict] | Callable[[ReceivedMessage], Awaitable[Verdict]]"
)

REFRESH_MS: Final = 30_000
CHECKS_MAX: Final = 8
_ANSWER_PAUSE_MS: Final = 100
_ANSWER_PAUSE_MAX_MS: Final = 5_000


class Checking:
    """Answers the checks for GROUP with CHECKER. The client's event loop owns it."""

    def __init__(self, session: Session, group: str, checker: Checker, ending: Ending) -> None:
        self._session = session
        self._group = group
        self._checker = checker
        self._ending = ending
        #: The stream of each broker, by address.
        self._streams: dict[str, asyncio.Task[object]] = {}
        self._slots = asyncio.Semaphore(CHECKS_MAX)
        self._threads: ThreadPoolExecutor | None = None
        if not inspect.iscoroutinefunction(checker):
            self._threads = ThreadPoolExecutor(CHECKS_MAX, "pocketmq-checker")

    def start(self) -> None:
        """Open the streams in the background."""
        self._session.tasks.spawn(self._watch())

    def close(self) -> None:
        """Start no more checks. The streams end when the session closes."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _watch(self) -> None:
        """Keep a stream to every broker."""
        clock = self._session.clock
        pause_ms = _ANSWER_PAUSE_MS
        while True:
            try:
                brokers = await self._session.routes.brokers()
                self._listen_to(brokers)
                pause_ms = REFRESH_MS if brokers else min(2 * pause_ms, _ANSWER_PAUSE_MAX_MS)
            except errors.PocketMQError as error:
                logger.debug("brokers not found %s", Facts(reason=error.message))
                pause_ms = min(2 * pause_ms, _ANSWER_PAUSE_MAX_MS)
            await clock.sleep_until(clock.now_ms() + pause_ms)

    def _listen_to(self, brokers: dict[str, str]) -> None:
        for name in self._streams.keys() - brokers.keys():
            self._streams.pop(name).cancel()
        for name in brokers:
            stream = self._streams.get(name)
            if stream is None or stream.done():
                self._streams[name] = self._session.tasks.spawn(self._listen(name))

    async def _listen(self, broker: str) -> None:
        """Answer the checks of BROKER. Returns if BROKER does not support checks."""
        clock, routes = self._session.clock, self._session.routes
        pause_ms = _ANSWER_PAUSE_MS
        while True:
            address = routes.address(broker)
            try:
                checks = self._session.connections.to(address).listen(
                    pb.TransactionListener(group=self._group)
                )
                async for check in checks:
                    pause_ms = _ANSWER_PAUSE_MS
                    await self._slots.acquire()
                    self._session.tasks.spawn(self._answer(broker, address, check))
            except errors.Unsupported:
                logger.info("broker does not support transaction checks %s", Facts(broker=broker))
                return
            except errors.PocketMQError as error:
                logger.debug(
                    "stream of checks broken %s", Facts(broker=broker, reason=error.message)
                )
                if routes.note_error(broker, address, error):
                    continue
            await clock.sleep_until(clock.now_ms() + pause_ms)
            pause_ms = min(2 * pause_ms, _ANSWER_PAUSE_MAX_MS)

    async def _answer(self, broker: str, address: str, check: pb.TransactionCheck) -> None:
        try:
            resolution = await self._verdict(broker, check)
            if resolution is Resolution.UNKNOWN:
                return
            commit = resolution is Resolution.COMMIT
            request = pb.EndTransactionRequest(
                topic=check.topic,
                transaction_id=check.transaction_id,
                resolution=pb.COMMIT if commit else pb.ROLLBACK,
                from_check=True,
                half_log_offset=check.half_log_offset,
            )
            await self._ending.send(address, request)
        except errors.PocketMQError as error:
            # Unless another producer has answered, the broker asks again.
            logger.info(
                "answer to transaction check refused %s",
                Facts(broker=broker, id=check.transaction_id, reason=error.message),
            )
        finally:
            self._slots.release()

    async def _verdict(self, broker: str, check: pb.TransactionCheck) -> Resolution:
        """Call the checker; return its verdict, or UNKNOWN if it raises."""
        try:
            message = message_of(broker, check)
            if self._threads is None:
                verdict = await self._checker(message)  # type: ignore[misc]
            else:
                loop = asyncio.get_running_loop()
                verdict = await loop.run_in_executor(self._threads, self._checker, message)
            return resolution_of(verdict)
        except Exception as error:
            # The application's checker may raise anything. The broker asks again.
            facts = Facts(broker=broker, id=check.transaction_id, reason=repr(error))
            logger.exception("transaction checker failed, broker will ask again %s", facts)
            return Resolution.UNKNOWN


def check_checker(checker: Checker | None, group: str) -> None:
    """Raise ConfigError for a CHECKER without a group: no broker could ask it."""
    if checker is not None and not group:
        raise errors.ConfigError(
            'a transaction checker needs a producer group: write Producer(…, group="…", checker=…)',
            field="group",
        )


class Transacting:
    """The transactions of one producer. The client's event loop owns it."""

    def __init__(self, config: ProducerConfig, session: Session, checker: Checker | None) -> None:
        check_checker(checker, config.group)
        self._config = config
        self._ending = ending = Ending(session, config.group, config.request_timeout_ms)
        self._checking = (
            None if checker is None else Checking(session, config.group, checker, ending)
        )

    def transaction(self, message: Message, send: Send) -> AsyncTransaction:
        """Return a transaction of MESSAGE, not started yet. SEND sends the half message."""
        half = half_message(message, self._config.group)
        return AsyncTransaction(self._config, send, half, self._ending)

    def start(self) -> None:
        """Start to answer checks."""
        if self._checking is not None:
            self._checking.start()

    def close(self) -> None:
        """Start no more checks."""
        if self._checking is not None:
            self._checking.close()


def message_of(broker: str, check: pb.TransactionCheck) -> ReceivedMessage:
    """Return the message of CHECK, with its real topic and queue, and the offsets of the half message.

    Raises CorruptRecord if the CRC of the body is wrong.
    """
    from ..received_message import FetchedRun

    FetchedRun(broker, check.record)  # Raises if the body is damaged, before it is encoded again.
    half = decode_record(check.record)
    queue = half.properties.get(REAL_QUEUE_ID, "")
    record = replace(
        half, topic=check.topic, queue_id=int(queue) if queue.isdecimal() else half.queue_id
    )
    (message,) = FetchedRun(broker, encode_record(record), check_crcs=False).messages()
    return message
