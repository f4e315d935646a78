"""Transactions: a message that consumers get only after its commit.

    with Producer(group="orders-service", checker=was_stored) as producer:
        with producer.transaction(Message("orders", b"...", key="order-1")) as transaction:
            database.store(order)                    # leaving the block commits, an exception rolls back
        transaction.commit_receipt                   # where the message is stored now

On entry the broker stores a half message, which no consumer gets. The broker may get neither a commit nor a rollback,
because the process died, the connection was lost, or the block called `leave_open`. Then it asks a producer of the
group some seconds later, and asks again (transaction_checks.py). If the acknowledgement of a half message was
lost, two brokers may have stored it, and both ask.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeAlias, TypeVar

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import PRODUCER_GROUP, TRANSACTION_PREPARED, encode_properties
from ..config import ProducerConfig
from ..connections import BROKER
from ..lifecycle import AsyncBlock
from ..message import Message
from ..session import Session
from .receipt import Receipt

logger = logging.getLogger(__name__)

_PAUSE_MS: Final = 50
_PAUSE_MAX_MS: Final = 1_000


class Resolution(enum.Enum):
    """The decision about a transaction. UNKNOWN: not decided yet; the broker asks again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


#: What a checker may return: True is COMMIT, False is ROLLBACK, None is UNKNOWN.
Verdict: TypeAlias = Resolution | bool | None

Answer = TypeVar("Answer")

#: Sends a message; returns its receipt when it is acknowledged.
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
    """Return the resolution for VERDICT. Raises InvalidArgument if VERDICT is of another type."""
    if isinstance(verdict, Resolution):
        return verdict
    if verdict is None or isinstance(verdict, bool):
        return _BY_VERDICT[verdict]
    raise errors.InvalidArgument(
        f"the verdict about a transaction is of type {type(verdict).__name__}: return True to commit, False to roll"
        " back, or None if it is not decided yet",
        field="verdict",
        value=str(verdict)[:64],
    )


def half_message(message: Message, group: str) -> Message:
    """Return MESSAGE as the half message of a transaction of GROUP.

    Raises ConfigError without a group, InvalidArgument for a message with a delay or a priority.
    """
    if not group:
        raise errors.ConfigError(
            "transactions need a producer group, because the broker asks its members about unfinished transactions:"
            ' write Producer(…, group="…")',
            field="group",
        )
    if message.timed or message.delay_level:
        raise errors.InvalidArgument(
            "a message in a transaction cannot be delayed: it is delivered after the commit. Omit delay=…, deliver_at=…"
            " and delay_level=…, or send it without a transaction.",
            field="delay",
        )
    if message.priority is not None:
        raise errors.InvalidArgument(
            "a message in a transaction cannot have a priority: omit priority=…",
            field="priority",
            value=message.priority,
        )
    pairs = encode_properties([(TRANSACTION_PREPARED, "true"), (PRODUCER_GROUP, group)])
    return message._replace(property_string=message.property_string + pairs)


