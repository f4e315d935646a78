"""What a consumer could not handle: it comes again later in the group's retry topic, or is a dead letter.

The classic model. A consumer says which message failed, and the broker stores a copy of it: for `%RETRY%group`, on the
way through a delay, or for `%DLQ%group`. The original stays where it is; the consumer goes on behind it.

    the copy has                  which is
    RETRY_TOPIC                   the topic that the first copy was read from
    ORIGIN_MESSAGE_ID             the offset message id of the first copy
    reconsumeTimes                one more
    WAIT                          false, as Apache's copies have it
    DELAY                         its delay level; 0: it is dead
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, DLQ_REASON     of the dead alone; the reason is PocketMQ's own

    it is dead      if it was tried again as often as the group (or the consumer) allows, or the consumer wants no retry
    or waits for    the delay level that the consumer asks for; else the group's own interval (groups.py);
                    else level 3 + reconsumeTimes, at most the highest: 10 s … 2 h, and every 2 h beyond the 16th

An own interval which is that of a level takes the level; any other goes through the timer, to the millisecond. What the
timer left in the properties on the way here is gone, so that the copy is scheduled anew; a dead letter keeps all of it,
as Apache's does. Body, flags, born time and host stay.

The group must exist, and the message must lie where the consumer says; for everything else that is wrong nothing is
stored and no topic is made. Source: store-format.md §7.4.

The dead letters of a group, for its administrators: listed, sent again, put away.

Dead letters are the messages of `%DLQ%group`, queue 0, whoever wrote them. Where from and why stands in the properties
that retries.py gives them; of those that a Java broker wrote it is told from RETRY_TOPIC, ORIGIN_MESSAGE_ID and the
reconsume times.

Sending one again appends a fresh copy to its origin topic, or another: without a trace of retries, delays and death,
with no reconsume times, in the topic's queues by turns. The letter stays until it is purged. `%RETRY%group` is a topic
too: what is sent there reaches this group alone, and still says where it came from.

Purging only moves a mark: the dead letters before it are not listed or sent any more. Their bytes stay in the log, and
readers of the topic find them, until the log's retention removes the files. The mark is a committed offset, of the
group CID_RMQ_SYS_DEAD_LETTERS, in consumerOffset.json: Apache's brokers and tools know such entries, and show how many
dead letters are left. (Apache's format has no better place: where a queue begins follows from the oldest file of the
log, and both its recovery and ours work that out anew.) It is written once everything that it puts away is on the
device, so that it never hides what comes later in the place of letters that a power cut took.

Bounds: LETTERS_MAX in one question, and PAGE_BYTES of records (or one record) in one answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from ...proto import errors, properties as names
from ...proto.commit_metadata import COMMIT_METADATA_MAX
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record import SYS_INNER_BATCH, SYS_TRANSACTION, Record, decode_record
from ...proto.record_copy import RecordCopier
from ...proto.record_run import parse_run, starts_of
from ...proto.rpc import LATER, Call, Later, MethodTable, service, unary
from ...proto.run import Run
from ...proto.topics import (
    DEAD_LETTER_PREFIX,
    DEAD_LETTERS_GROUP,
    PROPERTIES_SIZE_MAX,
    RETRY_PREFIX,
    check_group,
    dead_letter_topic,
    is_system_topic,
    retry_topic,
)
from ...store.format.state_tables import GroupConfig
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..delay_rules import DelayRules, divide
from ..messages.appender import Appends, ended, synced
from ..offsets import Offsets
from ..topics_and_groups import RETRY_QUEUES_MAX, Groups, Topics, intervals_of
from .lag import check_natural

logger = logging.getLogger(__name__)

#: A longer reason is cut.
REASON_BYTES_MAX: Final = 1024
#: Apache's level of the first retry.
_FIRST_LEVEL: Final = 3
_INT_MAX: Final = (1 << 31) - 1
#: Properties that would not be true of a copy.
_UNTRUE: Final = (names.PROPERTY_CRC, names.PRODUCER_SEQUENCE)
#: What a dead letter can do without if its properties have no room.
_OF_THE_DEAD: Final = (
    names.DEAD_LETTER_REASON,
    names.DEAD_LETTER_ORIGIN_TOPIC,
    names.DEAD_LETTER_ORIGIN_MESSAGE_ID,
)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a failed message: with a REASON it is dead; else it waits for LEVEL, or, without, for WAIT_MS."""

    reason: str = ""
    level: int = 0
    wait_ms: int = 0


