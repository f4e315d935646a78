"""Positions of a stream: the traps of Spark's protocol, one by one, and any row of events against a plain model."""

import logging

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pocketmq.client.queue import Queue
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import LeaseLost, OffsetOutOfRange
from pocketmq.tools.spark.live.cluster import Bounds
from pocketmq.tools.spark.live.plans import StreamPlan
from pocketmq.tools.spark.live.ranges import QueueRange
from pocketmq.tools.spark.live.read_options import read_options

from .fake_cluster import FakeCluster, cluster_of, queue


class HandClock(VirtualClock):
    """A clock that a test sets."""

    def set(self, now_ms: int) -> None:
        self._now_ms = now_ms


def stream(cluster: FakeCluster, clock: HandClock | None = None, **given: str) -> StreamPlan:
    options = read_options({"subscribe": "orders", **given}, streaming=True)
    return StreamPlan(options, cluster, clock or HandClock())


# --- where it begins


def test_the_start_is_the_same_at_every_call() -> None:
    cluster = cluster_of(10)
    plan = stream(cluster)

    first = plan.initial()
    cluster.grow(queue(0), 5)

    assert first == plan.initial() == {queue(0): 10}


def test_a_process_that_begins_again_finds_latest_where_the_group_pinned_it() -> None:
    cluster = cluster_of(10, 20)
    first = stream(cluster, consumerGroup="g").initial()
    cluster.grow(queue(0), 5)

    again = stream(cluster, consumerGroup="g").initial()

    assert first == again == {queue(0): 10, queue(1): 20}
    assert cluster.offsets["g"] == first


@pytest.mark.parametrize(
    ("subscription", "begins"),
    [({"subscribe": "orders,bills"}, 6), ({"subscribePattern": ".*"}, 0)],
    ids=["names", "pattern"],
)
def test_what_came_after_the_pin_begins_at_its_oldest_message(
    subscription: dict[str, str], begins: int
) -> None:
    bill = queue(0, topic="bills")
    cluster = FakeCluster({queue(0): Bounds(0, 10), queue(1): Bounds(2, 4), bill: Bounds(0, 6)})
    cluster.offsets["g"] = {queue(0): 7}
    options = read_options({**subscription, "consumerGroup": "g"}, streaming=True)

    plan = StreamPlan(options, cluster, HandClock())

    assert plan.initial() == {queue(0): 7, queue(1): 2, bill: begins}


def test_latest_without_a_group_warns_that_it_is_not_pinned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        stream(cluster_of(10)).initial()

    assert "consumerGroup" in caplog.text


def test_earliest_goes_before_what_the_group_has_committed() -> None:
    cluster = cluster_of(10)
    cluster.offsets["g"] = {queue(0): 7}

    assert stream(cluster, consumerGroup="g", startingOffsets="earliest").initial() == {queue(0): 0}


def test_a_group_that_has_members_cannot_pin_a_stream() -> None:
    cluster = cluster_of(10)
    cluster.is_leased = True

    with pytest.raises(LeaseLost):
        stream(cluster, consumerGroup="g").initial()


def test_a_group_that_stands_below_the_oldest_message_has_lost_some() -> None:
    cluster = cluster_of(10, least=5)
    cluster.offsets["g"] = {queue(0): 3}

    with pytest.raises(OffsetOutOfRange, match="3 is gone"):
        stream(cluster, consumerGroup="g").initial()
    lenient = stream(cluster, consumerGroup="g", failOnDataLoss="false")
    assert lenient.initial() == {queue(0): 5}


# --- how far a batch goes


def test_a_batch_goes_to_the_end_or_as_far_as_its_limit() -> None:
    plan = stream(cluster_of(100, 50), startingOffsets="earliest")
    start = plan.initial()

    assert plan.latest(start) == {queue(0): 100, queue(1): 50}
    assert plan.latest(start, most=15) == {queue(0): 10, queue(1): 5}
    assert plan.newest() == {queue(0): 100, queue(1): 50}


