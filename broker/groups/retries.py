"""Messages that consumers return: each gets a copy in the group's retry topic, or in its dead-letter topic.

The original stays in its queue. The copy has these properties:

    RETRY_TOPIC                   the topic that the first copy was read from
    ORIGIN_MESSAGE_ID             the offset message id of the first copy
    reconsumeTimes                one more
    WAIT                          false, as in Apache RocketMQ
    DELAY                         its delay level; 0 for a dead letter
    DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, DLQ_REASON     only for dead letters; PocketMQ adds the reason

Source: store-format.md §7.4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from ...proto import errors, properties as names
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record import SYS_INNER_BATCH, Record, decode_record
from ...proto.record_copy import RecordCopier
from ...proto.record_run import parse_run, starts_of
from ...proto.rpc import LATER, Call, Later, MethodTable, service, unary
from ...proto.run import Run
from ...proto.topics import (
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
from ..consumer_groups import RETRY_QUEUES_MAX, Groups
from ..delay_rules import DelayLimits, route
from ..events import BrokerEvents
from ..messages.appender import Appender
from ..retry_policies import retry_intervals_of
from ..topics import Topics

logger = logging.getLogger(__name__)

#: A longer reason is truncated.
REASON_BYTES_MAX: Final = 1024
#: Delay level of the first retry, as in RocketMQ.
_FIRST_LEVEL: Final = 3
_INT_MAX: Final = (1 << 31) - 1
#: Properties that would be wrong on a copy.
_UNTRUE: Final = (
    names.PROPERTY_CRC,
    names.PRODUCER_SEQUENCE,
    names.MULTI_DISPATCH,
    names.MULTI_QUEUE_OFFSET,
)
#: Properties that are left out if the properties of a dead letter exceed their limit.
_OF_THE_DEAD: Final = (
    names.DEAD_LETTER_REASON,
    names.DEAD_LETTER_ORIGIN_TOPIC,
    names.DEAD_LETTER_ORIGIN_MESSAGE_ID,
)


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a failed message. With a REASON: dead letter. Else a retry after LEVEL, or after WAIT_MS without
    one.
    """

    reason: str = ""
    level: int = 0
    wait_ms: int = 0


def fate_of(
    times: int, request: pb.SendBackRequest, group: GroupConfig, rules: DelayLimits
) -> Fate:
    """Return what happens to a message of GROUP that was retried TIMES times before REQUEST. Pure.

    It becomes a dead letter if the group, or the consumer, allows no more retries. Otherwise it waits for the delay
    level in REQUEST, else for the group's own interval, else for level 3 + TIMES, up to the highest level. An interval
    that equals a level uses the level; any other uses the timer.
    """
    if request.delay_level < 0:
        return Fate(reason=_clean(request.reason) or "sent to the dead letters by the consumer")
    asked = request.HasField("retry_max_times")
    if times >= (request.retry_max_times if asked else group.retry_times_max):
        return Fate(reason=_clean(request.reason) or failure_reason(times + 1))
    highest = len(rules.levels_ms)
    intervals = () if request.delay_level else retry_intervals_of(group.retry_policy)
    if not intervals:
        level = request.delay_level or _FIRST_LEVEL + times
        return Fate(level=max(1, min(level, highest)))
    wait_ms = min(intervals[max(0, min(times, len(intervals) - 1))], rules.delay_max_ms)
    if wait_ms in rules.levels_ms:
        return Fate(level=rules.levels_ms.index(wait_ms) + 1)
    return Fate(wait_ms=wait_ms)


def failure_reason(times: int) -> str:
    """Return the default reason of a message that failed TIMES times."""
    return "failed once" if times == 1 else f"failed {times} times"


def _clean(reason: str) -> str:
    """Return REASON as a property value: one line, up to REASON_BYTES_MAX bytes."""
    line = "".join(letter if letter.isprintable() else " " for letter in reason).strip()
    return line.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").strip()


