"""Administration of dead-letter queues: list, resend, purge. Each broker stores and numbers its own dead letters."""

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

#: Maximum number of dead letters per request.
_LISTED_AT_ONCE: Final = 1_000
_RESENT_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that its group could not process."""

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
    """Number of deliveries that failed."""
    died_ms: int
    """When it was moved to the dead-letter queue, in Unix milliseconds of the broker's clock."""
    message: ReceivedMessage
    """The message as it is stored in the dead-letter queue."""
    resent: bool = False
    """It was sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResentDeadLetter:
    """The result of resending a dead letter: where the new copy is, or an error."""

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
    """Why it was not sent; None: it was sent."""


class DeadLetterAdmin:
    """The part of an admin for dead letters."""

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
        """Return the dead letters of a group, the oldest first.

        Args:
            group: The consumer group.
            broker: Name or address of a broker; None: all brokers.
            from_offset: Offset of the first dead letter. Needs `broker` if several brokers have dead letters.
            max_letters: Maximum number per broker.
            include_resent: Whether to include dead letters that were resent.

        Raises:
            GroupNotFound: There is no such group.
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
        """Send dead letters again as new messages; return the results in the order of OFFSETS.

        All groups of the topic get the new messages. The dead letters stay until they are purged.

        Args:
            group: The consumer group.
            offsets: Offsets of the dead letters.
            topic: Topic to send to; None: the original topic of each. `%RETRY%group` reaches only this group.
            broker: Name of a broker, needed if several brokers have dead letters of the group.
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
        """Purge the dead-letter queue of a group; return the number of purged dead letters.

        They can no longer be listed or resent. The broker removes their bytes when their files expire.

        Args:
            group: The consumer group.
            below: Purge only offsets below this one; None: purge all.
            broker: Name of a broker. Needed for `below` if several brokers have dead letters of the group.
        """
        if below is not None and below < 0:
            raise errors.InvalidArgument(
                f"below is {below}: it must be at least 0", field="below", limit=0, value=below
            )
        holders = await self._holders(group, broker, below is not None, "below")
        if below == 0:
            return 0  # In the request, 0 means all.
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
        """Return the brokers that have dead letters of GROUP. ONLY_ONE: the argument FIELD allows only one broker."""
        if broker is not None:
            return list(await self._brokers.addresses(broker))
        request = pb.DeadLettersRequest(group=check_group(group), max_letters=1)
        replies = await self._brokers.ask_all(
            "DeadLetters", request, pb.DeadLettersReply, passing=errors.GroupNotFound
        )
        holders = [name for name, reply in replies.items() if reply.max_offset > reply.min_offset]
        if only_one and len(holders) > 1:
            raise errors.InvalidArgument(
                f"{field} needs a broker, because brokers {', '.join(holders)} have dead letters of group {group!r}:"
                " choose one with broker=… or --broker",
                field=field,
            )
        # If no broker has dead letters, ask one that knows the group, so that it reports wrong offsets.
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
