"""Transactions: a message that becomes visible only when what belongs to it has happened.

    with Producer(group="orders-service", checker=was_stored) as producer:
        with producer.transaction(Message("orders", b"...", key="order-1")) as transaction:
            database.store(order)                    # leaving the block commits, an exception rolls back
        transaction.commit_receipt                   # where the message lies now

On entry the broker has the message as a half message, which nobody sees. If the outcome does not arrive (the process
died, the connection was lost, the block ended with `leave_open`), the broker asks a producer of the group, some
seconds later and again and again: its *checker* looks up what happened, by the key for example.

At least once, as all sends: a half message whose acknowledgement was lost may be stored on two brokers, and then both
ask.

Answering checks: brokers ask what became of transactions whose outcome they did not hear.

A producer with a checker keeps one stream open to every broker of its cluster, also to those that it sent nothing to:
a producer that died may have. Brokers that come and go are noticed every `REFRESH_MS`; a stream that breaks is opened
again, more and more slowly.

The checker gets the message as it was sent, with its real topic and queue, and says COMMIT or ROLLBACK (True, False),
or None for not known yet. One that raises is logged, and the broker asks again. An ordinary function runs in a thread
of its own, `CHECKS_MAX` at a time; a coroutine function on the event loop. At that bound further checks wait on their
stream, where the broker's bound holds.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import (
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    TRANSACTION_PREPARED,
    encode_properties,
)
from ...proto.record import decode_record, encode_record
from ..config import ProducerConfig
from ..connections import BROKER
from ..lifecycle import AsyncBlock
from ..message import Message
from ..session import Session
from .receipt import Receipt

if TYPE_CHECKING:
    from ..received_message import ReceivedMessage

logger = logging.getLogger(__name__)

_PAUSE_MS: Final = 50
_PAUSE_MAX_MS: Final = 1_000


class Resolution(enum.Enum):
    """What becomes of a transaction. UNKNOWN: not decided yet, ask again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


#: What a local transaction or a checker may say; True is COMMIT, False ROLLBACK, None UNKNOWN.
Verdict: TypeAlias = Resolution | bool | None

Answer = TypeVar("Answer")

#: Sends a message; returns its receipt once it is acknowledged.
Send: TypeAlias = Callable[[Message], Awaitable[Receipt]]

_WIRE: Final = {
    Resolution.COMMIT: pb.COMMIT,
    Resolution.ROLLBACK: pb.ROLLBACK,
    Resolution.UNKNOWN: pb.RESOLUTION_UNSPECIFIED,
}
_BY_VERDICT: Final[dict[object, Resolution]] = {
    True: Resolution.COMMIT,
    False: Resolution.ROLLBACK,
    None: Resolution.UNKNOWN,
}


def resolution_of(verdict: object) -> Resolution:
    """Return the resolution that VERDICT means; raise InvalidArgument for what is none."""
    if isinstance(verdict, Resolution):
        return verdict
    if verdict is None or isinstance(verdict, bool):
        return _BY_VERDICT[verdict]
    raise errors.InvalidArgument(
        f"a verdict is {type(verdict).__name__}: return True to commit, False to roll back, None for"
        " not known yet",
        field="verdict",
        value=str(verdict)[:64],
    )


def half_message(message: Message, group: str) -> Message:
    """Return MESSAGE as the half message of a transaction of GROUP.

    Raises ConfigError without a group, InvalidArgument for a message with a delay or a priority.
    """
    if not group:
        raise errors.ConfigError(
            "a producer needs a group for transactions, whose members the broker may ask for their outcome: write"
            ' Producer(…, group="…")',
            field="group",
        )
    if message.timed or message.delay_level:
        raise errors.InvalidArgument(
            "a message of a transaction is delivered when it is committed, and cannot be delayed as well: send it"
            " without delay=…, deliver_at=… and delay_level=…",
            field="delay",
        )
    if message.priority is not None:
        raise errors.InvalidArgument(
            "a message of a transaction cannot have a priority: send it without priority=…",
            field="priority",
            value=message.priority,
        )
    pairs = encode_properties([(TRANSACTION_PREPARED, "true"), (PRODUCER_GROUP, group)])
    return message._replace(property_string=message.property_string + pairs)


