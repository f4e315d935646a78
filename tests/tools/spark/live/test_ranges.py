"""How ranges are cut for tasks."""

from hypothesis import given, strategies as st

from pocketmq.client.queue import Queue
from pocketmq.tools.spark.live.ranges import QueueRange, cut, ranges_between

SIZES = st.lists(st.integers(0, 3_000), max_size=12)


def ranges(sizes: list[int]) -> list[QueueRange]:
    return [QueueRange(Queue("T", "a", n), 100 * n, 100 * n + size) for n, size in enumerate(sizes)]


def offsets(parts: list[QueueRange]) -> list[tuple[Queue, int]]:
    return [(part.queue, at) for part in parts for at in range(part.begin, part.end)]


@given(SIZES, st.integers(0, 40), st.none() | st.integers(1, 500))
def test_parts_are_the_ranges_each_offset_once(
    sizes: list[int], at_least: int, most: int | None
) -> None:
    whole = ranges(sizes)

    parts = cut(whole, at_least=at_least, records_max=most)

    assert offsets(parts) == offsets(whole)
    assert all(part.size for part in parts)


@given(SIZES, st.integers(0, 40), st.none() | st.integers(1, 500))
def test_bounds_of_the_cut_are_kept(sizes: list[int], at_least: int, most: int | None) -> None:
    parts = cut(ranges(sizes), at_least=at_least, records_max=most)

    assert len(parts) >= min(at_least, sum(sizes))
    assert most is None or all(part.size <= most for part in parts)


def test_without_bounds_a_range_is_a_part() -> None:
    whole = ranges([5, 0, 7])

    assert cut(whole) == [whole[0], whole[2]]


def test_ranges_lie_between_begins_and_ends_of_the_same_queues() -> None:
    a, b, c = (Queue("T", "a", number) for number in range(3))

    found = ranges_between({a: 1, b: 5, c: 0}, {b: 5, a: 4})

    assert found == [QueueRange(a, 1, 4)]
    assert str(found[0]) == "T[a:0][1, 4)"
