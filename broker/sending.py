"""One send under way: the parts that it is stored in, and its answer, which says where its records are.

And what sends need and tell: those who keep what waits, and how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..proto.errors import PocketMQError
from ..proto.errors_wire import to_wire
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.record_run import Longs
from ..store.run import Appended
from .admission import Admitted, Prepare
from .delay.roads import Part
from .producers.places import Places
from .producers.sequences import Numbered

#: Told of the answer to one run, exactly once.
Done = Callable[[pb.ProduceReply], None]
#: Told, exactly once, where one run is stored and how safely, or why it is not, or not as safely as was asked for.
Outcome = Callable[[pb.ProduceReply, PocketMQError | None], None]


def answering(done: Done) -> Outcome:
    """Return what tells DONE of an outcome, errors as part of the answer."""

    def answer(reply: pb.ProduceReply, error: PocketMQError | None) -> None:
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


#: Topics that are counted; beyond it the one that was first sent to is forgotten.
_TOPICS_COUNTED_MAX: Final = 10_000


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
    end_offset: what it needs on the device lies in the log before, once that is known.
    """

    __slots__ = (
        "_as_sent",
        "_now_ms",
        "_sent",
        "done",
        "end_offset",
        "numbered",
        "parts",
        "reply",
        "to_disk",
    )

    def __init__(
        self,
        run_id: int,
        admitted: Admitted,
        parts: list[Part],
        now_ms: int,
        done: Outcome,
        numbered: Numbered | None,
        *,
        to_disk: bool,
    ) -> None:
        self.parts = parts
        self.reply = pb.ProduceReply(run_id=run_id)
        self.done: Outcome | None = done
        self.numbered = numbered
        self.to_disk = to_disk
        self.end_offset = 0
        self._sent = admitted.run
        self._as_sent = admitted.as_sent
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
        return len(self._sent.columns)

    @property
    def is_repeated(self) -> bool:
        """Is some of it stored already?"""
        return self.numbered is not None and self.numbered.rows is not None

    def note(self, appended: Sequence[Appended], now_ms: int) -> None:
        """Say in the answer where the records are, by the parts that were APPENDED; NOW_MS is the messages' time."""
        self.reply.store_timestamp_ms = max(one.store_timestamp_ms for one in appended)
        self.end_offset = max(one.end_offset for one in appended)
        if self.parts[0].run is self._sent:
            self._note_whole(appended[0])
        else:
            zeros: Longs = np.zeros(len(self._sent.columns), np.int64)
            self._note_rows(appended, now_ms, zeros, zeros.copy(), zeros.copy())

    def note_repeated(self, appended: Sequence[Appended], places: Places, now_ms: int) -> None:
        """Say in the answer where the records are: some were APPENDED now, at NOW_MS, others had their PLACES."""
        assert self.numbered is not None, "only numbered runs repeat"
        stored_ms = [one.store_timestamp_ms for one in appended]
        self.reply.store_timestamp_ms = max([*stored_ms, places.store_ms])
        self.reply.repeated_count = self.numbered.repeated_count
        self.end_offset = max([*(one.end_offset for one in appended), places.end_offset])
        self._note_rows(
            appended,
            now_ms,
            places.queue_offsets,
            places.log_offsets,
            places.due_ms,
            self.numbered.rows,
        )

    def _note_whole(self, appended: Appended) -> None:
        """Say where a run is; the sender works out the places of records that lie end to end."""
        offsets, starts = appended.log_offsets, self._sent.columns.starts
        reply = self.reply
        reply.first_queue_offset = appended.first_queue_offset
        reply.first_log_offset = int(offsets[0])
        end_to_end = int(offsets[-1] - offsets[0]) == int(starts[-1] - starts[0])
        if not (end_to_end and self._as_sent):
            reply.log_offsets.extend(offsets.tolist())

    def _note_rows(
        self,
        appended: Sequence[Appended],
        now_ms: int,
        queue_offsets: Longs,
        log_offsets: Longs,
        due_ms: Longs,
        sent_rows: Longs | None = None,
    ) -> None:
        """Say where each record is, and when it is due; SENT_ROWS are those that the parts are of, None: all."""
        for part, one in zip(self.parts, appended, strict=True):
            rows = part.rows if sent_rows is None else sent_rows[part.rows]
            queue_offsets[rows] = one.first_queue_offset + np.arange(len(one))
            log_offsets[rows] = one.log_offsets
            if part.due_ms is not None:
                # A level counts from the time that the store gave, unless the clock was set back behind that.
                stored_ms = min(one.store_timestamp_ms, now_ms)
                later_ms = stored_ms - self._now_ms if part.by_level else 0
                due_ms[rows] = part.due_ms + later_ms
        reply = self.reply
        reply.first_queue_offset = int(queue_offsets[0])
        reply.first_log_offset = int(log_offsets[0])
        reply.log_offsets.extend(log_offsets.tolist())
        if (np.diff(queue_offsets) != 1).any():
            reply.queue_offsets.extend(queue_offsets.tolist())
        if due_ms.any():
            reply.due_ms.extend(due_ms.tolist())