def copied_properties(origin: Record, fate: Fate, now_ms: int) -> dict[str, str]:
    """Return the properties of the copy of ORIGIN with FATE, decided at NOW_MS. Pure."""
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
    """Stores copies of returned messages in STORE. RANDOM chooses a group's retry queue. The event loop owns it."""

    def __init__(  # noqa: PLR0913  (it uses all these parts)
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        appends: Appender,
        rules: DelayLimits,
        now_ms: Callable[[], int],
        random: Random,
        events: BrokerEvents | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._appends = appends
        self._rules = rules
        self._now_ms = now_ms
        self._random = random
        self._events = events or BrokerEvents()

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
        """Store the copy that REQUEST asks for; return the answer, and the log offset after the copy.

        Raises InvalidName, GroupNotFound, InvalidArgument, MessageNotFound, NotWritable or Overloaded (the retry
        topic), MessageTooLarge (the properties exceed their limit), and errors of the store.
        """
        group = self._groups.get(check_group(request.group))
        _check(request)
        data, record = self._find(request)
        fate = fate_of(record.reconsume_times, request, group, self._rules)
        now_ms = due_ms = self._now_ms()
        copy = run = self._copied(data, record, group, fate, now_ms, _times(record))
        if not fate.reason:
            (part,) = route(copy, self._rules, now_ms, past="now")
            run = part.run
            due_ms = now_ms if part.due_ms is None else int(part.due_ms[0])
        # Create the topic only now: the copy is known to be valid.
        self._topics.for_group(copy.topic, 1 if fate.reason else _queues(group))
        appended = self._appends.append_one(run)
        if fate.reason:
            self._appends.traffic.buried(
                group.name, record.properties.get(names.RETRY_TOPIC, record.topic)
            )
        self._appends.traffic.stored_again(copy, dead=bool(fate.reason))
        for callback in self._events.message_returned:
            callback(group.name, request.topic, request.queue, request.queue_offset)
        log = logger.info if fate.reason else logger.debug
        log("message returned group=%s topic=%s due_ms=%d", group.name, copy.topic, due_ms)
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

        Raises GroupNotFound, InvalidRecord, NotWritable, Overloaded, MessageTooLarge, and errors of the store.
        """
        config = self._groups.get(group)
        fate = Fate(reason=_clean(reason) or failure_reason(times))
        record = decode_record(data)
        copy = self._copied(data, record, config, fate, self._now_ms(), times)
        self._topics.for_group(copy.topic, 1)
        logger.info(
            "message moved to dead-letter queue group=%s topic=%s reason=%s",
            group,
            copy.topic,
            fate.reason,
        )
        appended = self._appends.append_one(copy)
        self._appends.traffic.buried(group, record.properties.get(names.RETRY_TOPIC, record.topic))
        self._appends.traffic.stored_again(copy, dead=True)
        return appended

    def _find(self, request: pb.SendBackRequest) -> tuple[bytes, Record]:
        """Return the bytes of the record in REQUEST, and the record."""
        topic, queue, offset = request.topic, request.queue, request.queue_offset
        place = f"{topic}/{queue}, queue offset {offset}"
        try:
            found = self._store.read_queue(topic, queue, offset, 1, 1)
        except (errors.QueueNotFound, errors.OffsetOutOfRange) as error:
            raise errors.MessageNotFound(
                f"no message to return at {place}: {error.message}", **error.details
            ) from error
        if not len(found) or int(found.queue_offsets[0]) != offset:
            raise errors.MessageNotFound(
                f"no message to return at {place}: it does not exist, or was deleted",
                topic=topic,
                field="queue_offset",
                value=offset,
            )
        try:
            record = decode_record(found.records)
        except errors.InvalidRecord as error:
            raise errors.CorruptRecord(
                f"the message at {place} cannot be returned: it is damaged: {error.message}"
            ) from error
        if record.sys_flag & SYS_INNER_BATCH:
            raise errors.Unsupported(
                f"the message at {place} is an inner batch, which cannot be returned",
                topic=topic,
            )
        if record.log_offset != request.log_offset:
            raise errors.InvalidArgument(
                f"the message at {place} has log offset {record.log_offset}, not {request.log_offset}: use the offsets"
                " of the message",
                field="log_offset",
                limit=record.log_offset,
                value=request.log_offset,
            )
        return found.records, record

    def _copied(
        self, data: bytes, record: Record, group: GroupConfig, fate: Fate, now_ms: int, times: int
    ) -> Run:
        """Return the copy of RECORD, which has the bytes DATA, with TIMES and FATE, in a queue of GROUP."""
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
    """Return how many retry queues GROUP has, at least 1: dropping failed messages (0 in RocketMQ) is not supported.

    A store may contain any number, and each would create a queue.
    """
    return min(max(1, group.retry_queues), RETRY_QUEUES_MAX)


def _times(record: Record) -> int:
    """Return the reconsume times of a copy of RECORD."""
    return min(record.reconsume_times, _INT_MAX - 1) + 1


def _check(request: pb.SendBackRequest) -> None:
    """Raise an error if GROUP must not return the message of REQUEST."""
    topic = request.topic
    if topic.startswith(RETRY_PREFIX) and topic != retry_topic(request.group):
        raise errors.InvalidArgument(
            f"topic {topic!r} is another group's: group {request.group!r} returns messages of ordinary topics"
            f" or of {retry_topic(request.group)!r}",
            field="topic",
            value=topic,
        )
    if is_system_topic(topic):
        raise errors.InvalidArgument(
            f"topic {topic!r} is the broker's own: its messages cannot be returned",
            field="topic",
            value=topic,
        )
    if request.HasField("retry_max_times") and request.retry_max_times < 0:
        raise errors.InvalidArgument(
            f"retry_max_times is {request.retry_max_times}: must not be negative;"
            " for no retry use a negative delay_level",
            field="retry_max_times",
            limit=0,
            value=request.retry_max_times,
        )
