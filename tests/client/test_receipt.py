"""Futures that cost little, held against what concurrent futures promise; and outcomes that are cut."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from pocketmq.client import Message, Queue, Receipt, Receipts
from pocketmq.client.message import record_size
from pocketmq.client.producing.receipt import RunReceipts, SendFuture, acknowledge_all
from pocketmq.client.producing.run import MessageRow, Parcel
from pocketmq.proto.errors import SendFailed
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

MESSAGE = Message("orders", b"x")


def receipts(count: int = 3) -> RunReceipts:
    ids = [b"id-%d" % number for number in range(count)]
    reply = pb.ProduceReply(first_queue_offset=10)
    return RunReceipts(Queue("orders", "a", 0), ids, [100] * count, reply, "")


def test_an_acknowledged_future_has_its_receipt() -> None:
    futures = [SendFuture() for _ in range(3)]
    assert not futures[0].done()

    acknowledge_all(futures, receipts(), 0)

    assert [future.result(0).queue_offset for future in futures] == [10, 11, 12]
    assert futures[1].exception() is None
    assert futures[1].done()
    assert not futures[1].running()
    assert not futures[1].cancelled()


def test_a_refused_future_raises() -> None:
    future = SendFuture()

    future.refuse(SendFailed("no"))

    with pytest.raises(SendFailed):
        future.result()
    assert isinstance(future.exception(), SendFailed)


def test_a_future_cannot_be_cancelled_and_may_time_out() -> None:
    future = SendFuture()

    assert future.cancel() is False
    with pytest.raises(TimeoutError):
        future.result(timeout=0)


@pytest.mark.parametrize("fail", [False, True])
def test_callbacks_are_called_once_whenever_they_come(fail: bool) -> None:
    future = SendFuture()
    called: list[object] = []
    future.add_done_callback(called.append)

    settle(future, fail)
    future.add_done_callback(called.append)

    assert called == [future, future]


def settle(future: SendFuture, fail: bool) -> None:
    if fail:
        future.refuse(SendFailed("no"))
    else:
        future.acknowledge(receipts(), 0)


@pytest.mark.parametrize("fail", [False, True])
def test_threads_that_wait_are_woken(fail: bool) -> None:
    futures = [SendFuture() for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = [pool.submit(future.exception) for future in futures * 2]
        joined = pool.submit(concurrent.futures.wait, futures)

        for future in futures:
            settle(future, fail)

        assert all((one.result(10) is not None) is fail for one in waiting)
        assert joined.result(10).done == set(futures)


def test_no_wake_up_is_lost_between_two_threads() -> None:
    for _ in range(300):
        future = SendFuture()
        thread = threading.Thread(target=settle, args=(future, False))
        thread.start()
        assert future.result(timeout=10).message_id == "id-0"
        thread.join()


async def test_a_coroutine_may_wait_for_one() -> None:
    future = SendFuture()
    wrapped = asyncio.wrap_future(future)

    future.acknowledge(receipts(), 2)

    assert (await wrapped).queue_offset == 12


def test_as_completed_takes_them() -> None:
    first, second = SendFuture(), SendFuture()
    acknowledge_all((first, second), receipts(), 0)
    futures: list[Future[Receipt]] = [first, second]

    assert set(concurrent.futures.as_completed(futures)) == {first, second}


def test_a_cut_row_waits_in_two_parts() -> None:
    futures = [SendFuture() for _ in range(3)]
    first, second = MessageRow([MESSAGE] * 3, [0, 200, 400, 600], futures).cut(1)

    second.refuse(SendFailed("no"))
    first.acknowledge(receipts(), 0)

    assert (len(first.messages), len(second.messages), second.senders) == (1, 2, 2)
    assert (first.size_bytes, second.size_bytes) == (200, 400)
    assert [future.exception() is None for future in futures] == [True, False, False]


@pytest.mark.parametrize("fail", [False, True])
def test_a_sender_of_many_that_was_cut_hears_once(fail: bool) -> None:
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    size = record_size(MESSAGE)
    first, second = Parcel([MESSAGE] * 3, 3 * size, outcome).cut(2)

    assert (first.size_bytes, second.size_bytes) == (2 * size, size)
    second.acknowledge(receipts(), 2)
    assert not outcome.done()
    if fail:
        first.refuse(SendFailed("no"))
    else:
        first.acknowledge(receipts(), 0)

    if fail:
        assert isinstance(outcome.exception(), SendFailed)
    else:
        found = outcome.result()
        assert isinstance(found, Receipts)
        assert [receipt.message_id for receipt in found] == ["id-0", "id-1", "id-2"]


def test_a_sender_that_has_gone_is_left_alone() -> None:
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    outcome.cancel()

    parcel = Parcel((MESSAGE,), record_size(MESSAGE), outcome, single=True)
    parcel.acknowledge(receipts(), 0)
    parcel.refuse(SendFailed("no"))

    assert outcome.cancelled()
