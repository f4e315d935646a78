"""The path of a send: check the batch, append it, and answer when it is as durable as was asked for.

`Sends.send` accepts a batch, `_admitted` checks it, and `_append_arrived` appends all batches of one turn of the event
loop, which share one sync.

A batch is stored as a whole or not at all. One with delayed or half messages is divided by destination. A numbered
batch (producers/sequences.py) is stored once, however often it is sent; a duplicate gets the original offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final

import numpy as np

from ...proto import errors
from ...proto.errors_wire import to_wire
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import PRODUCER_SEQUENCE
from ...proto.record_run import Longs
from ...proto.topics import TIMER_TOPIC
from ...store.flush import tell
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..delay_rules import DelayRules, Part, timer_out_ms
from ..producers.producers import Places, Producers
from ..producers.run_numbers import RunNumbers, rest_of
from ..producers.sequences import Numbered
from ..replication.mastership import Mastership
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics import TYPE_ATTRIBUTE, Topics
from .admission import Admitted, Prepare, admit, check_body_sizes, ways
from .appender import Appends
from .message_types import check_type, kinds_of

logger = logging.getLogger(__name__)

#: Joining larger runs costs as much as it saves.
_SMALL_RUN_BYTES: Final = 64 * 1024
_DURABILITIES: Final = (pb.DURABILITY_UNSPECIFIED, pb.MEMORY, pb.DISK, pb.REPLICAS)
#: Topics that are counted; beyond it the one that was first sent to is forgotten.
_TOPICS_COUNTED_MAX: Final = 10_000

#: Told of the answer to one run, exactly once.
Done = Callable[[pb.ProduceReply], None]
#: Told, exactly once, where one run is stored and how safely, or why it is not, or not as safely as was asked for.
Outcome = Callable[[pb.ProduceReply, errors.PocketMQError | None], None]


def answering(done: Done) -> Outcome:
    """Return what tells DONE of an outcome, errors as part of the answer."""

    def answer(reply: pb.ProduceReply, error: errors.PocketMQError | None) -> None:
        if error is not None:
            reply.error.CopyFrom(to_wire(error))
        done(reply)

    return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """What sends need of those who keep what is not delivered at once.

    now_ms: the messages' time;  slot_count: how many messages wait in the slot of the timer wheel that begins at an
    instant (TIMER_OUT_MS);  prepare: makes half messages of transactional ones;  check_room: raises Overloaded if there
    is no room for so many half messages more.
    """

    now_ms: Callable[[], int]
    slot_count: Callable[[int], int]
    prepare: Prepare
    check_room: Callable[[int], None]


@dataclass(slots=True)
class TopicSends:
    """What was sent to one topic: runs that were answered, stored or not; of the former messages, bytes, the last."""

    stored: int = 0
    messages: int = 0
    bytes: int = 0
    failed: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class SendCounts:
    """Numbers that only grow: runs that were answered, stored or not, and the messages of the former; by topic, too."""

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
        """Count a run that was refused before it was one of TOPIC, which there may not be."""
        self.failed += 1
        if topic in self.by_topic:
            self.by_topic[topic].failed += 1

    def forget(self, topic: str) -> None:
        """Forget TOPIC, which was deleted."""
        self.by_topic.pop(topic, None)


class Sending:
    """One send. DONE is None once it was answered.

    admitted: what of it is to be stored;  numbered: its numbers, None for a send that is not idempotent;
    durability: MEMORY, DISK or REPLICAS;  end_offset: what it needs on the device lies in the log before, once that is
    known.
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
        admitted: Admitted,
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
        #: For a device, here or elsewhere.
        self.waits = durability != pb.MEMORY
        self.end_offset = 0
        self.admitted = admitted
        self._sent = admitted.run
        self._now_ms = now_ms

    @property
    def topic(self) -> str:
        """Return where it was sent to."""
        return self._sent.topic

    @property
    def size(self) -> int:
        """Return the bytes of its records, as they were sent."""
        return len(self._sent.records)

    @property
    def count(self) -> int:
        """Return how many messages it has."""
        return len(self._sent)

    @property
    def is_repeated(self) -> bool:
        """Is some of it stored already?"""
        return self.numbered is not None and self.numbered.rows is not None

    def note(self, appended: Sequence[Appended], now_ms: int, stored: Places | None = None) -> None:
        """Say in the answer where the records are: some were STORED before, the others APPENDED now, in parts.

        NOW_MS is the messages' time.
        """
        if stored is None and self.parts[0].run is self._sent:
            self._note_whole(appended[0])
        else:
            self._note_rows(appended, now_ms, stored or _nowhere(len(self._sent)))

    def _note_whole(self, appended: Appended) -> None:
        """Say where a run is; the sender works out the places of records that lie end to end."""
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
        """Say where each record is, and when it is due: PLACES gets what the parts that were APPENDED are of."""
        numbered = self.numbered
        for part, one in zip(self.parts, appended, strict=True):
            rows = part.rows
            if numbered is not None and numbered.rows is not None:
                rows = numbered.rows[rows]
            places.queue_offsets[rows] = one.first_queue_offset + np.arange(len(one))
            places.log_offsets[rows] = one.log_offsets
            if part.due_ms is not None:
                # A level counts from the time that the store gave, unless the clock was set back behind that.
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
        """Tell who sent it, once: it is stored as safely as was asked for, or ERROR; so many REPLICAS have it."""
        done, self.done = self.done, None
        assert done is not None, "it was not answered before"
        reply = self.reply
        reply.replicas = replicas
        if error is None:
            reply.durability = self.durability
        tell(done, reply, error)


