"""Streams of the service: windows, order, ends. What single requests do is tested over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pocketmq.broker.groups.lag import check_count
from pocketmq.broker.message_streams import FetchStream, ProduceStream
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..fake_calls import FakeStream


class FakeSends:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.under_way: dict[int, Callable[[pb.ProduceReply], None]] = {}

    def send(self, run: pb.ProduceRun, done: Callable[[pb.ProduceReply], None]) -> None:
        self.under_way[run.run_id] = done

    def answer(self, run_id: int, *, error: bool = False) -> None:
        reply = pb.ProduceReply(run_id=run_id)
        if error:
            reply.error.name = "StoreFull"
        self.under_way.pop(run_id)(reply)


class FakeWaiting:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> bool:
        self.cancelled = True
        return True


class FakeFetches:
    """Every fetch waits until the test answers it."""

    def __init__(self) -> None:
        self.under_way: dict[int, Callable[[pb.FetchReply], None]] = {}
        self.waiting: dict[int, FakeWaiting] = {}

    def fetch(self, request: pb.FetchRequest, done: Callable[[pb.FetchReply], None]) -> FakeWaiting:
        self.under_way[request.fetch_id] = done
        self.waiting[request.fetch_id] = FakeWaiting()
        return self.waiting[request.fetch_id]

    def answer(self, fetch_id: int) -> None:
        self.under_way.pop(fetch_id)(pb.FetchReply(fetch_id=fetch_id))


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
def sends() -> FakeSends:
    return FakeSends()


@pytest.fixture
def fetches() -> FakeFetches:
    return FakeFetches()


def produce(stream: FakeStream, sends: FakeSends, runs_max: int = 10) -> ProduceStream:
    return ProduceStream(stream, sends, runs_max, "h:1")  # type: ignore[arg-type]


def fetch(stream: FakeStream, fetches: FakeFetches, fetches_max: int = 10) -> FetchStream:
    return FetchStream(stream, fetches, fetches_max)  # type: ignore[arg-type]


async def test_a_full_window_holds_back_reading_until_an_answer(
    stream: FakeStream, sends: FakeSends
) -> None:
    receiver = produce(stream, sends, runs_max=2)
    assert receiver.on_message(pb.ProduceRun(run_id=1)) is None

    held = receiver.on_message(pb.ProduceRun(run_id=2))

    assert held is not None
    assert isinstance(held, asyncio.Future)
    assert not held.done()
    sends.answer(1)
    await held


async def test_a_held_back_stream_that_ends_is_let_go(stream: FakeStream, sends: FakeSends) -> None:
    receiver = produce(stream, sends, runs_max=1)
    held = receiver.on_message(pb.ProduceRun(run_id=1))
    assert held is not None

    receiver.on_close()

    await held


async def test_answers_leave_as_they_become_ready(stream: FakeStream, sends: FakeSends) -> None:
    receiver = produce(stream, sends)
    for run_id in (1, 2, 3):
        receiver.on_message(pb.ProduceRun(run_id=run_id))

    for run_id in (2, 3, 1):
        sends.answer(run_id)

    assert [reply.run_id for reply in stream.sent] == [2, 3, 1]


async def test_the_store_host_is_on_the_first_good_reply_alone(
    stream: FakeStream, sends: FakeSends
) -> None:
    receiver = produce(stream, sends)
    for run_id in (1, 2, 3):
        receiver.on_message(pb.ProduceRun(run_id=run_id))

    sends.answer(1, error=True)
    sends.answer(2)
    sends.answer(3)

    assert [reply.store_host for reply in stream.sent] == ["", "h:1", ""]


async def test_without_reply_only_errors_are_told(stream: FakeStream, sends: FakeSends) -> None:
    receiver = produce(stream, sends)
    for run_id in (1, 2):
        receiver.on_message(pb.ProduceRun(run_id=run_id, no_reply=True))

    sends.answer(1)
    sends.answer(2, error=True)

    assert [reply.run_id for reply in stream.sent] == [2]


async def test_a_half_closed_stream_ends_when_all_is_answered(
    stream: FakeStream, sends: FakeSends
) -> None:
    receiver = produce(stream, sends)
    receiver.on_message(pb.ProduceRun(run_id=1))

    receiver.on_end()
    assert not stream.is_over
    sends.answer(1)

    assert stream.is_over
    assert len(stream.sent) == 1


async def test_an_idle_stream_ends_at_once(stream: FakeStream, sends: FakeSends) -> None:
    produce(stream, sends).on_end()

    assert stream.is_over


async def test_a_fetch_stream_that_closes_gives_up_what_waits(
    stream: FakeStream, fetches: FakeFetches
) -> None:
    receiver = fetch(stream, fetches)
    for fetch_id in (1, 2, 3):
        receiver.on_message(pb.FetchRequest(fetch_id=fetch_id))
    fetches.answer(2)

    receiver.on_close()

    cancelled = {number: waiting.cancelled for number, waiting in fetches.waiting.items()}
    assert cancelled == {1: True, 2: False, 3: True}


async def test_fetches_are_held_back_at_their_bound(
    stream: FakeStream, fetches: FakeFetches
) -> None:
    receiver = fetch(stream, fetches, fetches_max=1)

    held = receiver.on_message(pb.FetchRequest(fetch_id=1))

    assert held is not None
    fetches.answer(1)
    await held
    assert [reply.fetch_id for reply in stream.sent] == [1]


@pytest.mark.parametrize("count", [10_001, 2_000_000])
def test_one_request_names_a_bounded_number_of_queues(count: int) -> None:
    with pytest.raises(PocketMQError, match="10000"):
        check_count("queues", count)