@pytest.mark.parametrize("count", [1, 9, 10, 11, 30])
@pytest.mark.parametrize("most", [None, 4])
def test_all_messages_of_a_topic_that_was_created_again_are_read(
    count: int, most: int | None
) -> None:
    cluster = cluster_of(10, 5)
    start = {queue(0): 10, queue(1): 5}
    marks = cluster.marks(start)
    cluster.recreate(queue(0), count)
    with pytest.raises(OffsetOutOfRange, match="created again"):
        stream(cluster).latest(start, marks)

    plan = stream(cluster, failOnDataLoss="false")
    read: list[QueueRange] = []
    for _ in range(20):
        end = plan.latest(start, marks, most=most)
        end_marks = plan.marks(end, start, marks)
        if (end, end_marks) == (start, marks):
            break
        # The tasks of a batch are planned by a process that knows nothing but the checkpoint.
        other = stream(cluster, failOnDataLoss="false")
        read += other.ranges(start, end, marks, end_marks)
        start, marks = end, end_marks

    assert sum(one.size for one in read) == count
    assert [(one.begin, one.queue) for one in read][:1] == [(0, queue(0))]
    assert start == {queue(0): count, queue(1): 5}


@pytest.mark.parametrize("count", [1, 9, 10, 11])
def test_a_checkpoint_without_marks_shows_a_queue_that_is_shorter(count: int) -> None:
    cluster = cluster_of(10)
    cluster.recreate(queue(0), count)
    plan = stream(cluster, failOnDataLoss="false")

    end = plan.latest({queue(0): 10})

    assert end == {queue(0): count}
    ranges = plan.ranges({queue(0): 10}, end)
    expected = {11: [QueueRange(queue(0), 10, 11)], 10: []}
    assert ranges == expected.get(count, [QueueRange(queue(0), 0, count)])


def test_of_a_queue_that_was_cut_only_what_is_new_is_read() -> None:
    cluster = cluster_of(10)
    start = {queue(0): 10}
    marks = cluster.marks(start)
    cluster.queues[queue(0)] = Bounds(0, 7)
    plan = stream(cluster, failOnDataLoss="false")

    end = plan.latest(start, marks)
    assert end == {queue(0): 7}
    assert plan.ranges(start, end, marks) == []
    marks = plan.marks(end, start, marks)
    cluster.grow(queue(0), 2)
    assert plan.ranges(end, plan.latest(end, marks), marks) == [QueueRange(queue(0), 7, 9)]


def test_a_message_that_is_gone_by_retention_says_nothing_of_the_topic() -> None:
    cluster = cluster_of(10)
    start = {queue(0): 10}
    marks = cluster.marks(start)
    cluster.grow(queue(0), 5)
    cluster.expire(queue(0), 10)

    assert stream(cluster).latest(start, marks) == {queue(0): 15}


def test_idle_queues_are_seldom_asked_for_their_messages() -> None:
    cluster, clock = cluster_of(10), HandClock()
    start = {queue(0): 10}
    marks = cluster.marks(start)
    plan = stream(cluster, clock)
    for _ in range(100):
        plan.latest(start, marks)
        clock.set(clock.now_ms() + 200)
    assert 2 <= cluster.asked_marks <= 4


def test_a_queue_that_comes_later_is_read_from_its_oldest_message() -> None:
    cluster = cluster_of(10)
    plan = stream(cluster, startingOffsets="latest")
    start = plan.initial()
    cluster.queues[queue(1)] = Bounds(3, 8)

    end = plan.latest(start)

    assert end == {queue(0): 10, queue(1): 8}
    assert plan.ranges(start, end) == [QueueRange(queue(1), 3, 8)]