def _nowhere(count: int) -> Places:
    """Return the places of COUNT records before any of them is stored."""
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
        appends: Appends,
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
        self._rules = DelayRules(
            store.config.delay_levels_ms, store.config.timer_precision_ms, config.delay_max_ms
        )
        self._body_max = store.config.message_size_max_bytes
        self._mastership = appends.mastership
        self._default = _default_of(store, self._mastership)
        #: What this turn of the loop has brought so far.
        self._arrived: list[Sending] = []
        self._waiting = 0
        #: With replicas: who waits for a device; the fence fails them.
        self._unanswered: dict[Sending, None] = {}
        self.counts = SendCounts()
        #: Set while the broker stops: every further send is refused with it.
        self._refusal: errors.PocketMQError | None = None

    @property
    def waiting(self) -> int:
        """Return how many sends wait for a device."""
        return self._waiting

    def send(self, run: pb.ProduceRun, done: Done) -> None:
        """Store RUN, and tell DONE at the end of the turn, or when the device has it; a refusal is an answer too."""
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

    def take(self, runs: Sequence[tuple[Admitted, Outcome]]) -> None:
        """Store RUNS, each for a queue that may be written, as safely as the store's setting promises.

        Each outcome is told at the end of the turn, or when the device has it. What is to be delivered at an instant
        that has passed is delivered now. Raises what is refused, before anything is stored.
        """
        durability = self._default
        now_ms = self._waits.now_ms()
        sends = []
        for admitted, done in runs:
            self._check_open(durability, admitted.run.topic)
            check_body_sizes(admitted.run, self._body_max)
            parts = ways(admitted, self._rules, now_ms, self._waits.prepare, past="now")
            if not admitted.plain:
                self._check_waiting(admitted, parts)
            sends.append(Sending(0, admitted, parts, now_ms, done, None, durability))
        for send in sends:
            self._enter(send)

    def _enter(self, send: Sending) -> None:
        """Store SEND with all that comes in this turn of the loop."""
        self._waiting += send.waits
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._append_arrived)
        self._arrived.append(send)

    # --- checks

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
        records = run.records  # Every look at it makes a copy.
        self._check_size(len(records))
        self._topics.check_sendable(run.topic)
        admitted = admit(records, run.sizes, run.topic, run.queue)
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
        admitted: Admitted,
        done: Outcome,
        numbered: Numbered | None,
        durability: pb.Durability,
    ) -> Sending:
        """Return the send of what was ADMITTED of RUN."""
        now_ms = self._waits.now_ms()
        parts = ways(admitted, self._rules, now_ms, self._waits.prepare)
        if not admitted.plain:
            self._check_waiting(admitted, parts)
        # Only a good run may make a topic.
        self._topics.for_writing(run.topic, run.queue)
        return Sending(run.run_id, admitted, parts, now_ms, done, numbered, durability)

    def _numbered(
        self, run: pb.ProduceRun, admitted: Admitted, done: Outcome, durability: pb.Durability
    ) -> Sending:
        """Return the send of RUN, of which only that is stored which is not there yet."""
        numbers = RunNumbers.of(run)
        if not self._producers.follows(numbers, admitted.run):
            # It is about what this very turn has brought: that has to be stored, or to fail, first.
            self._append_arrived()
        numbered, each = self._producers.judge(numbers, admitted.run)
        if numbered.is_repeat:
            return Sending(run.run_id, admitted, [], 0, done, numbered, durability)
        if numbered.rows is not None:
            rest = rest_of(numbered.numbers, admitted.run, numbered.rows)
            sizes = [len(record) for record in rest]
            admitted, each = admit(b"".join(rest), sizes, run.topic, run.queue), True
        sending = self._sending(run, admitted, done, numbered, durability)
        if not each and sending.parts[0].run is not admitted.run:
            raise errors.InvalidArgument(
                f"the property {PRODUCER_SEQUENCE} of the first record speaks for all, but some of them wait for their"
                " time or their transaction: give each record its own, with count 1",
                field=PRODUCER_SEQUENCE,
            )
        self._producers.reserve(numbered)
        return sending

    def _durability(self, run: pb.ProduceRun) -> pb.Durability:
        """Return which one RUN asks for, or the broker's own."""
        asked = int(run.durability)
        if asked == pb.REPLICAS and self._mastership is None:
            raise errors.Unsupported(
                'durability is REPLICAS (3; acks="replicas"), but this broker has no replicas: use DISK (2)',
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
                f"{self._waiting} sends wait for a device, the limit is {limit}: send less at a time",
                field="durability",
                limit=limit,
                value=self._waiting,
            )

    def _check_waiting(self, admitted: Admitted, parts: list[Part]) -> None:
        """Refuse what is more than may wait."""
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
                f"records: a run of {size} bytes, the limit is {limit}: send it in parts",
                field="records",
                limit=limit,
                value=size,
            )

    # --- the store

    def _append_arrived(self) -> None:
        """Append what this turn of the loop has brought, and answer it, or wait until it is as safe as was asked for.

        From here to the disk: `_append_sends`, `Appends.put`, `MessageStore.append_many`, `LogWriter.append`.
        """
        arrived, self._arrived = self._arrived, []
        results: list[list[Appended | errors.PocketMQError]] = []
        try:
            for group in self._groups(arrived):
                numbered = _any_numbered(group)
                results += (self._append_numbered if numbered else self._append_sends)(group)
        except Exception as bug:  # The edge: no sender may be left without an answer.
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
        """Put into the answer of SEND where its records are; return why they are not stored, if they are not."""
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
        except Exception as bug:  # The edge: it is answered.
            return _internal(bug)
        return None

    def _groups(self, sends: list[Sending]) -> Iterator[list[Sending]]:
        """Divide SENDS, in their order, into groups that are appended at once: small ones together, large ones alone.

        With numbered sends, a group of several must fit the log file: all of it is appended, or nothing.
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
        """Is the log file too full for SENDS?"""
        size = sum([len(part.run.records) for send in sends for part in send.parts])
        return size > self._store.log.room()

    def _append_sends(self, sends: list[Sending]) -> list[list[Appended | errors.PocketMQError]]:
        """Append SENDS, each whole or not at all; return the results of the parts of each."""
        runs = [part.run for send in sends for part in send.parts]
        if len(runs) > len(sends) > 1 and self._exceed_file(sends):
            return [result for send in sends for result in self._append_sends([send])]
        together = len(sends) == 1 and len(runs) > 1
        try:
            results = self._appends.put(runs, together=together)
        except Exception as bug:  # The edge: no sender may be left without an answer.
            results = [_internal(bug)] * len(runs)
        rest = iter(results)
        return [list(islice(rest, len(send.parts))) for send in sends]

    def _append_numbered(self, sends: list[Sending]) -> list[list[Appended | errors.PocketMQError]]:
        """Append SENDS, of which some are numbered, but not what follows a run that could not be appended."""
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
        """Answer SENDS once all of them are on the device, or that takes too long."""

        def synced(error: errors.StoreError | None) -> None:
            self._timers.cancel(timer)
            self._answer_all(sends, error)

        timer = self._timer(sends, "stored in memory, but not on the device")
        self._store.request_sync(_end_of(sends), synced)

    def _replicate(self, sends: list[Sending]) -> None:
        """Answer SENDS once all replicas that are in sync have them, and their topics; or that takes too long."""
        mastership = self._mastership
        assert mastership is not None, "it was refused else"

        def acknowledged(replicas: int, error: errors.PocketMQError | None) -> None:
            self._timers.cancel(timer)
            for send in sends:
                self._answer(send, error or self._too_few(send, replicas), replicas)

        def topics_safe(error: errors.PocketMQError | None) -> None:
            if error is None:
                mastership.when_acknowledged(_end_of(sends), acknowledged)
            else:
                acknowledged(0, error)

        timer = self._timer(sends, "stored here, but not on all replicas that are in sync")
        self._topics.kept.when_safe(topics_safe)

    def _too_few(self, send: Sending, there: int) -> errors.PocketMQError | None:
        """Return why SEND is in doubt though all in sync, so many as are THERE, have it: its topic needs more."""
        needed = self._topics.min_in_sync(send.topic)
        if there >= needed:
            return None
        return errors.NotEnoughReplicasAfterAppend(
            f"stored on {there} replicas, and topic {send.topic!r} needs {needed} (min_in_sync): replicas have left the"
            " set meanwhile, send it again",
            in_sync=there,
            limit=needed,
        )

    def _timer(self, sends: list[Sending], where: str) -> Timer:
        """Return what answers SENDS when they have waited for too long; they are WHERE."""
        timeout_ms = self._store.config.flush_timeout_ms
        late = errors.FlushTimeout(
            f"{where} within {timeout_ms} ms (store.flush_timeout_ms): it may get there yet",
            limit=timeout_ms,
        )
        return self._timers.after(timeout_ms, lambda: self._answer_all(sends, late))

    def refuse(self, error: errors.PocketMQError) -> None:
        """Refuse with ERROR what comes from now on."""
        self._refusal = error

    def fence(self, error: errors.PocketMQError) -> None:
        """Refuse what comes with ERROR, and fail what waits; the appends are fenced, and take nothing of it."""
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
    """Return how safely that is stored of which nobody says so."""
    if mastership is not None:
        return pb.REPLICAS
    return pb.DISK if store.config.flush == "sync" else pb.MEMORY


def _end_of(sends: list[Sending]) -> int:
    return max(send.end_offset for send in sends)


def _fenced(mastership: Mastership) -> errors.PocketMQError | None:
    """Return why nothing may be said to be stored in this turn."""
    try:
        mastership.check_master()
    except errors.PocketMQError as error:
        return error
    return None


def _internal(bug: Exception) -> errors.PocketMQError:
    """Return what the sender is told of a bug below, or of too little memory, which the log has."""
    if isinstance(bug, errors.PocketMQError):
        return bug
    logger.error("append failed", exc_info=bug)
    return errors.PocketMQError("internal error in the store")


def _any_numbered(sends: list[Sending]) -> bool:
    return any([send.numbered is not None for send in sends])


def _is_small(send: Sending) -> bool:
    return send.size <= _SMALL_RUN_BYTES