class Ending:
    """Sends commits and rollbacks of the transactions of one group. The client's event loop owns it."""

    def __init__(self, session: Session, group: str, request_timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._request_timeout_ms = request_timeout_ms

    async def send(self, address: str, request: pb.EndTransactionRequest) -> pb.EndTransactionReply:
        """Send REQUEST to the broker at ADDRESS once. Raises the broker's error."""
        request.group = self._group
        connection = self._session.connections.to(address)
        return await connection.call(
            BROKER + "EndTransaction", request, pb.EndTransactionReply, self._request_timeout_ms
        )

    async def send_until_answered(
        self, half: Receipt, resolution: Resolution, timeout_ms: int
    ) -> pb.EndTransactionReply:
        """Send RESOLUTION to the broker of HALF; retry for up to TIMEOUT_MS.

        Raises the broker's error if a retry cannot help, or SendFailed after TIMEOUT_MS. Then the broker will ask.
        """

        async def send(address: str) -> pb.EndTransactionReply:
            request = pb.EndTransactionRequest(
                topic=half.topic,
                transaction_id=half.message_id,
                resolution=_WIRE[resolution],
                half_log_offset=half.log_offset,
            )
            return await self.send(address, request)

        def late(elapsed_ms: int, error: errors.PocketMQError) -> errors.SendFailed:
            return errors.SendFailed(
                f"the {resolution.value} of transaction {half.message_id} was not acknowledged by broker {half.broker}"
                f" within {elapsed_ms} ms: the broker will ask a producer of the group. Last error: {error.message}",
                transaction_id=half.message_id,
                last_error=type(error).__name__,
            )

        place = half.topic, half.broker
        return await until_answered(self._session, place, send, timeout_ms, late)


async def until_answered(
    session: Session,
    place: tuple[str, str],
    ask: Callable[[str], Awaitable[Answer]],
    timeout_ms: int,
    late: Callable[[int, errors.PocketMQError], errors.PocketMQError],
) -> Answer:
    """Call ASK with the address of a broker until it succeeds, for up to TIMEOUT_MS; return its result.

    PLACE is (topic, broker). Raises errors that are not retriable. After TIMEOUT_MS, raises the error that LATE returns
    for the elapsed milliseconds and the last error.
    """
    topic, broker = place
    clock = session.clock
    started_ms = clock.now_ms()
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
            moved = session.routes.note_error(broker, address, error)
            elapsed_ms = clock.now_ms() - started_ms
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
        """Use `producer.transaction` instead. SEND sends the half message MESSAGE."""
        self._config = config
        self._send = send
        self._message = message
        self._ending = ending
        self._half: Receipt | None = None
        self._committed: Receipt | None = None
        self._resolution: Resolution | None = None

    @property
    def receipt(self) -> Receipt:
        """The receipt of the half message. Its message_id is the id of the transaction."""
        if self._half is None:
            raise errors.ClientClosed(
                "the transaction has not started: use it in a `with` block, which sends the half message"
            )
        return self._half

    @property
    def commit_receipt(self) -> Receipt | None:
        """The receipt of the message after the commit; None: it is not committed."""
        return self._committed

    @property
    def resolution(self) -> Resolution | None:
        """The decision; None: not decided yet."""
        return self._resolution

    async def begin(self) -> None:
        """Send the half message. `async with` calls it."""
        if self._half is None:
            self._half = await self._send(self._message)

    async def commit(self) -> Receipt:
        """Commit: consumers get the message. Return its receipt.

        Raises:
            TransactionResolved: You have called rollback already, or the broker has given up the transaction.
            SendFailed: The broker was not reached within delivery_timeout_ms. It asks the checker later.
        """
        self._decide(Resolution.COMMIT)
        half = self.receipt
        if self._committed is None:
            reply = await self._send_resolution(Resolution.COMMIT)
            # The broker stores the commit as safely as its own setting demands, whatever `acks` is.
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
        """Roll back: no consumer gets the message. Raises the errors of `commit`."""
        self._decide(Resolution.ROLLBACK)
        await self._send_resolution(Resolution.ROLLBACK)

    def leave_open(self) -> None:
        """Neither commit nor roll back: the broker asks a checker of the group later."""
        self._decide(Resolution.UNKNOWN)

    async def decide(self, verdict: Verdict) -> None:
        """Commit, roll back, or leave the transaction open, as VERDICT says."""
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
                f"cannot {resolution.value} transaction {half.message_id}: you have called {self._resolution.value}"
                " already, and this is final",
                transaction_id=half.message_id,
            )
        self._resolution = resolution

    async def _send_resolution(self, resolution: Resolution) -> pb.EndTransactionReply:
        timeout_ms = self._config.delivery_timeout_ms
        return await self._ending.send_until_answered(self.receipt, resolution, timeout_ms)

    async def finish(self, error: BaseException | None) -> None:
        """End the block: commit, or after ERROR roll back, unless the block has decided."""
        if self._resolution is not None:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except errors.PocketMQError as failure:  # The application's error is what matters.
            logger.warning(
                "transaction not rolled back %s",
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