def test_what_ends_by_itself_ends_where_the_queues_ended_then() -> None:
    cluster = cluster_of(10, 10)
    plan = stream(cluster, startingOffsets="earliest", minOffsetsPerTrigger="1000")
    plan.prepare_available_now()
    start = plan.initial()
    cluster.grow(queue(0), 90)
    cluster.grow(queue(2), 5)

    first = plan.latest(start, most=8, least=1000)
    second = plan.latest(first, least=1000)

    assert first == {queue(0): 4, queue(1): 4}
    assert second == {queue(0): 10, queue(1): 10} == plan.latest(second)


def test_what_ends_by_itself_reads_a_shorter_queue_up_to_its_target() -> None:
    cluster = cluster_of(10)
    plan = stream(cluster, failOnDataLoss="false")
    plan.prepare_available_now()

    assert plan.latest({queue(0): 12}) == {queue(0): 10}


def test_few_messages_wait_for_more_or_for_the_delay() -> None:
    cluster, clock = cluster_of(10), HandClock()
    plan = stream(cluster, clock, startingOffsets="earliest", maxTriggerDelay="1s")
    start = plan.initial()
    first = plan.latest(start, least=50)
    cluster.grow(queue(0), 20)

    waiting = plan.latest(first, least=50)
    clock.set(clock.now_ms() + 1_000)
    late = plan.latest(first, least=50)
    cluster.grow(queue(0), 50)
    enough = plan.latest(late, least=50)

    assert first == {queue(0): 10}  # nothing came before: nothing to wait for
    assert waiting == first
    assert late == {queue(0): 30}
    assert enough == {queue(0): 80}


def test_nothing_new_is_no_batch_however_late_it_is() -> None:
    plan = stream(cluster_of(10), maxTriggerDelay="0")

    assert plan.latest({queue(0): 10}, least=5) == {queue(0): 10}


# --- what is lost


def test_a_queue_that_is_gone_is_a_loss_and_one_out_of_reach_is_not() -> None:
    cluster = FakeCluster({queue(0): Bounds(0, 10), queue(0, "broker-b"): Bounds(0, 10)})
    plan = stream(cluster, startingOffsets="earliest")
    start = plan.initial()

    cluster.unregistered.add("broker-b")
    away = plan.latest(start)
    cluster.unregistered.clear()
    back = plan.latest(away)
    del cluster.queues[queue(0, "broker-b")]

    assert away == {queue(0): 10, queue(0, "broker-b"): 0}
    assert back == {queue(0): 10, queue(0, "broker-b"): 10}
    with pytest.raises(OffsetOutOfRange, match="gone"):
        plan.latest(back)


def test_a_queue_that_is_lost_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_of(10, 10)
    plan = stream(cluster, startingOffsets="earliest", failOnDataLoss="false")
    end = plan.latest(plan.initial())
    del cluster.queues[queue(1)]

    with caplog.at_level(logging.WARNING):
        assert plan.latest(plan.latest(end)) == end

    assert caplog.text.count("gone") == 1


def test_a_batch_whose_begin_has_expired_is_a_loss() -> None:
    cluster = cluster_of(10)
    start, end = {queue(0): 2}, {queue(0): 8}
    cluster.expire(queue(0), 5)

    with pytest.raises(OffsetOutOfRange, match="2 is gone"):
        stream(cluster).ranges(start, end)
    assert stream(cluster, failOnDataLoss="false").ranges(start, end) == [
        QueueRange(queue(0), 5, 8)
    ]


def test_a_first_batch_that_ends_before_it_begins_is_a_loss() -> None:
    start, end = {queue(0): 9}, {queue(0): 8}

    plan = stream(cluster_of(10), failOnDataLoss="false")

    assert plan.ranges(start, end) == []


def test_an_empty_batch_asks_nobody() -> None:
    cluster = cluster_of()

    assert stream(cluster).ranges({queue(0): 9}, {queue(0): 9}) == []


