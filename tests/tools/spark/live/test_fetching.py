"""Reading a range: in order, each message once, whatever the sizes of fetches, and losses are told."""

from concurrent.futures import Future

import pytest
from hypothesis import given, strategies as st

from pocketmq.client.queue import Queue
from pocketmq.proto.errors import CorruptRecord, OffsetOutOfRange, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import NO_HOST, encode_run
from pocketmq.tools.spark.live.losses import Losses
from pocketmq.tools.spark.live.range_reading import fetched
from pocketmq.tools.spark.live.ranges import QueueRange

from .fake_cluster import queue


def record(offset: int) -> bytes:
    """Return a record that has OFFSET in its queue, and in its body."""
    body = b"%d" % offset
    encoded, _ = encode_run("orders", 0, [(body, b"")], born_timestamp_ms=0, born_host=NO_HOST)
    return encoded[:20] + offset.to_bytes(8, "big") + encoded[28:]


class FakeBroker:
    """Serves the records of OFFSETS from LEAST on up to END, AT_ONCE a fetch; it ignores filters and bounds."""

    def __init__(self, offsets: list[int], *, end: int, at_once: int = 3, least: int = 0) -> None:
        self.offsets = offsets
        self.end = end
        self.at_once = at_once
        self.least = least
        self.asked: list[int] = []

    def fetch(
        self, queue: Queue, offset: int, count: int, wanted: pb.Filter | None
    ) -> Future[pb.FetchReply]:
        self.asked.append(offset)
        future: Future[pb.FetchReply] = Future()
        if offset < self.least:
            error: PocketMQError = OffsetOutOfRange("too old", min_offset=self.least)
            future.set_exception(error)
            return future
        found = [one for one in self.offsets if one >= offset][: self.at_once]
        behind = found[-1] + 1 if len(found) == self.at_once else self.end
        future.set_result(
            pb.FetchReply(records=b"".join(map(record, found)), next_offset=max(behind, offset))
        )
        return future


def read(broker: FakeBroker, begin: int, end: int, *, filtered: bool, fatal: bool) -> list[int]:
    wanted = pb.Filter(kind=pb.Filter.TAG, expression="x") if filtered else None
    parts = fetched(broker, QueueRange(queue(0), begin, end), wanted, Losses(fatal))
    return [int(part.run.body(row)) for part in parts for row in range(part.begin, part.end)]


@given(
    st.sets(st.integers(0, 60)),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 9),
)
def test_a_range_brings_its_messages_in_order_each_once(
    present: set[int], begin: int, end: int, at_once: int
) -> None:
    broker = FakeBroker(sorted(present), end=61, at_once=at_once)

    found = read(broker, begin, end, filtered=True, fatal=True)

    assert found == [offset for offset in sorted(present) if begin <= offset < end]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_without_a_filter_a_dense_range_loses_nothing(begin: int, end: int, at_once: int) -> None:
    broker = FakeBroker(list(range(41)), end=41, at_once=at_once)

    assert read(broker, begin, end, filtered=False, fatal=True) == list(range(begin, end))


def test_the_next_fetch_is_under_way_before_the_last_one_is_used() -> None:
    broker = FakeBroker(list(range(9)), end=9)
    parts = fetched(broker, QueueRange(queue(0), 0, 9), None, Losses(True))

    next(parts)

    assert broker.asked == [0, 3]


def test_a_hole_is_a_loss() -> None:
    broker = FakeBroker([0, 1, 5, 6], end=7)

    with pytest.raises(OffsetOutOfRange, match="3 messages between offsets 0 and 6"):
        read(broker, 0, 7, filtered=False, fatal=True)
    assert read(broker, 0, 7, filtered=False, fatal=False) == [0, 1, 5, 6]


def test_what_expires_while_it_is_read_is_a_loss() -> None:
    broker = FakeBroker(list(range(4, 9)), end=9, least=4)

    with pytest.raises(OffsetOutOfRange, match="too old"):
        read(broker, 1, 9, filtered=False, fatal=True)
    assert read(broker, 1, 9, filtered=False, fatal=False) == [4, 5, 6, 7, 8]


def test_a_range_that_has_expired_as_a_whole_brings_nothing() -> None:
    broker = FakeBroker([9], end=10, least=9)

    assert read(broker, 1, 5, filtered=False, fatal=False) == []


def test_a_broker_that_brings_nothing_does_not_hold_a_task_for_ever() -> None:
    broker = FakeBroker([], end=4)

    with pytest.raises(CorruptRecord, match="6 messages must follow"):
        read(broker, 4, 10, filtered=True, fatal=False)
