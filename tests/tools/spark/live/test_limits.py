"""How a bound is shared among queues."""

from fractions import Fraction

from hypothesis import example, given, strategies as st

from pocketmq.client.queue import Queue
from pocketmq.tools.spark.live.plans import shares

BACKLOGS = st.lists(st.integers(0, 10**6), max_size=20).map(
    lambda counts: {Queue("T", "a", number): count for number, count in enumerate(counts)}
)


@given(BACKLOGS, st.integers(1, 10**6))
@example({Queue("T", "a", 0): 1, Queue("T", "a", 1): 10**6}, 10)
def test_nobody_starves_and_the_sum_is_the_limit(backlogs: dict[Queue, int], limit: int) -> None:
    waiting = {queue for queue, count in backlogs.items() if count}

    given_ = shares(backlogs, limit)

    assert set(given_) == waiting
    assert all(1 <= given_[queue] <= backlogs[queue] for queue in waiting)
    assert sum(given_.values()) == min(sum(backlogs.values()), max(limit, len(waiting)))


@given(BACKLOGS, st.integers(1, 10**6))
def test_shares_are_in_proportion(backlogs: dict[Queue, int], limit: int) -> None:
    given_ = shares(backlogs, limit)

    total, count = sum(backlogs.values()), len(given_)
    if total > limit >= count:
        for queue, share in given_.items():
            fair = Fraction(limit * backlogs[queue], total)
            assert abs(share - fair) <= count


@given(BACKLOGS, st.integers(1, 1000))
def test_everything_is_read_in_the_end(backlogs: dict[Queue, int], limit: int) -> None:
    left = {queue: count % 5_000 for queue, count in backlogs.items()}
    batches = 0

    while any(left.values()):
        for queue, share in shares(left, limit).items():
            left[queue] -= share
        batches += 1

    total = sum(count % 5_000 for count in backlogs.values())
    assert batches <= -(-total // limit)
