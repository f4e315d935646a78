"""What is read of a cluster's queues: by a batch, fixed once when it is planned, and by a stream from batch to batch.

A batch reads ranges that a live broker does not change while its query runs. Of a stream Spark asks:

    initialOffset    more than once, also after a crash in the first batch, when the end of that batch is fixed already.
                     So the answer is remembered; and where it is "latest", a group pins it: what the group has
                     committed goes before latest, and where it has committed nothing, latest is committed at once.
    latestOffset     less than its start only where a queue has other messages in the place of those that were read: its
                     topic was created again, or its store was replaced or cut. Marks in the checkpoint show it. After
                     `prepare_available_now` never more than the target recorded then. Its start is by contract
                     processed, so it is committed: `commit` comes only with the next batch.
    partitions       from the checkpoint, maybe in a later process: what is between start and end, nothing else.
                     Queues that are in the end alone are new: they begin at their oldest message.

A queue whose broker is not there at present stays where it is; one that its broker denies is lost (losses.py). A limit
on the messages of one batch is shared among queues. Not thread-safe: Spark's planner has one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

from ....client.queue import Queue
from ....proto.clock import Clock
from ....proto.errors import PocketMQError
from .cluster import Bounds, Cluster
from .end_points import resolved, settled, within
from .losses import Losses
from .offsets import EARLIEST, LATEST, Offsets, RecordMark, named
from .ranges import QueueRange, cut, ranges_between
from .read_options import ReadOptions

Marks: TypeAlias = Mapping[Queue, RecordMark]
_NO_MARKS: Final[Marks] = {}
#: How often queues in which nothing seems to be new are looked at for having other messages.
_COMPARE_IDLE_MS: Final = 10_000


def shares(backlogs: Offsets, limit: int) -> dict[Queue, int]:
    """Return how many messages each queue of BACKLOGS gives to a batch of LIMIT, in proportion to its backlog.

    Every queue that has any gives at least one, so that none starves: only where more queues have some than LIMIT
    says is the sum above it, by these. Otherwise the sum is LIMIT, or everything there is.
    """
    waiting = {queue: count for queue, count in sorted(backlogs.items()) if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    given = {queue: max(1, limit * count // total) for queue, count in waiting.items()}
    # Shares that were rounded up to one exceed the sum: take it from the others, the largest first.
    over = sum(given.values()) - limit
    for queue in sorted(given, key=lambda queue: (-given[queue], queue)):
        if over <= 0:
            break
        back = min(over, given[queue] - 1)
        given[queue] -= back
        over -= back
    # What rounding down left goes where most waits, one each.
    by_rest = sorted(given, key=lambda queue: (given[queue] - waiting[queue], queue))
    for queue in by_rest[: max(0, -over)]:
        given[queue] += 1
    return given


logger = logging.getLogger(__name__)


class StreamPlan:
    """The positions of the stream that OPTIONS describe, on CLUSTER."""

    def __init__(self, options: ReadOptions, cluster: Cluster, clock: Clock) -> None:
        self._options = options
        self._cluster = cluster
        self._clock = clock
        self._losses = Losses(options.fail_on_data_loss)
        self._initial: dict[Queue, int] | None = None
        #: What a run that ends by itself reads up to.
        self._target: dict[Queue, int] | None = None
        self._committed: dict[Queue, int] = {}
        #: When a batch was let through last.
        self._triggered_ms: int | None = None
        self._latest: dict[Queue, int] = {}
        #: What is not there at present, and what of it is lost.
        self._away: set[Queue] = set()
        self._gone: set[Queue] = set()
        #: What has other messages than were read, as of when the queues were looked at last.
        self._again: set[Queue] = set()
        #: When idle queues were compared last.
        self._compared_ms: int | None = None

    def initial(self) -> dict[Queue, int]:
        """Return where the stream begins: the same at every call."""
        if self._initial is None:
            self._initial = self._find_initial()
        return dict(self._initial)

    def _find_initial(self) -> dict[Queue, int]:
        options, cluster = self._options, self._cluster
        bounds = cluster.bounds(options.choice, strict=True)
        starts = resolved(options.starting, bounds, cluster, options.group)
        moving = [queue for queue, offset in starts.items() if offset == LATEST]
        if moving and options.commits:
            starts |= self._pinned(moving)
        elif moving:
            logger.warning(
                "a stream that begins at latest without a consumerGroup may begin later after a crash in its first"
                " batch queues=%s",
                named(moving),
            )
        begins = within(settled(starts, bounds), bounds, self._losses, options.starting.option)
        if options.commits:
            # Before anything is read: the next process has to begin at the same place.
            pins = {queue: begins[queue] for queue in moving}
            cluster.commit(options.group, pins)
            self._committed |= pins
        return begins

    def _pinned(self, queues: Collection[Queue]) -> dict[Queue, int]:
        """Return where the group has those of QUEUES begin that were to begin at latest.

        Where it has committed in some queues of a topic, the others came later, and are read from their oldest message,
        as they were, or would have been, by the process before; so are topics that came later, of a pattern.
        """
        known = self._cluster.committed(self._options.group, queues)
        topics = {queue.topic for queue in known}
        if known and self._options.choice.pattern:
            topics = {queue.topic for queue in queues}
        return {queue: EARLIEST for queue in queues if queue.topic in topics} | known

    def prepare_available_now(self) -> None:
        """Let the stream end by itself where the queues end now."""
        bounds = self._cluster.bounds(self._options.choice, strict=False)
        self._target = {queue: one.end for queue, one in bounds.items()}

    def latest(
        self,
        start: Offsets,
        marks: Marks = _NO_MARKS,
        *,
        most: int | None = None,
        least: int | None = None,
    ) -> dict[Queue, int]:
        """Return where the batch ends that begins at START, of MOST messages or all, and of LEAST or none.

        MARKS are those of START.
        """
        self.commit(start)
        bounds = self._cluster.bounds(self._options.choice, strict=False)
        self._note_missing(start, bounds)
        self._latest = {**start, **{queue: one.end for queue, one in bounds.items()}}
        begins = {queue: start.get(queue, one.least) for queue, one in bounds.items()}
        again = self._begun_again(self._to_compare(start, bounds), marks, bounds)
        self._again = set(again)
        begins |= again
        ends = {queue: max(begins[queue], one.end) for queue, one in bounds.items()}
        if self._target is not None:
            target = self._target
            ends = {
                queue: max(begins[queue], min(end, target[queue]))
                for queue, end in ends.items()
                if queue in target
            }
            least = None
        backlogs = {queue: end - begins[queue] for queue, end in ends.items()}
        if least is not None and self._waits(sum(backlogs.values()), least):
            return dict(start)
        if most is not None:
            given = shares(backlogs, most)
            ends = {queue: begins[queue] + given.get(queue, 0) for queue in ends}
        return {**start, **ends}

    def marks(
        self, offsets: Offsets, known: Offsets | None = None, marks: Marks = _NO_MARKS
    ) -> dict[Queue, RecordMark]:
        """Return the marks of OFFSETS; those that are the same as KNOWN have their MARKS already."""
        same = {queue for queue, offset in offsets.items() if known and known.get(queue) == offset}
        same -= self._again
        new = {queue: offset for queue, offset in offsets.items() if queue not in same}
        kept = {queue: mark for queue, mark in marks.items() if queue in same}
        return kept | (self._cluster.marks(new) if new else {})

    def _to_compare(self, start: Offsets, bounds: Mapping[Queue, Bounds]) -> dict[Queue, int]:
        """Return the positions of START whose messages are to be compared: where something is new, others at times."""
        now_ms = self._clock.now_ms()
        if self._compared_ms is None or now_ms - self._compared_ms >= _COMPARE_IDLE_MS:
            self._compared_ms = now_ms
            return dict(start)
        return {at: start[at] for at in start if at in bounds and bounds[at].end != start[at]}

    def _begun_again(
        self, start: Offsets, marks: Marks, bounds: Mapping[Queue, Bounds]
    ) -> dict[Queue, int]:
        """Return where to read on in the queues that no longer have the message before START, but others in its place.

        The topic was deleted and created again, or the broker's store was replaced or cut. What was stored before the
        message that was read last, of which MARKS tell, was read. Without a mark all of the queue is read.
        """
        there = {queue: offset for queue, offset in start.items() if queue in bounds}
        shorter = {queue for queue, offset in there.items() if bounds[queue].end < offset}
        asked = {at: there[at] for at in there if at in marks and at not in shorter}
        found = self._cluster.marks(asked) if asked else {}
        others = sorted(shorter | {queue for queue, mark in found.items() if mark != marks[queue]})
        times = {queue: marks[queue].stored_ms for queue in others if queue in marks}
        newer = self._cluster.at_times(times) if times else {}
        begins: dict[Queue, int] = {}
        for queue in others:
            least, end = bounds[queue]
            at = newer.get(queue, least)
            begins[queue] = end if at is None else min(max(at, least), end)
            self._losses.report(
                f"{queue}: offset {start[queue]} follows another message than was read (the topic was created again, or"
                f" its store was replaced or cut); reading continues at {begins[queue]} of {end}"
            )
        return begins

    def _waits(self, count: int, least: int) -> bool:
        """Is a batch of COUNT messages, fewer than LEAST, put off until there are more?"""
        now_ms = self._clock.now_ms()
        is_late = (
            self._triggered_ms is None
            or now_ms - self._triggered_ms >= self._options.trigger_delay_ms
        )
        if count < least and not (is_late and count):
            return True
        self._triggered_ms = now_ms
        return False

    def _note_missing(self, start: Offsets, bounds: Mapping[Queue, Bounds]) -> None:
        missing = set(start) - set(bounds)
        gone = self._cluster.denied(sorted(missing - self._gone)) if missing else set()
        for queue in sorted(gone):
            self._losses.report(f"{queue}: it is gone, and what it had from {start[queue]} on")
        for queue in sorted(missing - self._away - gone):
            logger.warning("queue is out of reach at present queue=%s", queue)
        self._gone = (self._gone | gone) & missing
        for queue in missing:
            # A broker that was killed may have forgotten what was committed last: when it is back, it hears it again.
            self._committed.pop(queue, None)
        self._away = missing

    def newest(self) -> dict[Queue, int]:
        """Return where the queues ended when they were looked at last."""
        return dict(self._latest)

    def ranges(
        self,
        start: Offsets,
        end: Offsets,
        marks: Marks = _NO_MARKS,
        end_marks: Marks = _NO_MARKS,
    ) -> list[QueueRange]:
        """Return what the batch from START to END reads, cut for its tasks; MARKS are those of START."""
        begins = dict(start)
        changed = {
            queue
            for queue, offset in end.items()
            if start.get(queue) != offset
            or (queue in marks and end_marks.get(queue, marks[queue]) != marks[queue])
        }
        if changed:
            begins = self._begins(start, {queue: end[queue] for queue in changed}, marks)
        return cut(
            ranges_between(begins, end),
            at_least=self._options.partitions_min,
            records_max=self._options.records_max,
        )

    def _begins(self, start: Offsets, end: Offsets, marks: Marks) -> dict[Queue, int]:
        """Return where to read from: START, or the oldest message of a queue that is new or has lost some."""
        bounds = self._cluster.bounds(self._options.choice, strict=False)
        known = {queue: at for queue, at in start.items() if queue in end}
        again = self._begun_again(known, marks, bounds)
        begins: dict[Queue, int] = {}
        for queue, last in sorted(end.items()):
            least = bounds[queue].least if queue in bounds else 0
            first = again.get(queue, start.get(queue, min(least, last)))
            if first < last and first < least:
                self._losses.report(
                    f"{queue}: offset {first} is gone, the oldest that is there is {least}"
                )
            if first > last and queue not in again:
                self._losses.report(
                    f"{queue}: the batch ends at {last}, before it begins at {first}"
                )
            begins[queue] = min(max(first, least), last)
        return begins

    def commit(self, done: Offsets) -> None:
        """Set the group's offsets to DONE where they differ; a failure stops nothing."""
        if not self._options.commits:
            return
        news = {
            queue: offset for queue, offset in done.items() if self._committed.get(queue) != offset
        }
        if not news:
            return
        try:
            self._cluster.commit(self._options.group, news)
        except PocketMQError as error:
            logger.warning(
                "offsets not committed group=%s error=%s", self._options.group, error.message
            )
            return
        self._committed |= news


def batch_ranges(options: ReadOptions, cluster: Cluster) -> list[QueueRange]:
    """Return what the batch of OPTIONS reads, cut for its tasks."""
    bounds = cluster.bounds(options.choice, strict=True)
    losses = Losses(options.fail_on_data_loss)
    begins = within(
        settled(resolved(options.starting, bounds, cluster, options.group), bounds),
        bounds,
        losses,
        options.starting.option,
    )
    ends = within(
        settled(resolved(options.ending, bounds, cluster, options.group), bounds),
        bounds,
        losses,
        options.ending.option,
    )
    for queue in sorted(ends):
        if ends[queue] < begins[queue]:
            losses.report(f"{queue} ends at {ends[queue]}, before it begins at {begins[queue]}")
    return cut(
        ranges_between(begins, ends),
        at_least=options.partitions_min,
        records_max=options.records_max,
    )