class Ending:
    """Tells brokers the outcome of transactions of GROUP. The client's event loop owns it."""

    def __init__(self, session: Session, group: str, request_timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._request_timeout_ms = request_timeout_ms

    async def tell(self, address: str, request: pb.EndTransactionRequest) -> pb.EndTransactionReply:
        """Tell the broker at ADDRESS once; raise what it answers."""
        request.group = self._group
        connection = self._session.connections.to(address)
        return await connection.call(
            BROKER + "EndTransaction", request, pb.EndTransactionReply, self._request_timeout_ms
        )

    async def insist(
        self, half: Receipt, resolution: Resolution, timeout_ms: int
    ) -> pb.EndTransactionReply:
        """Tell the broker of HALF, again and again for TIMEOUT_MS while that may help.

        Raises the broker's error, or SendFailed when the time is over: then the broker asks.
        """

        async def tell(address: str) -> pb.EndTransactionReply:
            request = pb.EndTransactionRequest(
                topic=half.topic,
                transaction_id=half.message_id,
                resolution=_WIRE[resolution],
                half_log_offset=half.log_offset,
            )
            return await self.tell(address, request)

        def late(elapsed_ms: int, error: errors.PocketMQError) -> errors.SendFailed:
            return errors.SendFailed(
                f"the outcome of transaction {half.message_id} ({resolution.value}) was not acknowledged by"
                f" {half.broker} within {elapsed_ms} ms; it will ask for it. The last: {error.message}",
                transaction_id=half.message_id,
                last_error=type(error).__name__,
            )

        place = half.topic, half.broker
        return await until_answered(self._session, place, tell, timeout_ms, late)


async def until_answered(
    session: Session,
    place: tuple[str, str],
    ask: Callable[[str], Awaitable[Answer]],
    timeout_ms: int,
    late: Callable[[int, errors.PocketMQError], errors.PocketMQError],
) -> Answer:
    """Return what ASK(address) of the broker at PLACE, topic and broker, returns; ask again for TIMEOUT_MS.

    Raises what no repetition heals, or what LATE makes of the time that is over and the last error.
    """
    topic, broker = place
    clock = session.clock
    begun_ms = clock.now_ms()
    pause_ms = _PAUSE_MS
    address = ""
    while True:
        try:
            await session.routes.find(topic, provisional=True)
            address = session.routes.address(broker)
            return await ask(address)
        except errors.PocketMQError as error:
            if not error.retriable:
                raise
            moved = session.routes.astray(broker, address, error)
            elapsed_ms = clock.now_ms() - begun_ms
            if elapsed_ms + pause_ms >= timeout_ms:
                raise late(elapsed_ms, error) from error
        if moved:
            continue
        session.routes.forget(topic)
        await clock.sleep_until(clock.now_ms() + pause_ms)
        pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)


class AsyncTransaction(AsyncBlock):
    """One transaction, for coroutines: `async with producer.transaction(message) as transaction`."""

    def __init__(
        self, config: ProducerConfig, send: Send, message: Message, ending: Ending
    ) -> None:
        """Producers make it, with the half MESSAGE and what sends it."""
        self._config = config
        self._send = send
        self._message = message
        self._ending = ending
        self._half: Receipt | None = None
        self._committed: Receipt | None = None
        self._resolution: Resolution | None = None

    @property
    def receipt(self) -> Receipt:
        """Where the half message lies; its message_id is the transaction's id."""
        if self._half is None:
            raise errors.ClientClosed(
                "the transaction has not begun: use it in a `with` block, which sends the half message"
            )
        return self._half

    @property
    def commit_receipt(self) -> Receipt | None:
        """Where the message lies that was committed; None: it was not."""
        return self._committed

    @property
    def resolution(self) -> Resolution | None:
        """What was decided; None: nothing yet."""
        return self._resolution

    async def begin(self) -> None:
        """Send the half message; `async with` does so."""
        if self._half is None:
            self._half = await self._send(self._message)

    async def commit(self) -> Receipt:
        """Make the message visible; return where it lies.

        Raises what the broker refuses it with (TransactionResolved: it was given up), SendFailed if the broker was not
        reached within delivery_timeout_ms: then it asks for the outcome, and the checker answers.
        """
        self._decide(Resolution.COMMIT)
        half = self.receipt
        if self._committed is None:
            reply = await self._tell(Resolution.COMMIT)
            # The outcome is as safe as the broker is set, whatever the half message asked for.
            as_set = self._config.acks is None
            self._committed = half._replace(
                queue=reply.queue,
                queue_offset=reply.queue_offset,
                log_offset=reply.log_offset,
                store_timestamp_ms=reply.store_timestamp_ms,
                durability=half.durability if as_set else "memory",
            )
        return self._committed

    async def rollback(self) -> None:
        """Take the message back. Raises as `commit` does."""
        self._decide(Resolution.ROLLBACK)
        await self._tell(Resolution.ROLLBACK)

    def leave_open(self) -> None:
        """Decide nothing now: the broker asks the group's checkers for the outcome."""
        self._decide(Resolution.UNKNOWN)

    async def decide(self, verdict: Verdict) -> None:
        """Do as VERDICT says."""
        resolution = resolution_of(verdict)
        if resolution is Resolution.COMMIT:
            await self.commit()
        elif resolution is Resolution.ROLLBACK:
            await self.rollback()
        else:
            self.leave_open()

    def _decide(self, resolution: Resolution) -> None:
        half = self.receipt
        if self._resolution not in (None, Resolution.UNKNOWN, resolution):
            raise errors.TransactionResolved(
                f"transaction {half.message_id} was told to {self._resolution.value} before: an outcome is final",
                transaction_id=half.message_id,
            )
        self._resolution = resolution

    async def _tell(self, resolution: Resolution) -> pb.EndTransactionReply:
        timeout_ms = self._config.delivery_timeout_ms
        return await self._ending.insist(self.receipt, resolution, timeout_ms)

    async def finish(self, error: BaseException | None) -> None:
        """End the block: commit, or roll back because of ERROR, unless something was decided in it."""
        if self._resolution is not None:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except errors.PocketMQError as failure:  # The application's error is what matters.
            logger.warning(
                "a transaction could not be rolled back %s",
                Facts(
                    queue=self.receipt.queue,
                    id=self.receipt.message_id,
                    reason=failure.message,
                ),
            )

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def _leave(self, error: BaseException | None) -> None:
        await self.finish(error)


