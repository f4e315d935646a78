"""What is held of a queue, against a plain list of the offsets that are not finished."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pocketmq.client.pushing.process_queue import Chunk, Failure, ProcessQueue, WorkerPlace
from pocketmq.client.queue import Queue
from pocketmq.client.received_message import FetchedRun
from pocketmq.proto.record import Host, encode_run

QUEUE = Queue("orders", "broker-a", 0)
FAILED = Failure(0, "no")


def run_at(*offsets: int) -> FetchedRun:
    """Return a fetched run of messages at OFFSETS."""
    records, _ = encode_run(
        "orders",
        0,
        [(b"%d" % offset, b"") for offset in offsets],
        born_timestamp_ms=1,
        born_host=Host.parse("127.0.0.1", 1),
    )
    run = FetchedRun("broker-a", bytes(records))
    run.columns.queue_offset[:] = np.array(offsets)
    return run


def held(*offsets: int, portion_messages: int = 512) -> tuple[ProcessQueue, list[Chunk]]:
    """Return a queue that holds messages at OFFSETS, and their portions."""
    queue = ProcessQueue(QUEUE, offsets[0])
    return queue, queue.put(run_at(*offsets), 0, offsets[-1] + 1, portion_messages)


def take(portion: Chunk, place: WorkerPlace) -> int:
    """Take the next message of PORTION as a worker does."""
    place.index = next(portion.row)
    return place.index


def test_a_message_that_waits_holds_the_offset() -> None:
    queue, (portion,) = held(10, 11, 12)

    assert queue.lowest_unfinished() == 10
    assert (queue.count, queue.span, portion.left) == (3, 3, 3)


def test_what_is_finished_in_the_middle_does_not_move_the_offset() -> None:
    queue, (portion,) = held(10, 11, 12)
    slow, quick = portion.join(), portion.join()
    take(portion, slow)
    take(portion, quick)
    quick.index += 1

    assert queue.lowest_unfinished() == 10
    slow.index += 1
    # The quick one has finished what it took, and may take no less than that.
    assert queue.lowest_unfinished() == 11
    portion.leave(slow)
    assert queue.lowest_unfinished() == 12


def test_what_a_filter_stepped_over_is_finished() -> None:
    queue = ProcessQueue(QUEUE, 10)

    queue.skip_to(20)
    assert queue.lowest_unfinished() == 20
    (portion,) = queue.put(run_at(25, 30), 0, 40, 512)
    assert queue.lowest_unfinished() == 25
    place = portion.join()
    take(portion, place)
    place.index += 1
    assert queue.lowest_unfinished() == 30
    take(portion, place)
    portion.leave(place)
    assert queue.lowest_unfinished() == 40
    assert queue.settle() == 2
    assert (queue.count, queue.size_bytes, queue.span) == (0, 0, 0)


def test_what_is_held_already_is_not_taken_in_again() -> None:
    queue, _ = held(10, 11, 12)

    (portion,) = queue.put(run_at(11, 12, 13), 0, 14, 512)

    assert portion.offset_at(portion.begin) == 13
    assert queue.put(run_at(12, 13), 0, 14, 512) == []


def test_a_run_is_cut_into_portions_that_end_where_the_next_begins() -> None:
    queue, portions = held(10, 15, 20, 25, 30, portion_messages=2)

    assert [(p.begin, p.end, p.next_offset) for p in portions] == [
        (0, 2, 20),
        (2, 4, 30),
        (4, 5, 31),
    ]
    assert queue.size_bytes == len(portions[0].run.data) == sum(p.size_bytes for p in portions)


def test_a_failed_message_is_unfinished_until_it_is_resolved() -> None:
    queue, (portion,) = held(10, 11)
    place = portion.join()
    portion.results.append((take(portion, place), FAILED))
    take(portion, place)
    portion.leave(place)

    assert queue.settle() == 0
    assert queue.failures == [(portion, 0)]
    assert queue.lowest_unfinished() == 10
    portion.resolve(0)
    assert queue.lowest_unfinished() == 12
    assert queue.settle() == 1  # The other one was handled.


def test_a_second_try_that_succeeds_finishes_a_failed_message() -> None:
    queue, (portion,) = held(10)
    place = portion.join()
    portion.results.append((take(portion, place), FAILED))
    portion.leave(place)
    assert queue.settle() == 0

    portion.results.append((0, None))

    assert queue.settle() == 1
    assert queue.lowest_unfinished() == 11


def test_a_worker_that_stands_still_is_found() -> None:
    queue, (portion,) = held(10, 11)
    place = portion.join()
    take(portion, place)

    assert queue.slow(1_000, 500) == []
    assert queue.slow(1_499, 500) == []
    ((found, where),) = queue.slow(1_500, 500)
    assert (found, where) == (portion, place)
    place.index += 1
    assert queue.slow(3_000, 500) == []


def test_who_is_given_up_is_not_heard_and_holds_nothing_once_resolved() -> None:
    queue, (portion,) = held(10, 11)
    place = portion.join()
    take(portion, place)
    queue.slow(0, 1)

    portion.abandon(place, Failure(3, "slow", slow=True))

    assert queue.failures == [(portion, 0)]
    assert queue.lowest_unfinished() == 10
    portion.resolve(0)
    assert queue.lowest_unfinished() == 11
    assert queue.slow(10, 1) == []
    assert queue.at_work == 0
    portion.results.append((0, FAILED))
    assert queue.lowest_unfinished() == 11
    assert len(queue.failures) == 1


def test_who_has_gone_on_is_not_given_up() -> None:
    queue, (portion,) = held(10, 11)
    place = portion.join()
    take(portion, place)
    queue.slow(0, 1)
    place.index += 1

    portion.abandon(place, FAILED)

    assert queue.failures == []


def test_what_is_dropped_stays_unfinished_and_is_not_handed_out() -> None:
    queue, (portion,) = held(10, 11, 12)
    place = portion.join()
    take(portion, place)

    queue.drop()

    assert (portion.left, queue.at_work) == (0, 1)
    assert queue.lowest_unfinished() == 10
    portion.leave(place)
    assert queue.lowest_unfinished() == 11
    assert queue.settle() == 0


@pytest.mark.parametrize("dropped_before", [True, False])
def test_a_row_that_goes_back_is_empty_once_its_queue_is_dropped(dropped_before: bool) -> None:
    queue, (portion,) = held(10, 11, 12)
    place = portion.join()
    index = take(portion, place)
    if dropped_before:
        queue.drop()
    portion.rewind(index)
    portion.leave(place)
    if not dropped_before:
        queue.drop()

    assert portion.left == 0
    assert queue.lowest_unfinished() == 10


class HeldMessages(RuleBasedStateMachine):
    """Workers take, finish, fail and stand still; a list says which offsets are not finished."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(QUEUE, 0)
        self.unfinished: list[int] = []
        self.reached = 0
        self.portions: list[Chunk] = []
        #: Who works: place → its portion, and the offset of what it handles (None: between two).
        self.workers: dict[WorkerPlace, tuple[Chunk, int | None]] = {}
        self.failed: list[tuple[Chunk, int]] = []
        self.dropped = False
        self.handled = 0
        self.settled = 0

    @precondition(lambda self: not self.dropped)
    @rule(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=8), behind=st.integers(0, 3))
    def put(self, gaps: list[int], behind: int) -> None:
        offsets, offset = [], self.reached
        for gap in gaps:
            offsets.append(offset + gap)
            offset += gap + 1
        self.reached = offset + behind
        self.portions += self.queue.put(run_at(*offsets), 0, self.reached, 3)
        self.unfinished += offsets

    @precondition(lambda self: not self.dropped)
    @rule(by=st.integers(1, 5))
    def step_over(self, by: int) -> None:
        self.reached += by
        self.queue.skip_to(self.reached)

    @precondition(lambda self: self.portions)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        portion = data.draw(st.sampled_from(self.portions))
        self.workers[portion.join()] = (portion, None)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), ending=st.sampled_from(["done", "failed", "leave"]))
    def go_on(self, data: st.DataObject, ending: str) -> None:
        """One worker ends what it is at, if it is at something, and takes the next or leaves."""
        place = data.draw(st.sampled_from(list(self.workers)))
        portion, index = self.workers[place]
        if index is not None and index not in portion.abandoned:
            if ending == "failed":
                portion.results.append((index, FAILED))
                self.failed.append((portion, index))
            else:
                self.unfinished.remove(portion.offset_at(index))
                self.handled += 1
        if index is not None:
            place.index = index + 1
        taken = list(islice(portion.row, 1)) if ending != "leave" else []
        if not taken:
            del self.workers[place]
            portion.leave(place)
            return
        place.index = taken[0]
        self.workers[place] = (portion, taken[0])

    @precondition(lambda self: self.failed)
    @rule(data=st.data(), again=st.booleans())
    def resolve(self, data: st.DataObject, again: bool) -> None:
        self.queue.settle()
        portion, index = data.draw(st.sampled_from(self.failed))
        self.failed.remove((portion, index))
        self.unfinished.remove(portion.offset_at(index))
        if again and index not in portion.abandoned:
            portion.results.append((index, None))
            self.handled += 1
        else:
            portion.resolve(index)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.queue.slow(0, 10)
        for portion, place in self.queue.slow(10, 10):
            if self.workers[place][1] is not None and data.draw(st.booleans()):
                portion.abandon(place, FAILED)
                self.failed.append((portion, place.index))

    @rule(sure=st.integers(0, 9))
    def drop(self, sure: int) -> None:
        if sure == 0:
            self.dropped = True
            self.queue.drop()

    @invariant()
    def the_offset_is_the_lowest_unfinished(self) -> None:
        lowest = min(self.unfinished, default=self.reached)
        between = [place.index for place, (_, index) in self.workers.items() if index is None]
        if between:
            # Who stands between two messages holds the offset where it stands: too low, never too high.
            assert self.queue.lowest_unfinished() <= lowest
        else:
            assert self.queue.lowest_unfinished() == lowest

    @invariant()
    def what_is_finished_is_let_go(self) -> None:
        self.settled += self.queue.settle()
        assert self.settled <= self.handled
        if not self.unfinished and not self.workers:
            assert self.settled == self.handled
            assert (self.queue.count, self.queue.size_bytes) == (0, 0)

    @invariant()
    def no_fewer_are_counted_than_are_unfinished(self) -> None:
        assert self.queue.count >= len(self.unfinished)


HeldMessages.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestHeldMessages = pytest.mark.long(HeldMessages.TestCase)
