"""Transactions for coroutines: a message that becomes visible only with the commit.

    with Producer(group="orders-service", checker=was_stored) as producer:
        with producer.transaction(Message("orders", b"...", key="order-1")) as transaction:
            database.store(order)                    # leaving the block commits, an exception rolls back
        transaction.commit_receipt                   # where the message lies now

On entry the broker stores a half message, which no consumer gets. If the outcome does not arrive (the process died, the
connection was lost, the block called `leave_open`), the broker asks a producer of the group some seconds later, and
again (transaction_checks.py). If the acknowledgement of a half message was lost, two brokers may have it, and both ask.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import (
    PRODUCER_GROUP,
    TRANSACTION_PREPARED,
    encode_properties,
)
from ..config import ProducerConfig
from ..connections import BROKER
from ..lifecycle import AsyncBlock
from ..message import Message
from ..session import Session
from .receipt import Receipt

if TYPE_CHECKING:
    pass

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
