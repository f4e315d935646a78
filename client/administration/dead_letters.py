"""Dead letters, as an admin sees them: list, resend, purge. Each broker keeps and numbers its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...proto import errors
from ...proto.errors_wire import from_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import check_group, check_topic
from ..claims import check_advances
from .brokers import Brokers

if TYPE_CHECKING:
    from ..received_message import ReceivedMessage

#: Dead letters in one request.
_LISTED_AT_ONCE: Final = 1_000

_RESENT_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that its group could not handle."""

    broker: str
    """Name of the broker."""
    queue_offset: int
    """Its offset in the dead-letter queue of the group on that broker."""
    message_id: str
    """Id that the producer gave the message; "" if it gave none."""
    origin_topic: str
    """Topic that it was sent to; "" if that is not known."""
    origin_message_id: str
    """Its offset message id in that topic; "" if that is not known."""
    reason: str
    """Why it failed."""
    reconsume_times: int
    """How often it was delivered and failed."""
    died_ms: int
    """When it was moved to the dead-letter queue, in Unix milliseconds of the broker's clock."""
    message: ReceivedMessage
    """The message as it is stored in the dead-letter queue."""
    resent: bool = False
    """It was sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResentDeadLetter:
    """What became of a dead letter that was to be sent again: it lies in QUEUE of TOPIC, or there is an ERROR."""

    broker: str
    """Name of the broker."""
    queue_offset: int
    """Offset of the dead letter."""
    topic: str
    """Topic of the new copy."""
    queue: int
    """Number of its queue."""
    new_queue_offset: int
    """Offset of the new copy."""
    error: errors.PocketMQError | None
    """Why it could not be sent; None: it was."""


class DeadLetterAdmin:
    """The part of an admin that deals with dead letters, over BROKERS."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def dead_letters(
        self,
        group: str,
        *,
        broker: str | None = None,
        from_offset: int = 0,
        max_letters: int = 1_000,
        include_resent: bool = True,
    ) -> list[DeadLetter]:
        """Return the dead letters of GROUP, those that died first in front: at most MAX_LETTERS of each broker.

        BROKER, a name or an address: of this one alone, which FROM_OFFSET, where to begin, needs where there are
        several. Without INCLUDE_RESENT only those that were not sent again. Raises GroupNotFound.
        """
        found: list[DeadLetter] = []
        for name in await self._holders(group, broker, from_offset > 0, "from_offset"):
            request = pb.DeadLettersRequest(group=group, from_offset=from_offset)
            found += await self._of_broker(name, request, max_letters, include_resent)
        return sorted(found, key=lambda letter: (letter.died_ms, letter.broker))

    async def resend_dead_letters(
        self,
        group: str,
        offsets: Iterable[int],
        *,
        topic: str | None = None,
        broker: str | None = None,
    ) -> list[ResentDeadLetter]:
        """Send the dead letters of GROUP with these queue OFFSETS again; return what became of each, in their order.

        Each goes to the topic that it came from, or to TOPIC, as a fresh message: all groups of that topic get it.
        `%RETRY%group` reaches GROUP alone. The dead letters stay until they are purged. BROKER is needed where several
        have dead letters of the group.
        """
        wanted = list(dict.fromkeys(offsets))
        request = pb.ResendDeadLettersRequest(
            group=check_group(group), topic="" if topic is None else check_topic(topic)
        )
        resent: list[ResentDeadLetter] = []
        for name in await self._holders(group, broker, True, "offsets"):
            for begin in range(0, len(wanted), _RESENT_AT_ONCE):
                request.queue_offsets[:] = wanted[begin : begin + _RESENT_AT_ONCE]
                reply = await self._brokers.ask(
                    name, "ResendDeadLetters", request, pb.ResendDeadLettersReply
                )
                resent += [_resent(name, letter) for letter in reply.letters]
        return resent

    async def purge_dead_letters(
        self, group: str, *, below: int | None = None, broker: str | None = None
    ) -> int:
        """Put away the dead letters of GROUP, all or those with offsets BELOW; return how many.

        They are not listed or sent any more; the broker's retention of its log removes the bytes. BROKER is needed
        for BELOW where several have dead letters of the group.
        """
        if below is not None and below < 0:
            raise errors.InvalidArgument(
                f"below is {below}: must not be negative", field="below", limit=0, value=below
            )
        holders = await self._holders(group, broker, below is not None, "below")
        if below == 0:
            return 0  # On the wire 0 means all.
        request = pb.PurgeDeadLettersRequest(group=group, below_offset=below or 0)
        purged = 0
        for name in holders:
            reply = await self._brokers.ask(
                name, "PurgeDeadLetters", request, pb.PurgeDeadLettersReply
            )
            purged += reply.purged
        return purged

    async def _holders(
        self, group: str, broker: str | None, only_one: bool, field: str
    ) -> list[str]:
        """Return the brokers that have dead letters of GROUP; ONLY_ONE: FIELD means one broker's."""
        if broker is not None:
            return list(await self._brokers.addresses(broker))
        request = pb.DeadLettersRequest(group=check_group(group), max_letters=1)
        replies = await self._brokers.ask_all(
            "DeadLetters", request, pb.DeadLettersReply, passing=errors.GroupNotFound
        )
        holders = [name for name, reply in replies.items() if reply.max_offset > reply.min_offset]
        if only_one and len(holders) > 1:
            raise errors.InvalidArgument(
                f"brokers {', '.join(holders)} have dead letters of group {group!r}, each with numbers of its own:"
                " say which broker, with broker=… or --broker",
                field=field,
            )
        # Where nobody has any, one of those that know the group says what is wrong with the numbers.
        return holders or list(replies)[:1]

    async def _of_broker(
        self, broker: str, request: pb.DeadLettersRequest, max_letters: int, include_resent: bool
    ) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        while len(found) < max_letters:
            request.max_letters = min(max_letters - len(found), _LISTED_AT_ONCE)
            reply = await self._brokers.ask(broker, "DeadLetters", request, pb.DeadLettersReply)
            found += [
                _letter(broker, letter)
                for letter in reply.letters
                if include_resent or not letter.resent
            ]
            if reply.next_offset >= reply.max_offset:
                break
            check_advances(request.from_offset, reply.next_offset, f"broker {broker}")
            request.from_offset = reply.next_offset
        return found


def _letter(broker: str, letter: pb.DeadLetter) -> DeadLetter:
    from ..received_message import FetchedRun

    (message,) = FetchedRun(broker, letter.record).messages()
    return DeadLetter(
        broker=broker,
        queue_offset=letter.queue_offset,
        message_id=letter.message_id,
        origin_topic=letter.origin_topic,
        origin_message_id=letter.origin_message_id,
        reason=letter.reason,
        reconsume_times=letter.reconsume_times,
        died_ms=letter.died_ms,
        message=message,
        resent=letter.resent,
    )


def _resent(broker: str, letter: pb.ResentDeadLetter) -> ResentDeadLetter:
    return ResentDeadLetter(
        broker=broker,
        queue_offset=letter.queue_offset,
        topic=letter.topic,
        queue=letter.queue,
        new_queue_offset=letter.new_queue_offset,
        error=from_wire(letter.error) if letter.HasField("error") else None,
    )