def fate_of(times: int, request: pb.SendBackRequest, group: GroupConfig, rules: DelayRules) -> Fate:
    """Return what becomes of a message of GROUP that was tried again TIMES times before REQUEST. Pure."""
    if request.delay_level < 0:
        return Fate(reason=_clean(request.reason) or "sent to the dead letters by the consumer")
    asked = request.HasField("retry_max_times")
    if times >= (request.retry_max_times if asked else group.retry_times_max):
        return Fate(reason=_clean(request.reason) or told_failures(times + 1))
    highest = len(rules.levels_ms)
    intervals = () if request.delay_level else intervals_of(group.retry_policy)
    if not intervals:
        level = request.delay_level or _FIRST_LEVEL + times
        return Fate(level=max(1, min(level, highest)))
    wait_ms = min(intervals[max(0, min(times, len(intervals) - 1))], rules.delay_max_ms)
    if wait_ms in rules.levels_ms:
        return Fate(level=rules.levels_ms.index(wait_ms) + 1)
    return Fate(wait_ms=wait_ms)


def told_failures(times: int) -> str:
    """Return the reason of a message that failed TIMES times, where nobody gave one."""
    return "failed once" if times == 1 else f"failed {times} times"


def _clean(reason: str) -> str:
    """Return REASON fit for a property: on one line, and not longer than REASON_BYTES_MAX."""
    line = "".join(letter if letter.isprintable() else " " for letter in reason).strip()
    return line.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").strip()


def copied_properties(origin: Record, fate: Fate, now_ms: int) -> dict[str, str]:
    """Return the properties of the copy of ORIGIN if FATE is met at NOW_MS. Pure."""
    copied = {name: value for name, value in origin.properties.items() if name not in _UNTRUE}
    copied.setdefault(names.RETRY_TOPIC, origin.topic)
    copied.setdefault(names.ORIGIN_MESSAGE_ID, origin.message_id)
    copied[names.WAIT] = "false"
    if fate.reason:
        copied[names.DELAY] = "0"
        copied[names.DEAD_LETTER_ORIGIN_TOPIC] = copied[names.RETRY_TOPIC]
        copied[names.DEAD_LETTER_ORIGIN_MESSAGE_ID] = copied[names.ORIGIN_MESSAGE_ID]
        copied[names.DEAD_LETTER_REASON] = fate.reason
        return copied
    for name in names.DELAY_NAMES:
        copied.pop(name, None)
    if fate.level:
        copied[names.DELAY] = str(fate.level)
    else:
        copied[names.TIMER_DELIVER_MS] = str(now_ms + fate.wait_ms)
    return copied