def test_batches_are_cut_for_their_tasks() -> None:
    plan = stream(cluster_of(100), maxRecordsPerPartition="30", minPartitions="2")

    assert [one.size for one in plan.ranges({queue(0): 0}, {queue(0): 100})] == [25] * 4


# --- what is finished


def test_the_start_of_the_next_batch_is_committed_once() -> None:
    cluster = cluster_of(10)
    plan = stream(cluster, consumerGroup="g", startingOffsets="earliest")
    start = plan.initial()

    end = plan.latest(start)
    plan.latest(end)
    plan.commit(end)

    assert cluster.commits[1:] == [{queue(0): 0}, {queue(0): 10}]


def test_a_commit_that_fails_stops_nothing_and_is_made_up_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = cluster_of(10)
    plan = stream(cluster, consumerGroup="g", startingOffsets="earliest")
    end = plan.latest(plan.initial())
    cluster.is_leased = True

    with caplog.at_level(logging.WARNING):
        plan.commit(end)
    cluster.is_leased = False
    plan.commit(end)

    assert "not committed" in caplog.text
    assert cluster.offsets["g"] == end


def test_a_broker_that_was_away_hears_again_what_was_committed() -> None:
    cluster = cluster_of(10)
    plan = stream(cluster, consumerGroup="g", startingOffsets="earliest")
    end = plan.latest(plan.initial())
    plan.latest(end)
    cluster.unregistered.add(queue(0).broker)
    plan.latest(end)
    cluster.unregistered.clear()
    cluster.offsets["g"] = {queue(0): 0}

    plan.latest(end)

    assert cluster.offsets["g"] == end


def test_without_the_wish_nothing_is_committed() -> None:
    cluster = cluster_of(10)
    plan = stream(cluster, consumerGroup="g", commitOffsets="false")

    plan.commit(plan.latest(plan.initial()))

    assert not cluster.commits


# --- any row of events


class StreamMachine(RuleBasedStateMachine):
    """Spark's protocol with crashes: every message from the first start on is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = cluster_of(4, 0)
        self.offset_log: list[dict[Queue, int]] = []
        self.done = 0
        self.read: list[tuple[Queue, int]] = []
        self.begin: dict[Queue, int] = {}

    @initialize()
    def begin_stream(self) -> None:
        self.plan = stream(self.cluster, consumerGroup="g")
        self.begin = self.plan.initial()

    @rule(number=st.integers(0, 3), count=st.integers(1, 20))
    def produce(self, number: int, count: int) -> None:
        self.cluster.grow(queue(number), count)

    def start(self) -> dict[Queue, int]:
        return self.offset_log[self.done - 1] if self.done else self.plan.initial()

    @rule(most=st.none() | st.integers(1, 10))
    def plan_batch(self, most: int | None) -> None:
        if len(self.offset_log) == self.done:
            end = self.plan.latest(self.start(), most=most)
            if end != self.start():
                self.offset_log.append(end)

    @rule()
    def run_batch(self) -> None:
        if len(self.offset_log) > self.done:
            for one in self.plan.ranges(self.start(), self.offset_log[self.done]):
                self.read += [(one.queue, at) for at in range(one.begin, one.end)]
            self.done += 1

    @rule()
    def crash(self) -> None:
        self.plan = stream(self.cluster, consumerGroup="g")

    @invariant()
    def each_message_was_read_once(self) -> None:
        assert len(set(self.read)) == len(self.read)
        ends = self.offset_log[self.done - 1] if self.done else self.begin
        wanted = {
            (one, at) for one, end in ends.items() for at in range(self.begin.get(one, 0), end)
        }
        assert set(self.read) == wanted

    @invariant()
    def the_group_never_stands_behind_what_is_done(self) -> None:
        ends = self.offset_log[self.done - 1] if self.done else self.begin
        for one, offset in self.cluster.offsets.get("g", {}).items():
            assert offset <= ends.get(one, 0)


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=60, stateful_step_count=30)
