"""The dead letters of a group, for administrators: list them, send them again, purge them.

Dead letters are the messages of `%DLQ%group`, queue 0. Their properties (see retries.py) give origin and reason.

Purging only moves a mark: letters before it are no longer listed or sent. Their bytes stay in the log until retention
removes the files. The mark is a committed offset of the group CID_RMQ_SYS_DEAD_LETTERS, which Apache RocketMQ's brokers
and tools can read. Its offset metadata names the letters that were sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from ...proto import errors, properties as names
from ...proto.commit_metadata import COMMIT_METADATA_MAX
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.lite_topics import LITE
from ...proto.record import SYS_TRANSACTION, Record, decode_record
from ...proto.record_copy import RecordCopier
from ...proto.record_run import parse_run, starts_of
from ...proto.rpc import Call, MethodTable, service, unary
from ...proto.run import Run
from ...proto.topics import (
    DEAD_LETTER_PREFIX,
    DEAD_LETTERS_GROUP,
    RETRY_PREFIX,
    check_group,
    dead_letter_topic,
    retry_topic,
)
from ...store.message_store import MessageStore
from ..callbacks import ended
from ..consumer_groups import Groups
from ..messages.appender import Appender, synced
from ..offsets import Offsets
from ..topics import TYPE_ATTRIBUTE, Topics
from .lag import check_natural
from .retries import failure_reason

logger = logging.getLogger(__name__)

#: Limit of the offset metadata of the mark. It names the letters that were sent again, as ranges: "3-5,9".
RANGES_SIZE_MAX: Final = COMMIT_METADATA_MAX
LETTERS_MAX: Final = 1_000
LETTERS_DEFAULT: Final = 64
PAGE_BYTES: Final = 1024 * 1024
#: Letters that are sent again in one turn of the event loop: about 5 ms, more if they are large.
_TURN_LETTERS: Final = 16

#: Properties that a resent copy does not have: traces of retries …
_OF_RETRIES: Final = (names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID)
#: … of the dead letter, of delays, of a transaction, of pop consumers, and what would be wrong on a
#: copy.
_OF_THE_PAST: Final = frozenset(
    {
        names.DEAD_LETTER_ORIGIN_TOPIC,
        names.DEAD_LETTER_ORIGIN_MESSAGE_ID,
        names.DEAD_LETTER_REASON,
        names.WAIT,
        *names.DELAY_NAMES,
        names.MULTI_DISPATCH,
        names.MULTI_QUEUE_OFFSET,
        names.TRANSACTION_PREPARED,
        names.POP_CHECK_POINT,
        names.PROPERTY_CRC,
        names.PRODUCER_SEQUENCE,
    }
)


class Resent:
    """Offsets of dead letters that were sent again, as ranges. Beyond RANGES_SIZE_MAX bytes of text, the lowest are
    dropped.
    """

    def __init__(self, text: str) -> None:
        """Read TEXT; malformed ranges are ignored."""
        self._ranges: list[tuple[int, int]] = []
        for word in text.split(","):
            begin, _, last = word.partition("-")
            if begin.isdecimal() and (last or begin).isdecimal():
                self._ranges.append((int(begin), int(last or begin) + 1))

    def __contains__(self, offset: int) -> bool:
        return any(begin <= offset < end for begin, end in self._ranges)

    def count(self, first: int, end: int) -> int:
        """Return how many offsets there are from FIRST to END (exclusive)."""
        return sum(max(0, min(end, stop) - max(first, begin)) for begin, stop in self._ranges)

    def add(self, offsets: Iterable[int]) -> None:
        """Add OFFSETS."""
        joined: list[tuple[int, int]] = []
        for begin, end in sorted([*self._ranges, *((one, one + 1) for one in offsets)]):
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        self._ranges = joined

    def text_from(self, first: int) -> str:
        """Return the text of the ranges from FIRST on."""
        words: list[str] = []
        size = 0
        for begin, end in reversed(self._ranges):
            if end <= first:
                break
            word = f"{begin}-{end - 1}" if end - begin > 1 else f"{begin}"
            size += len(word) + 1
            if size > RANGES_SIZE_MAX:
                break
            words.append(word)
        return ",".join(reversed(words))


def letter_of(record: Record, data: bytes) -> pb.DeadLetter:
    """Return the description of the dead letter RECORD, which has the bytes DATA. Pure."""
    properties = record.properties
    origin_id = properties.get(names.DEAD_LETTER_ORIGIN_MESSAGE_ID)
    return pb.DeadLetter(
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        message_id=properties.get(names.UNIQ_KEY, ""),
        origin_topic=_origin(record),
        origin_message_id=origin_id or properties.get(names.ORIGIN_MESSAGE_ID, ""),
        reason=properties.get(names.DEAD_LETTER_REASON) or failure_reason(record.reconsume_times),
        reconsume_times=record.reconsume_times,
        died_ms=record.store_timestamp_ms,
        record=data,
    )


def _origin(record: Record) -> str:
    """Return the topic that RECORD was sent to; "" if it is not known."""
    properties = record.properties
    return properties.get(names.DEAD_LETTER_ORIGIN_TOPIC) or properties.get(names.RETRY_TOPIC, "")


class DeadLetters:
    """The dead letters of all groups in STORE. The event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        appends: Appender,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._appends = appends
        self._turn = 0

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            "pocketmq.v1.Broker",
            {
                "DeadLetters": unary(pb.DeadLettersRequest, pb.DeadLettersReply, self.list),
                "ResendDeadLetters": unary(
                    pb.ResendDeadLettersRequest, pb.ResendDeadLettersReply, self.resend
                ),
                "PurgeDeadLetters": unary(
                    pb.PurgeDeadLettersRequest, pb.PurgeDeadLettersReply, self.purge
                ),
            },
        )

    def list(self, request: pb.DeadLettersRequest, call: Call) -> pb.DeadLettersReply:
        """Answer a page of dead letters, oldest first. A page may be shorter than requested, also before the end.

        Raises InvalidArgument, or GroupNotFound if the group and its dead letters do not exist.
        """
        check_natural("from_offset", request.from_offset)
        check_natural("max_letters", request.max_letters)
        topic, first, end = self._bounds(request.group)
        resent = self._resent(topic)
        reply = pb.DeadLettersReply(
            min_offset=first, max_offset=end, resent_count=resent.count(first, end)
        )
        at = min(max(request.from_offset, first), end)
        count = min(request.max_letters or LETTERS_DEFAULT, LETTERS_MAX)
        if at < end:
            found = self._store.read_queue(topic, 0, at, count, PAGE_BYTES)
            at = found.next_offset
            sizes = found.sizes
            for start, size in zip(starts_of(sizes).tolist(), sizes.tolist(), strict=True):
                data = found.records[start : start + size]
                try:
                    letter = letter_of(decode_record(data), data)
                    letter.resent = letter.queue_offset in resent
                    reply.letters.append(letter)
                except errors.InvalidRecord:
                    logger.warning("dead letter damaged group=%s", request.group)
        reply.next_offset = at
        return reply

    def _bounds(self, group: str) -> tuple[str, int, int]:
        """Return the topic of GROUP's dead letters, the offset of the first valid one, and the end offset."""
        topic = dead_letter_topic(check_group(group))
        if not self._topics.has_queue(topic, 0):
            self._groups.get(group)  # Raises GroupNotFound.
        low, end = self._store.queue_bounds(topic, 0)
        mark = self._offsets.committed(topic, DEAD_LETTERS_GROUP, 0) or 0
        return topic, min(max(low, mark), end), end

    def _resent(self, topic: str) -> Resent:
        """Return which dead letters in TOPIC were sent again."""
        return Resent(self._offsets.metadata(topic, DEAD_LETTERS_GROUP, 0))

    async def resend(
        self, request: pb.ResendDeadLettersRequest, call: Call
    ) -> pb.ResendDeadLettersReply:
        """Send the chosen dead letters again; the reply with each result is sent once the copies are safe."""
        offsets = _chosen(request)
        topic, first, end = self._bounds(request.group)
        reply = pb.ResendDeadLettersReply()
        end_offset = 0
        for begin in range(0, len(offsets), _TURN_LETTERS):
            for offset in offsets[begin : begin + _TURN_LETTERS]:
                letter = reply.letters.add(queue_offset=offset)
                try:
                    data = self._read(topic, offset, first, end)
                    end_offset = max(end_offset, self._send(data, request, letter))
                except errors.PocketMQError as error:
                    letter.error.CopyFrom(to_wire(error))
            await asyncio.sleep(0)
        if end_offset:
            await self._appends.safe(end_offset)
            await self._mark(
                topic, [one.queue_offset for one in reply.letters if not one.HasField("error")]
            )
        return reply

    async def _mark(self, topic: str, sent: Sequence[int]) -> None:
        """Record that the dead letters SENT of TOPIC were sent again; return once the record is saved."""
        resent = self._resent(topic)
        resent.add(sent)
        mark = self._offsets.committed(topic, DEAD_LETTERS_GROUP, 0) or 0
        self._offsets.commit(topic, DEAD_LETTERS_GROUP, 0, mark, resent.text_from(mark))
        await ended(self._offsets.when_saved)

    def _read(self, topic: str, offset: int, first: int, end: int) -> bytes:
        if first <= offset < end:
            found = self._store.read_queue(topic, 0, offset, 1, 1)
            if len(found) and int(found.queue_offsets[0]) == offset:
                return found.records
        there = (
            f"existing numbers are {first} to {end - 1}" if first < end else "the group has none"
        )
        raise errors.MessageNotFound(
            f"no dead letter has the number {offset}: {there}",
            field="queue_offsets",
            limit=end,
            value=offset,
        )

    def _send(
        self, data: bytes, request: pb.ResendDeadLettersRequest, letter: pb.ResentDeadLetter
    ) -> int:
        """Append a new copy of DATA, and set its destination in LETTER; return the log offset after it."""
        record = decode_record(data)
        topic, queue = self._target(request.group, request.topic or _origin(record))
        dropped = _OF_THE_PAST
        if topic != retry_topic(request.group):
            dropped = dropped.union(_OF_RETRIES)
        kept = {name: value for name, value in record.properties.items() if name not in dropped}
        copy = RecordCopier(data, parse_run(data, starts_of([len(data)]))).copy(
            0,
            topic=topic,
            queue_id=queue,
            properties=names.encode_again(kept),
            sys_flag=record.sys_flag & ~SYS_TRANSACTION,
            reconsume_times=0,
            prepared_offset=0,
        )
        run = Run.of(topic, queue, [copy])
        known = self._topics.find(topic)
        if known is not None and known.attributes.get(TYPE_ATTRIBUTE) == LITE:
            run.mark_lite()
        appended = self._appends.append_one(run)
        letter.topic, letter.queue = topic, queue
        letter.new_queue_offset = appended.first_queue_offset
        letter.log_offset = int(appended.log_offsets[0])
        return appended.end_offset

    def _target(self, group: str, topic: str) -> tuple[str, int]:
        """Return the next queue of TOPIC in turn. The topic must exist and accept messages."""
        if not topic:
            raise errors.InvalidArgument(
                "the dead letter does not contain its original topic: choose the topic to send it to",
                field="topic",
            )
        derived = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        if derived and topic != retry_topic(group):
            raise errors.InvalidName(
                f"topic {topic!r} does not accept dead letters of group {group!r}: choose an ordinary topic,"
                f" or {retry_topic(group)!r}",
                field="topic",
                value=topic,
            )
        queue = self._turn % max(1, self._topics.get(topic).write_queues)
        self._turn += 1
        return self._topics.for_writing(topic, queue).name, queue

    async def purge(
        self, request: pb.PurgeDeadLettersRequest, call: Call
    ) -> pb.PurgeDeadLettersReply:
        """Purge the dead letters below an offset, or all. The reply is sent once a power cut cannot undo it.

        The log is synced first: otherwise a power cut could remove the letters, and the mark would hide later ones.
        """
        check_natural("below_offset", request.below_offset)
        topic, first, end = self._bounds(request.group)
        if request.below_offset > end:
            raise errors.InvalidArgument(
                f"below_offset is {request.below_offset}: the dead letters of group {request.group!r} end at {end}",
                field="below_offset",
                limit=end,
                value=request.below_offset,
            )
        mark = max(first, request.below_offset or end)
        if mark > first:
            await synced(self._store, self._store.max_log_offset)
            known = self._offsets.committed(topic, DEAD_LETTERS_GROUP, 0) or 0
            text = self._resent(topic).text_from(mark)
            self._offsets.commit(topic, DEAD_LETTERS_GROUP, 0, max(known, mark), text)
            await ended(self._offsets.when_saved)
            logger.info("dead letters purged group=%s below=%d", request.group, mark)
        return pb.PurgeDeadLettersReply(purged=mark - first, min_offset=mark)


def _chosen(request: pb.ResendDeadLettersRequest) -> list[int]:
    """Return the distinct offsets in REQUEST; raise InvalidArgument for none or too many."""
    if not 0 < len(request.queue_offsets) <= LETTERS_MAX:
        raise errors.InvalidArgument(
            f"queue_offsets: {len(request.queue_offsets)} dead letters to send again, must be 1 to {LETTERS_MAX}:"
            " use several requests",
            field="queue_offsets",
            limit=LETTERS_MAX,
            value=len(request.queue_offsets),
        )
    return list(dict.fromkeys(request.queue_offsets))