class Retries:
    """Takes failed messages back into STORE. RANDOM chooses among a group's retry queues. The event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        appends: Appends,
        rules: DelayRules,
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._appends = appends
        self._rules = rules
        self._now_ms = now_ms
        self._random = random
        #: Told group, topic, queue and offset of what was sent back.
        self.on_return: list[Callable[[str, str, int, int], None]] = []

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        handler = unary(pb.SendBackRequest, pb.SendBackReply, self._answer)
        return service("pocketmq.v1.Broker", {"SendBack": handler})

    def _answer(self, request: pb.SendBackRequest, call: Call) -> Later:
        """Answer CALL once the copy is as safe as the store's setting promises."""
        reply, end_offset = self.send_back(request)
        self._appends.reply_when_safe(call, reply, end_offset)
        return LATER

    def send_back(self, request: pb.SendBackRequest) -> tuple[pb.SendBackReply, int]:
        """Store the copy that REQUEST asks for; return the answer, and where in the log the copy ends.

        Raises InvalidName, GroupNotFound, InvalidArgument, MessageNotFound, NotWritable or Overloaded (the retry
        topic), MessageTooLarge (no room in the properties), and what the store raises.
        """
        group = self._groups.get(check_group(request.group))
        _check(request)
        data, record = self._find(request)
        fate = fate_of(record.reconsume_times, request, group, self._rules)
        now_ms = due_ms = self._now_ms()
        copy = run = self._copied(data, record, group, fate, now_ms, _times(record))
        if not fate.reason:
            (part,) = divide(copy, self._rules, now_ms, past="now")
            run = part.run
            due_ms = now_ms if part.due_ms is None else int(part.due_ms[0])
        # Only what can be stored may make a topic.
        self._topics.for_group(copy.topic, 1 if fate.reason else _queues(group))
        appended = self._appends.append_one(run)
        if fate.reason:
            self._appends.traffic.buried(
                group.name, record.properties.get(names.RETRY_TOPIC, record.topic)
            )
        self._appends.traffic.stored_again(copy, dead=bool(fate.reason))
        for tell in self.on_return:
            tell(group.name, request.topic, request.queue, request.queue_offset)
        log = logger.info if fate.reason else logger.debug
        log("message sent back group=%s topic=%s due_ms=%d", group.name, copy.topic, due_ms)
        reply = pb.SendBackReply(
            dead=bool(fate.reason),
            topic=copy.topic,
            due_ms=due_ms,
            reconsume_times=_times(record),
            log_offset=int(appended.log_offsets[0]),
        )
        return reply, appended.end_offset

    def bury(self, data: bytes, group: str, reason: str, times: int) -> Appended:
        """Append a dead letter of GROUP: a copy of the record DATA, with REASON and TIMES as its reconsume times.

        Raises GroupNotFound, InvalidRecord, NotWritable, Overloaded, MessageTooLarge, and what the store raises.
        """
        config = self._groups.get(group)
        fate = Fate(reason=_clean(reason) or told_failures(times))
        record = decode_record(data)
        copy = self._copied(data, record, config, fate, self._now_ms(), times)
        self._topics.for_group(copy.topic, 1)
        logger.info("message is dead group=%s topic=%s reason=%s", group, copy.topic, fate.reason)
        appended = self._appends.append_one(copy)
        self._appends.traffic.buried(group, record.properties.get(names.RETRY_TOPIC, record.topic))
        self._appends.traffic.stored_again(copy, dead=True)
        return appended

    def _find(self, request: pb.SendBackRequest) -> tuple[bytes, Record]:
        """Return the record that REQUEST means, and what it says."""
        topic, queue, offset = request.topic, request.queue, request.queue_offset
        place = f"{topic}/{queue}, queue offset {offset}"
        try:
            found = self._store.read_queue(topic, queue, offset, 1, 1)
        except (errors.QueueNotFound, errors.OffsetOutOfRange) as error:
            raise errors.MessageNotFound(
                f"no message to send back at {place}: {error.message}", **error.details
            ) from error
        if not len(found) or int(found.queue_offsets[0]) != offset:
            raise errors.MessageNotFound(
                f"no message to send back at {place}: none is there (any more)",
                topic=topic,
                field="queue_offset",
                value=offset,
            )
        try:
            record = decode_record(found.records)
        except errors.InvalidRecord as error:
            raise errors.CorruptRecord(
                f"the message at {place} cannot be sent back: it is damaged: {error.message}"
            ) from error
        if record.sys_flag & SYS_INNER_BATCH:
            raise errors.Unsupported(
                f"the message at {place} is a batch of several, which is not sent back as one",
                topic=topic,
            )
        if record.log_offset != request.log_offset:
            raise errors.InvalidArgument(
                f"the message at {place} has log offset {record.log_offset}, not {request.log_offset}: give both as"
                " the message says",
                field="log_offset",
                limit=record.log_offset,
                value=request.log_offset,
            )
        return found.records, record

    def _copied(
        self, data: bytes, record: Record, group: GroupConfig, fate: Fate, now_ms: int, times: int
    ) -> Run:
        """Return the copy of RECORD, which is DATA, tried TIMES times, for the queue of GROUP where FATE sends it."""
        pairs = copied_properties(record, fate, now_ms)
        properties = names.encode_again(pairs)
        topic, queue = dead_letter_topic(group.name), 0
        if not fate.reason:
            topic, queue = retry_topic(group.name), self._random.randrange(_queues(group))
        elif len(properties) > PROPERTIES_SIZE_MAX:
            kept = {name: value for name, value in pairs.items() if name not in _OF_THE_DEAD}
            properties = names.encode_again(kept)
        copier = RecordCopier(data, parse_run(data, starts_of([len(data)])))
        copy = copier.copy(
            0,
            topic=topic,
            queue_id=queue,
            properties=properties,
            reconsume_times=times,
            prepared_offset=0,
        )
        return Run.of(topic, queue, [copy])


