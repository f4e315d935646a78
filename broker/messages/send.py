"""The path of a send: check the batch, append it, and answer when it is as durable as requested.

`Sends.send` accepts a batch, `_admitted` checks it, and `_append_arrived` appends all batches of one turn of the event
loop, which share one sync.

A batch is stored as a whole or not at all. One with delayed or half messages is divided by destination. A numbered
batch (producers/sequences.py) is stored once, however often it is sent; a duplicate gets the original offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final

import numpy as np

from ...proto import errors
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.lite_topics import LITE
from ...proto.properties import PRODUCER_SEQUENCE
from ...proto.record_run import Longs
from ...proto.rpc.turn_loop import at_turn_end
from ...proto.topics import TIMER_TOPIC
from ...store.flush import notify
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..delay_rules import DelayLimits, Part, timer_out_ms
from ..producers.producers import Places, Producers
from ..producers.run_numbers import RunNumbers, rest_of
from ..producers.sequences import Numbered
from ..replication.mastership import Mastership
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics import TYPE_ATTRIBUTE, Topics
from .admission import Prepare, ValidatedBatch, check_body_sizes, split_by_destination, validate
from .appender import Appender
from .message_types import check_type, kinds_of

logger = logging.getLogger(__name__)

#: Larger batches are not joined: it would cost as much as it saves.
_SMALL_RUN_BYTES: Final = 64 * 1024
_DURABILITIES: Final = (pb.DURABILITY_UNSPECIFIED, pb.MEMORY, pb.DISK, pb.REPLICAS)
#: Limit of topics with counters; beyond it, the one that was first used is forgotten.
_TOPICS_COUNTED_MAX: Final = 10_000

#: Called with the reply to one batch, exactly once.
Done = Callable[[pb.ProduceReply], None]
#: Called exactly once: where a batch is stored and how safely, or with the error.
Outcome = Callable[[pb.ProduceReply, errors.PocketMQError | None], None]


def answering(done: Done) -> Outcome:
    """Return a callback that calls DONE; it puts errors into the reply."""

    def answer(reply: pb.ProduceReply, error: errors.PocketMQError | None) -> None:
        if error is not None:
            reply.error.CopyFrom(to_wire(error))
        done(reply)

    return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """What sends need to know about delayed messages and transactions.

    Attributes:
        now_ms: Returns the time of messages.
        slot_count: Returns the number of messages in the slot of the timer wheel that begins at a time (TIMER_OUT_MS).
        prepare: Converts transactional messages to half messages.
        check_room: Raises Overloaded if so many further half messages would exceed the limit.
    """

    now_ms: Callable[[], int]
    slot_count: Callable[[int], int]
    prepare: Prepare
    check_room: Callable[[int], None]


@dataclass(slots=True)
class TopicSends:
    """Counters of one topic: batches that were answered, stored or failed; messages, bytes, time of the latter."""

    stored: int = 0
    messages: int = 0
    bytes: int = 0
    failed: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class SendCounts:
    """Counters since the start: batches that were answered, stored or failed; messages of the stored ones; by topic."""

    stored: int = 0
    messages: int = 0
    failed: int = 0
    by_topic: dict[str, TopicSends] = field(default_factory=dict)

    def answered(self, send: Sending, *, stored: bool) -> None:
        """Count SEND, which was answered."""
        topic = self.by_topic.get(send.topic)
        if topic is None:
            if len(self.by_topic) >= _TOPICS_COUNTED_MAX:
                del self.by_topic[next(iter(self.by_topic))]
            topic = self.by_topic[send.topic] = TopicSends()
        if not stored:
            self.failed += 1
            topic.failed += 1
            return
        count = send.count
        self.stored += 1
        self.messages += count
        topic.stored += 1
        topic.messages += count
        topic.bytes += send.size
        topic.last_ms = send.reply.store_timestamp_ms

    def refused(self, topic: str) -> None:
        """Count a batch for TOPIC that was refused; the topic may not exist."""
        self.failed += 1
        if topic in self.by_topic:
            self.by_topic[topic].failed += 1

    def forget(self, topic: str) -> None:
        """Forget TOPIC, which was deleted."""
        self.by_topic.pop(topic, None)


class Sending:
    """One send. DONE is None once it was answered.

    Attributes:
        admitted: What of it is to be stored.
        numbered: Its sequence numbers; None: it is not idempotent.
        durability: MEMORY, DISK or REPLICAS.
        end_offset: The log offset up to which it needs the disk, once that is known.
    """

    __slots__ = (
        "_now_ms",
        "_sent",
        "admitted",
        "done",
        "durability",
        "end_offset",
        "numbered",
        "parts",
        "reply",
        "waits",
    )

    def __init__(
        self,
        run_id: int,
        admitted: ValidatedBatch,
        parts: list[Part],
        now_ms: int,
        done: Outcome,
        numbered: Numbered | None,
        durability: pb.Durability,
    ) -> None:
        self.parts = parts
        self.reply = pb.ProduceReply(run_id=run_id)
        self.done: Outcome | None = done
        self.numbered = numbered
        self.durability = durability
        #: Whether it waits for a disk, here or on replicas.
        self.waits = durability != pb.MEMORY
        self.end_offset = 0
        self.admitted = admitted
        self._sent = admitted.run
        self._now_ms = now_ms

    @property
    def topic(self) -> str:
        """The topic to which it was sent."""
        return self._sent.topic

    @property
    def size(self) -> int:
        """The size of its records in bytes, as they were sent."""
        return len(self._sent.records)

    @property
    def count(self) -> int:
        """The number of its messages."""
        return len(self._sent)

    @property
    def is_repeated(self) -> bool:
        """Whether a part of it was stored before."""
        return self.numbered is not None and self.numbered.rows is not None

    def note(self, appended: Sequence[Appended], now_ms: int, stored: Places | None = None) -> None:
        """Set the places of the records in the reply: some were STORED before, the others were APPENDED now, in parts.

        NOW_MS is the time of messages.
        """
        if stored is None and self.parts[0].run is self._sent:
            self._note_whole(appended[0])
        else:
            self._note_rows(appended, now_ms, stored or _nowhere(len(self._sent)))

    def _note_whole(self, appended: Appended) -> None:
        """Set the place of a complete batch; the client computes the places of its records, which are contiguous."""
        offsets = appended.log_offsets
        reply = self.reply
        reply.store_timestamp_ms = appended.store_timestamp_ms
        reply.first_queue_offset = appended.first_queue_offset
        reply.first_log_offset = int(offsets[0])
        self.end_offset = appended.end_offset
        end_to_end = appended.end_offset - reply.first_log_offset == self.size
        if not (end_to_end and self.admitted.as_sent):
            reply.log_offsets.extend(offsets.tolist())

    def _note_rows(self, appended: Sequence[Appended], now_ms: int, places: Places) -> None:
        """Set place and due time of each record. PLACES is completed with the parts that were APPENDED."""
        numbered = self.numbered
        for part, one in zip(self.parts, appended, strict=True):
            rows = part.rows
            if numbered is not None and numbered.rows is not None:
                rows = numbered.rows[rows]
            places.queue_offsets[rows] = one.first_queue_offset + np.arange(len(one))
            places.log_offsets[rows] = one.log_offsets
            if part.due_ms is not None:
                # A delay level counts from the store's time, unless the clock was set back since.
                stored_ms = min(one.store_timestamp_ms, now_ms)
                later_ms = stored_ms - self._now_ms if part.by_level else 0
                places.due_ms[rows] = part.due_ms + later_ms
        reply = self.reply
        reply.store_timestamp_ms = max(
            [places.store_ms, *(it.store_timestamp_ms for it in appended)]
        )
        reply.repeated_count = 0 if numbered is None else numbered.repeated_count
        reply.first_queue_offset = int(places.queue_offsets[0])
        reply.first_log_offset = int(places.log_offsets[0])
        reply.log_offsets.extend(places.log_offsets.tolist())
        if (np.diff(places.queue_offsets) != 1).any():
            reply.queue_offsets.extend(places.queue_offsets.tolist())
        if places.due_ms.any():
            reply.due_ms.extend(places.due_ms.tolist())
        self.end_offset = max([places.end_offset, *(it.end_offset for it in appended)])

    def answer(self, error: errors.PocketMQError | None, replicas: int) -> None:
        """Answer the producer, once: the batch is as safe as requested, on so many REPLICAS; or ERROR."""
        done, self.done = self.done, None
        assert done is not None, "it must not be answered twice"
        reply = self.reply
        reply.replicas = replicas
        if error is None:
            reply.durability = self.durability
        notify(done, reply, error)


def _nowhere(count: int) -> Places:
    """Return the places of COUNT records of which none is stored."""
    zeros: Longs = np.zeros(count, np.int64)
    return Places(zeros, zeros.copy(), zeros.copy(), 0, 0)


class Sends:
    """Accepts batches, stores them through APPENDS, and answers them.

    MEMORY is answered after the append: it survives a kill of the process, not a power cut. DISK is answered after
    the fsync. REPLICAS is answered when all in-sync replicas have it, and at least as many as the topic needs.

    Limits: `flush_waiting_max` sends wait for an fsync, and `delay_slot_messages_max` messages are due in one slot of
    the timer wheel. A batch beyond that is refused with Overloaded. Messages that are not in the wheel yet do not
    count. TIMERS run on the machine's clock, not the virtual one.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        store: MessageStore,
        timers: Timers,
        appends: Appender,
        waits: Waits,
        producers: Producers,
    ) -> None:
        self._config = config
        self._topics = topics
        self._store = store
        self._timers = timers
        self._appends = appends
        self._waits = waits
        self._producers = producers
        self._rules = DelayLimits(
            store.config.delay_levels_ms, store.config.timer_precision_ms, config.delay_max_ms
        )
        self._body_max = store.config.message_size_max_bytes
        self._mastership = appends.mastership
        self._default = _default_of(store, self._mastership)
        #: Sends of this turn of the event loop.
        self._arrived: list[Sending] = []
        self._waiting = 0
        #: In a replica set: sends that wait for a disk. The fence fails them.
        self._unanswered: dict[Sending, None] = {}
        self.counts = SendCounts()
        #: Set while the broker stops: all further sends fail with it.
        self._refusal: errors.PocketMQError | None = None

    @property
    def waiting(self) -> int:
        """The number of sends that wait for a disk."""
        return self._waiting

    def send(self, run: pb.ProduceRun, done: Done) -> None:
        """Store RUN. DONE is called at the end of the turn, or when it is on disk; also with an error."""
        try:
            send = self._admitted(run, answering(done))
        except errors.PocketMQError as error:
            logger.debug(
                "send refused topic=%s queue=%d reason=%s", run.topic, run.queue, error.message
            )
            self.counts.refused(run.topic)
            done(pb.ProduceReply(run_id=run.run_id, error=to_wire(error)))
            return
        self._enter(send)

    def take(self, runs: Sequence[tuple[ValidatedBatch, Outcome]]) -> None:
        """Store RUNS, whose queues may be written, as safely as the store's setting promises.

        Each callback is called at the end of the turn, or when the batch is on disk. A delivery time in the past means
        delivery now. Raises refusals before anything is stored.
        """
        durability = self._default
        now_ms = self._waits.now_ms()
        sends = []
        for admitted, done in runs:
            self._check_open(durability, admitted.run.topic)
            check_body_sizes(admitted.run, self._body_max)
            parts = split_by_destination(
                admitted, self._rules, now_ms, self._waits.prepare, past="now"
            )
            if not admitted.plain:
                self._check_waiting(admitted, parts)
            if not admitted.normal:
                self._mark_lite(admitted, parts)
            sends.append(Sending(0, admitted, parts, now_ms, done, None, durability))
        for send in sends:
            self._enter(send)

    def _enter(self, send: Sending) -> None:
        """Add SEND to the batches that are appended at the end of this turn of the event loop."""
        self._waiting += send.waits
        if not self._arrived:
            at_turn_end(self._append_arrived)
        self._arrived.append(send)

    def _check_open(self, durability: pb.Durability, topic: str) -> None:
        if self._refusal is not None:
            raise self._refusal
        if durability != pb.MEMORY:
            self._check_flushes()
        if self._mastership is not None:
            self._mastership.check_open()
            if durability == pb.REPLICAS:
                self._mastership.check_acks(self._topics.min_in_sync(topic))

    def _admitted(self, run: pb.ProduceRun, done: Outcome) -> Sending:
        durability = self._durability(run)
        self._check_open(durability, run.topic)
        records = run.records  # Each access makes a copy.
        self._check_size(len(records))
        self._topics.check_sendable(run.topic)
        admitted = validate(records, run.sizes, run.topic, run.queue)
        check_body_sizes(admitted.run, self._body_max)
        topic = self._topics.find(run.topic)
        if topic is not None and self._config.topic_message_type_check:
            check_type(admitted, topic.attributes.get(TYPE_ATTRIBUTE, ""))
        if run.producer_id:
            return self._numbered(run, admitted, done, durability)
        return self._sending(run, admitted, done, None, durability)

    def _sending(
        self,
        run: pb.ProduceRun,
        admitted: ValidatedBatch,
        done: Outcome,
        numbered: Numbered | None,
        durability: pb.Durability,
    ) -> Sending:
        """Return the send of the ADMITTED messages of RUN."""
        now_ms = self._waits.now_ms()
        parts = split_by_destination(admitted, self._rules, now_ms, self._waits.prepare)
        if not admitted.plain:
            self._check_waiting(admitted, parts)
        # Only now, because a valid batch may create the topic.
        self._topics.for_writing(run.topic, run.queue)
        if not admitted.normal:
            self._mark_lite(admitted, parts)
        return Sending(run.run_id, admitted, parts, now_ms, done, numbered, durability)

    def _mark_lite(self, admitted: ValidatedBatch, parts: list[Part]) -> None:
        """Let the store number the messages of lite topics."""
        topic = self._topics.find(admitted.run.topic)
        if topic is not None and topic.attributes.get(TYPE_ATTRIBUTE) == LITE:
            for part in parts:
                if part.run.topic == topic.name:
                    part.run.mark_lite()

    def _numbered(
        self, run: pb.ProduceRun, admitted: ValidatedBatch, done: Outcome, durability: pb.Durability
    ) -> Sending:
        """Return the send of RUN, without the records that are stored already."""
        numbers = RunNumbers.of(run)
        if not self._producers.follows(numbers, admitted.run):
            # It refers to other batches of this turn: append those first.
            self._append_arrived()
        numbered, each = self._producers.judge(numbers, admitted.run)
        if numbered.is_repeat:
            return Sending(run.run_id, admitted, [], 0, done, numbered, durability)
        if numbered.rows is not None:
            rest = rest_of(numbered.numbers, admitted.run, numbered.rows)
            sizes = [len(record) for record in rest]
            admitted, each = validate(b"".join(rest), sizes, run.topic, run.queue), True
        sending = self._sending(run, admitted, done, numbered, durability)
        if not each and sending.parts[0].run is not admitted.run:
            raise errors.InvalidArgument(
                f"the property {PRODUCER_SEQUENCE} of the first record is for all records, but some of them are delayed"
                " or in a transaction: add it to each record, with count 1",
                field=PRODUCER_SEQUENCE,
            )
        self._producers.reserve(numbered)
        return sending

    def _durability(self, run: pb.ProduceRun) -> pb.Durability:
        """Return the durability that RUN asks for, or the broker's default."""
        asked = int(run.durability)
        if asked == pb.REPLICAS and self._mastership is None:
            raise errors.Unsupported(
                'acks="replicas" needs a replica set, and this broker has no replicas: use acks="disk"',
                field="durability",
                value=asked,
            )
        if asked not in _DURABILITIES:
            raise errors.InvalidArgument(
                f"durability is {asked}: use MEMORY (1), DISK (2), REPLICAS (3), or none (0)",
                field="durability",
                limit=pb.REPLICAS,
                value=asked,
            )
        return run.durability or self._default

    def _check_flushes(self) -> None:
        limit = self._config.flush_waiting_max
        if self._waiting >= limit:
            raise errors.Overloaded(
                f"{self._waiting} sends wait for a flush to disk, the limit is {limit} (broker.flush_waiting_max):"
                " send fewer at a time",
                field="durability",
                limit=limit,
                value=self._waiting,
            )

    def _check_waiting(self, admitted: ValidatedBatch, parts: list[Part]) -> None:
        """Raise Overloaded if too many messages would wait."""
        if admitted.halves is not None:
            self._waits.check_room(int(np.count_nonzero(admitted.halves)))
        limit = self._config.delay_slot_messages_max
        for part in parts:
            if part.run.topic == TIMER_TOPIC and part.due_ms is not None:
                out_ms = timer_out_ms(part.due_ms, self._rules.precision_ms)
                slots, counts = np.unique(out_ms, return_counts=True)
                for slot_ms, count in zip(slots.tolist(), counts.tolist(), strict=True):
                    there = self._waits.slot_count(slot_ms)
                    if there + count > limit:
                        raise errors.Overloaded(
                            f"{there} messages are due within {self._rules.precision_ms} ms from {slot_ms}, the limit"
                            f" is {limit} (broker.delay_slot_messages_max): choose another time for {count} more",
                            field="delay",
                            limit=limit,
                            value=there + count,
                        )

    def _check_size(self, size: int) -> None:
        limit = self._config.batch_max_bytes
        if size > limit:
            raise errors.MessageTooLarge(
                f"the batch has {size} bytes, the limit is {limit} (broker.batch_max_bytes): send smaller batches",
                field="records",
                limit=limit,
                value=size,
            )

    def _append_arrived(self) -> None:
        """Append the sends of this turn of the event loop; answer them now, or when they are as safe as requested.

        The next steps: `_append_sends`, `Appender.put`, `MessageStore.append_many`, `LogWriter.append`.
        """
        arrived, self._arrived = self._arrived, []
        results: list[list[Appended | errors.PocketMQError]] = []
        try:
            for group in self._groups(arrived):
                numbered = _any_numbered(group)
                results += (self._append_numbered if numbered else self._append_sends)(group)
        except (
            Exception
        ) as bug:  # The outermost call of this work: each producer must get an answer.
            self._answer_all(arrived, _internal(bug))
            return
        finally:
            self._producers.sequences.end_turn()
        waiting: dict[int, list[Sending]] = {}
        for send, result in zip(arrived, results, strict=True):
            error = self._noted(send, result)
            if error is None and send.waits:
                waiting.setdefault(send.durability, []).append(send)
            else:
                self._answer(send, error)
        for durability, sends in waiting.items():
            if self._mastership is not None:
                self._unanswered |= dict.fromkeys(sends)
            if durability == pb.REPLICAS:
                self._replicate(sends)
            else:
                self._sync(sends)
        self._appends.notify(
            (part.run.topic, part.run.queue) for send in arrived for part in send.parts
        )

    def _noted(
        self, send: Sending, outcomes: list[Appended | errors.PocketMQError]
    ) -> errors.PocketMQError | None:
        """Set the places of the records in the reply to SEND; return the error if they are not stored."""
        stored = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
        if len(stored) < len(outcomes):
            return next(error for error in outcomes if isinstance(error, errors.PocketMQError))
        if send.numbered is None or send.numbered.rows is None:
            send.note(stored, self._waits.now_ms())
            return None
        try:
            places = self._producers.places(send.numbered)
            send.note(stored, self._waits.now_ms(), places)
        except errors.PocketMQError as error:
            return error
        except Exception as bug:  # The producer must get an answer.
            return _internal(bug)
        return None

    def _groups(self, sends: list[Sending]) -> Iterator[list[Sending]]:
        """Divide SENDS, in order, into groups that are appended together: small batches in one group, large ones alone.

        A group of several with sequence numbers must fit into the log file: it is appended completely or not at all.
        """
        any_numbered = _any_numbered(sends)
        for small, group in groupby(sends, _is_small):
            members = list(group)
            if small and not (any_numbered and self._exceed_file(members)):
                yield members
            else:
                for send in members:
                    yield [send]

    def _exceed_file(self, sends: list[Sending]) -> bool:
        """Return whether SENDS do not fit into the rest of the log file."""
        size = sum([len(part.run.records) for send in sends for part in send.parts])
        return size > self._store.log.room()

    def _append_sends(self, sends: list[Sending]) -> list[list[Appended | errors.PocketMQError]]:
        """Append SENDS, each completely or not at all; return the results of the parts of each."""
        runs = [part.run for send in sends for part in send.parts]
        if len(runs) > len(sends) > 1 and self._exceed_file(sends):
            return [result for send in sends for result in self._append_sends([send])]
        together = len(sends) == 1 and len(runs) > 1
        try:
            results = self._appends.put(runs, together=together)
        except (
            Exception
        ) as bug:  # The outermost call of this work: each producer must get an answer.
            results = [_internal(bug)] * len(runs)
        rest = iter(results)
        return [list(islice(rest, len(send.parts))) for send in sends]

    def _append_numbered(self, sends: list[Sending]) -> list[list[Appended | errors.PocketMQError]]:
        """Append SENDS, some with sequence numbers; batches that follow a failed one of their sequence are not
        appended.
        """
        begin = self._store.max_log_offset
        refusals = [
            None if send.numbered is None else self._producers.sequences.refusal(send.numbered)
            for send in sends
        ]
        accepted = [send for send, error in zip(sends, refusals, strict=True) if error is None]
        done = iter(self._append_sends(accepted))
        results: list[list[Appended | errors.PocketMQError]] = [
            next(done) if error is None else [error] for error in refusals
        ]
        self._producers.note(
            [
                (send.numbered, send.parts, result)
                for send, result in zip(sends, results, strict=True)
                if send.numbered is not None and send.parts
            ],
            begin,
        )
        return results

    def _sync(self, sends: list[Sending]) -> None:
        """Answer SENDS once all of them are on disk, or after the timeout."""

        def synced(error: errors.StoreError | None) -> None:
            self._timers.cancel(timer)
            self._answer_all(sends, error)

        timer = self._timer(sends, "stored in memory, but not flushed to disk")
        self._store.request_sync(_end_of(sends), synced)

    def _replicate(self, sends: list[Sending]) -> None:
        """Answer SENDS once all replicas in sync have them and their topics, or after the timeout."""
        mastership = self._mastership
        assert mastership is not None, "refused before without replicas"

        def acknowledged(replicas: int, error: errors.PocketMQError | None) -> None:
            self._timers.cancel(timer)
            for send in sends:
                self._answer(send, error or self._too_few(send, replicas), replicas)

        def topics_safe(error: errors.PocketMQError | None) -> None:
            if error is None:
                mastership.when_acknowledged(_end_of(sends), acknowledged)
            else:
                acknowledged(0, error)

        timer = self._timer(sends, "stored here, but not on all replicas in sync")
        self._topics.table.when_safe(topics_safe)

    def _too_few(self, send: Sending, there: int) -> errors.PocketMQError | None:
        """Return the error of SEND if its topic needs more replicas than the THERE that are in sync and have it."""
        needed = self._topics.min_in_sync(send.topic)
        if there >= needed:
            return None
        return errors.NotEnoughReplicasAfterAppend(
            f"stored on {there} replicas, but topic {send.topic!r} requires {needed} (min_in_sync): replicas have left"
            " the set meanwhile, send it again",
            in_sync=there,
            limit=needed,
        )

    def _timer(self, sends: list[Sending], where: str) -> Timer:
        """Return the timer that answers SENDS after the timeout. WHERE describes how far they are stored."""
        timeout_ms = self._store.config.flush_timeout_ms
        late = errors.FlushTimeout(
            f"{where} within {timeout_ms} ms (store.flush_timeout_ms): it may still complete",
            limit=timeout_ms,
        )
        return self._timers.after(timeout_ms, lambda: self._answer_all(sends, late))

    def refuse(self, error: errors.PocketMQError) -> None:
        """Refuse all further sends with ERROR."""
        self._refusal = error

    def fence(self, error: errors.PocketMQError) -> None:
        """Refuse further sends with ERROR, and fail the waiting ones. The appender is fenced too, and stores none of
        them.
        """
        self._refusal = error
        self._append_arrived()
        self._answer_all(list(self._unanswered), error)

    def _answer_all(self, sends: list[Sending], error: errors.PocketMQError | None) -> None:
        for send in sends:
            self._answer(send, error)

    def _answer(self, send: Sending, error: errors.PocketMQError | None, replicas: int = 0) -> None:
        """Answer SEND, which REPLICAS have, unless it was answered before."""
        if send.done is None:
            return
        self._waiting -= send.waits
        if self._mastership is not None:
            self._unanswered.pop(send, None)
            error = error or _fenced(self._mastership)
        if error is None and send.parts:
            admitted = send.admitted
            kinds = None if admitted.normal else kinds_of(admitted)
            self._appends.traffic.stored(admitted.run, kinds)
        self.counts.answered(send, stored=error is None)
        send.answer(error, replicas)


def _default_of(store: MessageStore, mastership: Mastership | None) -> pb.Durability:
    """Return the durability of sends that do not ask for one."""
    if mastership is not None:
        return pb.REPLICAS
    return pb.DISK if store.config.flush == "sync" else pb.MEMORY


def _end_of(sends: list[Sending]) -> int:
    return max(send.end_offset for send in sends)


def _fenced(mastership: Mastership) -> errors.PocketMQError | None:
    """Return why this turn of the event loop must not confirm sends; None: it may."""
    try:
        mastership.check_master()
    except errors.PocketMQError as error:
        return error
    return None


def _internal(bug: Exception) -> errors.PocketMQError:
    """Return the error for the producer after a bug or lack of memory in the store, which is logged."""
    if isinstance(bug, errors.PocketMQError):
        return bug
    logger.error("append failed", exc_info=bug)
    return errors.PocketMQError("internal error in the store")


def _any_numbered(sends: list[Sending]) -> bool:
    return any([send.numbered is not None for send in sends])


def _is_small(send: Sending) -> bool:
    return send.size <= _SMALL_RUN_BYTES
