"""Futures that cost little, held against what concurrent futures promise; and outcomes that are cut."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from pocketmq.client import Message, Queue, Receipt, Receipts
from pocketmq.client.message import record_size
from pocketmq.client.producing.batch_parts import JointPart, SinglesPart
from pocketmq.client.producing.receipt import BatchReceipts, SendFuture, acknowledge_all
from pocketmq.proto.errors import SendFailed
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

MESSAGE = Message("orders", b"x")


def receipts(count: int = 3) -> BatchReceipts:
    ids = [b"id-%d" % number for number in range(count)]
    reply = pb.ProduceReply(first_queue_offset=10)
    return BatchReceipts(Queue("orders", "a", 0), ids, [100] * count, reply, "")


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

    future.fail(SendFailed("no"))

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
        future.fail(SendFailed("no"))
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


def test_callbacks_that_come_amid_the_end_are_called_once_each() -> None:
    for _ in range(300):
        future = SendFuture()
        called: list[int] = []
        callbacks = [
            partial(lambda number, row, _: row.append(number), n, called) for n in range(4)
        ]
        adding = [threading.Thread(target=future.add_done_callback, args=(c,)) for c in callbacks]
        settling = threading.Thread(target=settle, args=(future, False))
        for thread in (*adding[:2], settling, *adding[2:]):
            thread.start()
        for thread in (*adding, settling):
            thread.join()

        assert sorted(called) == [0, 1, 2, 3]


def test_a_callback_is_told_from_others_that_it_says_it_equals() -> None:
    class Alike:
        def __init__(self) -> None:
            self.called = 0

        def __call__(self, _: object) -> None:
            self.called += 1

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    future, callbacks = SendFuture(), [Alike() for _ in range(3)]
    for callback in callbacks:
        future.add_done_callback(callback)

    future.acknowledge(receipts(), 0)

    assert [callback.called for callback in callbacks] == [1, 1, 1]


def test_a_callback_that_raises_is_logged_and_keeps_no_other_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    future = SendFuture()
    called: list[object] = []

    def fail(_: object) -> None:
        raise ZeroDivisionError

    future.add_done_callback(fail)
    future.add_done_callback(called.append)
    future.acknowledge(receipts(), 0)
    future.add_done_callback(fail)

    assert called == [future]
    assert [record.name for record in caplog.records] == ["concurrent.futures"] * 2
    assert all(record.exc_info for record in caplog.records)


def test_a_callback_keeps_no_thread_waiting() -> None:
    future = SendFuture()
    heard = threading.Event()
    future.add_done_callback(lambda _: heard.wait(30))
    future.add_done_callback(lambda _: settled.append(heard.is_set()))
    settled: list[bool] = []

    def wait() -> None:
        future.result()
        heard.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not future._callbacks or len(future._callbacks) < 3:
        heard.wait(0.001)
    future.acknowledge(receipts(), 0)
    waiting.join()

    assert settled == [True]


def test_who_gave_up_waiting_leaves_nothing_behind() -> None:
    future = SendFuture()

    for timeout in (0, -1, 0.001):
        with pytest.raises(TimeoutError):
            future.result(timeout)
    with pytest.raises(TimeoutError):
        future.exception(0)

    assert future._callbacks == []


def test_an_interrupt_ends_the_wait_and_leaves_nothing_behind() -> None:
    future, over = SendFuture(), threading.Event()

    def raise_once(_number: int, _frame: object) -> None:
        if not over.is_set():
            over.set()
            raise KeyboardInterrupt

    def interrupt() -> None:  # Again: a signal may come just before the main thread waits.
        while not over.wait(0.02):
            if future._callbacks:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    usual = signal.signal(signal.SIGINT, raise_once)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            future.result(60)
        future.acknowledge(receipts(), 0)
        interrupting.join()
    finally:
        signal.signal(signal.SIGINT, usual)

    assert future._callbacks == []
    assert future.result(0).queue_offset == 10


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
    first, second = SinglesPart([MESSAGE] * 3, [0, 200, 400, 600], futures).cut(1)

    second.fail(SendFailed("no"))
    first.acknowledge(receipts(), 0)

    assert (len(first.messages), len(second.messages), second.senders) == (1, 2, 2)
    assert (first.size_bytes, second.size_bytes) == (200, 400)
    assert [future.exception() is None for future in futures] == [True, False, False]


@pytest.mark.parametrize("fail", [False, True])
def test_a_sender_of_many_that_was_cut_hears_once(fail: bool) -> None:
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    size = record_size(MESSAGE)
    first, second = JointPart([MESSAGE] * 3, 3 * size, outcome).cut(2)

    assert (first.size_bytes, second.size_bytes) == (2 * size, size)
    second.acknowledge(receipts(), 2)
    assert not outcome.done()
    if fail:
        first.fail(SendFailed("no"))
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

    parcel = JointPart((MESSAGE,), record_size(MESSAGE), outcome, single=True)
    parcel.acknowledge(receipts(), 0)
    parcel.fail(SendFailed("no"))

    assert outcome.cancelled()