def _queues(group: GroupConfig) -> int:
    """Return how many retry queues GROUP has; Apache takes none for "drop what failed", which is not done here.

    A store may say any number, and each would be a queue.
    """
    return min(max(1, group.retry_queues), RETRY_QUEUES_MAX)


def _times(record: Record) -> int:
    """Return the reconsume times of a copy of RECORD."""
    return min(record.reconsume_times, _INT_MAX - 1) + 1


def _check(request: pb.SendBackRequest) -> None:
    """Refuse a REQUEST for what is not the group's to send back."""
    topic = request.topic
    if topic.startswith(RETRY_PREFIX) and topic != retry_topic(request.group):
        raise errors.InvalidArgument(
            f"topic {topic!r} is another group's: group {request.group!r} sends back what it read from ordinary topics"
            f" or from {retry_topic(request.group)!r}",
            field="topic",
            value=topic,
        )
    if is_system_topic(topic):
        raise errors.InvalidArgument(
            f"topic {topic!r} is the broker's own: nothing of it is sent back",
            field="topic",
            value=topic,
        )
    if request.HasField("retry_max_times") and request.retry_max_times < 0:
        raise errors.InvalidArgument(
            f"retry_max_times is {request.retry_max_times}: must not be negative;"
            " for no retry give a delay_level below 0",
            field="retry_max_times",
            limit=0,
            value=request.retry_max_times,
        )


# ---------------------------------------------------------------- the dead letters of a group, for its administrators


#: Bytes of the text beside the mark. It names the letters that were sent again, as ranges: "3-5,9".
RANGES_SIZE_MAX: Final = COMMIT_METADATA_MAX
LETTERS_MAX: Final = 1_000
LETTERS_DEFAULT: Final = 64
PAGE_BYTES: Final = 1024 * 1024
#: Letters that are sent again in one turn of the loop: some 5 ms, more where they are large.
_TURN_LETTERS: Final = 16

#: What a fresh copy does not have: traces of the retries …
_OF_RETRIES: Final = (names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID)
#: … of its death, of delays, of a transaction, of POP consumers, and what would not be true any more.
_OF_THE_PAST: Final = frozenset(
    {
        names.DEAD_LETTER_ORIGIN_TOPIC,
        names.DEAD_LETTER_ORIGIN_MESSAGE_ID,
        names.DEAD_LETTER_REASON,
        names.WAIT,
        *names.DELAY_NAMES,
        names.TRANSACTION_PREPARED,
        names.POP_CHECK_POINT,
        names.PROPERTY_CRC,
        names.PRODUCER_SEQUENCE,
    }
)


class Resent:
    """Offsets of dead letters that were sent again, as ranges. Beyond RANGES_SIZE_MAX bytes of text the lowest go."""

    def __init__(self, text: str) -> None:
        """Read TEXT; what is no range is left out."""
        self._ranges: list[tuple[int, int]] = []
        for word in text.split(","):
            begin, _, last = word.partition("-")
            if begin.isdecimal() and (last or begin).isdecimal():
                self._ranges.append((int(begin), int(last or begin) + 1))

    def __contains__(self, offset: int) -> bool:
        return any(begin <= offset < end for begin, end in self._ranges)

    def count(self, first: int, end: int) -> int:
        """Return how many there are from FIRST up to END."""
        return sum(max(0, min(end, stop) - max(first, begin)) for begin, stop in self._ranges)

    def add(self, offsets: Iterable[int]) -> None:
        """Take in OFFSETS."""
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
    """Return what is told of the dead letter RECORD, which is DATA. Pure."""
    properties = record.properties
    origin_id = properties.get(names.DEAD_LETTER_ORIGIN_MESSAGE_ID)
    return pb.DeadLetter(
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        message_id=properties.get(names.UNIQ_KEY, ""),
        origin_topic=_origin(record),
        origin_message_id=origin_id or properties.get(names.ORIGIN_MESSAGE_ID, ""),
        reason=properties.get(names.DEAD_LETTER_REASON) or told_failures(record.reconsume_times),
        reconsume_times=record.reconsume_times,
        died_ms=record.store_timestamp_ms,
        record=data,
    )