# ---------------------------------------------------------------- answering checks


#: Says what became of the transaction of a message.
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
        self._room = asyncio.Semaphore(CHECKS_MAX)
        self._threads: ThreadPoolExecutor | None = None
        if not inspect.iscoroutinefunction(checker):
            self._threads = ThreadPoolExecutor(CHECKS_MAX, "pocketmq-checker")

    def start(self) -> None:
        """Begin to listen."""
        self._session.tasks.spawn(self._watch())

    def close(self) -> None:
        """Begin no more checks; the session's end breaks the streams off."""
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
        """Answer what BROKER asks, until it does not offer that."""
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
                    await self._room.acquire()
                    self._session.tasks.spawn(self._answer(broker, address, check))
            except errors.NotServed:
                logger.info("broker does not check transactions %s", Facts(broker=broker))
                return
            except errors.PocketMQError as error:
                logger.debug("checks broken off %s", Facts(broker=broker, reason=error.message))
                if routes.astray(broker, address, error):
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
            await self._ending.tell(address, request)
        except (
            errors.PocketMQError
        ) as error:  # It is asked again, unless somebody else has answered.
            logger.info(
                "answer to a check was not taken %s",
                Facts(broker=broker, id=check.transaction_id, reason=error.message),
            )
        finally:
            self._room.release()

    async def _verdict(self, broker: str, check: pb.TransactionCheck) -> Resolution:
        """Ask the checker."""
        try:
            message = message_of(broker, check)
            if self._threads is None:
                verdict = await self._checker(message)  # type: ignore[misc]
            else:
                loop = asyncio.get_running_loop()
                verdict = await loop.run_in_executor(self._threads, self._checker, message)
            return resolution_of(verdict)
        except (
            Exception
        ) as error:  # The edge: the application's checker may raise anything; it is asked again.
            facts = Facts(broker=broker, id=check.transaction_id, reason=repr(error))
            logger.exception("checker failed, it is asked again %s", facts)
            return Resolution.UNKNOWN


def check_checker(checker: Checker | None, group: str) -> None:
    """Refuse a CHECKER that nobody could ask."""
    if checker is not None and not group:
        raise errors.ConfigError(
            'a checker answers for a group: write Producer(…, group="…", checker=…)', field="group"
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
        """Return a transaction of MESSAGE, which has not begun; SEND sends the half message."""
        half = half_message(message, self._config.group)
        return AsyncTransaction(self._config, send, half, self._ending)

    def start(self) -> None:
        """Begin to answer checks."""
        if self._checking is not None:
            self._checking.start()

    def close(self) -> None:
        """Begin no more checks."""
        if self._checking is not None:
            self._checking.close()


def message_of(broker: str, check: pb.TransactionCheck) -> ReceivedMessage:
    """Return the message that CHECK is about, with its real topic and queue; offsets are those of the half message.

    Raises CorruptRecord for a body that does not fit its CRC.
    """
    from ..received_message import FetchedRun

    FetchedRun(broker, check.record)  # Raises for a wrong body, before it is encoded again.
    half = decode_record(check.record)
    queue = half.properties.get(REAL_QUEUE_ID, "")
    record = replace(
        half, topic=check.topic, queue_id=int(queue) if queue.isdecimal() else half.queue_id
    )
    (message,) = FetchedRun(broker, encode_record(record), check_crcs=False).messages()
    return message