def _origin(record: Record) -> str:
    """Return the topic that RECORD was sent to; "" if it does not say."""
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
        appends: Appends,
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

    # --- listing

    def list(self, request: pb.DeadLettersRequest, call: Call) -> pb.DeadLettersReply:
        """Answer a page of dead letters, oldest first; it may be shorter than asked for before the end.

        Raises InvalidArgument, or GroupNotFound for a group that has never been.
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
                    logger.warning("a dead letter is damaged group=%s", request.group)
        reply.next_offset = at
        return reply

    def _bounds(self, group: str) -> tuple[str, int, int]:
        """Return the topic of GROUP's dead letters, the offset of the first that counts, and that behind the last."""
        topic = dead_letter_topic(check_group(group))
        if not self._topics.has_queue(topic, 0):
            self._groups.get(group)  # Says that there is no such group.
        low, end = self._store.queue_bounds(topic, 0)
        mark = self._offsets.committed(topic, DEAD_LETTERS_GROUP, 0) or 0
        return topic, min(max(low, mark), end), end

    def _resent(self, topic: str) -> Resent:
        """Return which dead letters in TOPIC were sent again."""
        return Resent(self._offsets.metadata(topic, DEAD_LETTERS_GROUP, 0))

    # --- sending again

    async def resend(
        self, request: pb.ResendDeadLettersRequest, call: Call
    ) -> pb.ResendDeadLettersReply:
        """Send the chosen dead letters again; what became of each is answered once it is safe."""
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
        """Note that the dead letters SENT of TOPIC were sent again; it returns once that is saved."""
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
        there = f"there are those from {first} to {end - 1}" if first < end else "there is none"
        raise errors.MessageNotFound(
            f"no dead letter has the number {offset}: {there}",
            field="queue_offsets",
            limit=end,
            value=offset,
        )

    def _send(
        self, data: bytes, request: pb.ResendDeadLettersRequest, letter: pb.ResentDeadLetter
    ) -> int:
        """Append a fresh copy of DATA, say in LETTER where it is, and return where in the log it ends."""
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
        appended = self._appends.append_one(Run.of(topic, queue, [copy]))
        letter.topic, letter.queue = topic, queue
        letter.new_queue_offset = appended.first_queue_offset
        letter.log_offset = int(appended.log_offsets[0])
        return appended.end_offset

    def _target(self, group: str, topic: str) -> tuple[str, int]:
        """Return the queue of TOPIC, which must exist and take messages, whose turn it is."""
        if not topic:
            raise errors.InvalidArgument(
                "the dead letter does not say where it came from: give the topic that it is to go to",
                field="topic",
            )
        derived = topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        if derived and topic != retry_topic(group):
            raise errors.InvalidName(
                f"topic {topic!r} does not take the dead letters of group {group!r}: choose an ordinary one,"
                f" or {retry_topic(group)!r}",
                field="topic",
                value=topic,
            )
        queue = self._turn % max(1, self._topics.get(topic).write_queues)
        self._turn += 1
        return self._topics.for_writing(topic, queue).name, queue

    # --- purging

    async def purge(
        self, request: pb.PurgeDeadLettersRequest, call: Call
    ) -> pb.PurgeDeadLettersReply:
        """Put away the dead letters below an offset, or all; answered once that outlasts a power cut."""
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
    """Return the offsets that REQUEST names, each once; raise InvalidArgument for none or too many."""
    if not 0 < len(request.queue_offsets) <= LETTERS_MAX:
        raise errors.InvalidArgument(
            f"queue_offsets: {len(request.queue_offsets)} dead letters to send again, must be 1 to {LETTERS_MAX}:"
            " ask in parts",
            field="queue_offsets",
            limit=LETTERS_MAX,
            value=len(request.queue_offsets),
        )
    return list(dict.fromkeys(request.queue_offsets))
