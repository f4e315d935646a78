"""Transactions of a producer against a cluster in memory: half messages, outcomes, and answers to checks."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, Message, ReceivedMessage, Resolution
from pocketmq.client.producing.transaction import Verdict
from pocketmq.client.producing.transaction_checks import CHECKS_MAX, Checker
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    InvalidArgument,
    RequestTimeout,
    SendFailed,
    TransactionResolved,
    Unsupported,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record, encode_record

from .fake_broker import property_of
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections

MESSAGE = Message("orders", b"one", key="order-1")


def producer(
    cluster: FakeCluster,
    clock: VirtualClock | None = None,
    checker: Checker | None = None,
    **settings: Any,
) -> AsyncProducer:
    settings = {"group": "G"} | settings
    return AsyncProducer(
        clock=clock or VirtualClock(),
        connections=FakeConnections(cluster),
        random=Random(7),
        checker=checker,
        **settings,
    )


async def test_leaving_the_block_commits_the_half_message() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)

    async with producer(cluster) as sending:
        async with sending.transaction(MESSAGE) as transaction:
            half = transaction.receipt
            assert cluster.broker.ends == []
        await transaction.commit()

    assert property_of(cluster.broker, "orders", "TRAN_MSG") == ["true"]
    assert property_of(cluster.broker, "orders", "PGROUP") == ["G"]
    assert property_of(cluster.broker, "orders", "UNIQ_KEY") == [half.message_id]
    (end,) = cluster.broker.ends
    assert (end.group, end.topic, end.transaction_id) == ("G", "orders", half.message_id)
    assert (end.resolution, end.half_log_offset, end.from_check) == (pb.COMMIT, 0, False)
    receipt = transaction.commit_receipt
    assert receipt is not None
    assert (receipt.queue, receipt.queue_offset, receipt.log_offset) == (3, 70, 7_000)
    assert receipt.message_id == half.message_id
    assert transaction.resolution is Resolution.COMMIT


async def test_an_exception_in_the_block_rolls_back() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        transaction = sending.transaction(MESSAGE)
        with pytest.raises(ZeroDivisionError):
            async with transaction:
                _ = 1 // 0

    assert [end.resolution for end in cluster.broker.ends] == [pb.ROLLBACK]
    assert transaction.commit_receipt is None


async def test_the_applications_error_is_not_hidden_by_a_lost_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.end_faults.append(TransactionResolved("given up"))

    async with producer(cluster) as sending:
        with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
            async with sending.transaction(MESSAGE):
                _ = 1 // 0

    assert "transaction not rolled back" in caplog.text


async def test_what_was_decided_in_the_block_stands() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        async with sending.transaction(MESSAGE) as transaction:
            await transaction.rollback()
            with pytest.raises(TransactionResolved, match="have called rollback already"):
                await transaction.commit()
        async with sending.transaction(MESSAGE) as transaction:
            transaction.leave_open()

    assert [end.resolution for end in cluster.broker.ends] == [pb.ROLLBACK]


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (True, [pb.COMMIT]),
        (Resolution.COMMIT, [pb.COMMIT]),
        (False, [pb.ROLLBACK]),
        (None, []),
        (Resolution.UNKNOWN, []),
    ],
)
async def test_a_local_function_decides(verdict: Verdict, told: list[int]) -> None:
    cluster = FakeCluster.of_one("orders")
    seen: list[Message] = []

    async def local(message: Message) -> Verdict:
        seen.append(message)
        return verdict

    async with producer(cluster) as sending:
        await sending.send_in_transaction(MESSAGE, local)

    assert seen == [MESSAGE]
    assert [end.resolution for end in cluster.broker.ends] == told


async def test_a_local_function_that_raises_rolls_back() -> None:
    cluster = FakeCluster.of_one("orders")

    async def local(message: Message) -> Verdict:
        raise LookupError(message.topic)

    async def odd(message: Message) -> Any:
        return "yes"

    async with producer(cluster) as sending:
        with pytest.raises(LookupError):
            await sending.send_in_transaction(MESSAGE, local)
        with pytest.raises(InvalidArgument, match="return True to commit"):
            await sending.send_in_transaction(MESSAGE, odd)

    assert [end.resolution for end in cluster.broker.ends] == [pb.ROLLBACK, pb.ROLLBACK]


async def test_an_outcome_is_told_again_after_a_loss() -> None:
    cluster = FakeCluster.of_one("orders")
    clock = VirtualClock()
    cluster.broker.end_faults += [ConnectionLost("lost"), RequestTimeout("slow")]

    async with producer(cluster, clock) as sending, sending.transaction(MESSAGE) as transaction:
        commit = asyncio.ensure_future(transaction.commit())
        await clock.advance(1_000)
        assert (await commit).queue_offset == 70

    assert len(cluster.broker.ends) == 3


async def test_when_the_time_is_over_the_check_decides() -> None:
    cluster = FakeCluster.of_one("orders")
    clock = VirtualClock()
    cluster.broker.end_faults += [ConnectionLost("lost")] * 100

    async with producer(cluster, clock, delivery_timeout_ms=2_000) as sending:
        async with sending.transaction(MESSAGE) as transaction:
            commit = asyncio.ensure_future(transaction.commit())
            await clock.advance(2_000)
            with pytest.raises(SendFailed, match="will ask a producer of the group"):
                await commit
        assert transaction.commit_receipt is None


async def test_what_the_broker_refuses_for_good_is_raised_at_once() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.end_faults.append(TransactionResolved("given up"))

    async with producer(cluster) as sending:
        with pytest.raises(TransactionResolved, match="given up"):
            async with sending.transaction(MESSAGE):
                pass

    assert len(cluster.broker.ends) == 1


async def test_bad_use_is_refused_before_anything_is_sent() -> None:
    cluster = FakeCluster.of_one("orders")

    async with producer(cluster) as sending:
        with pytest.raises(InvalidArgument, match="cannot be delayed"):
            sending.transaction(Message("orders", b"x", delay="1m"))
        with pytest.raises(InvalidArgument, match="cannot be delayed"):
            sending.transaction(Message("orders", b"x", delay_level=3))
        with pytest.raises(InvalidArgument, match="has no value"):
            sending.transaction("text")  # type: ignore[call-overload]
        with pytest.raises(ClientClosed, match="has not started"):
            await sending.transaction(MESSAGE).commit()
    async with producer(cluster, group="") as sending:
        with pytest.raises(ConfigError, match="need a producer group"):
            sending.transaction(MESSAGE)
    with pytest.raises(ConfigError, match="needs a producer group"):
        producer(cluster, checker=lambda message: None, group="")
    with pytest.raises(ConfigError, match="group"):
        producer(cluster, group="bad/name")
    assert cluster.broker.runs == []


# --- checks


def check(unique: str = "ID") -> pb.TransactionCheck:
    half = Record(
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        body=b"one",
        queue_offset=5,
        log_offset=500,
        properties={"UNIQ_KEY": unique, "REAL_TOPIC": "orders", "REAL_QID": "2", "KEYS": "k"},
    )
    return pb.TransactionCheck(
        group="G",
        topic="orders",
        transaction_id=unique,
        times=1,
        half_log_offset=500,
        record=encode_record(half),
    )


async def ended(cluster: FakeCluster, count: int) -> list[pb.EndTransactionRequest]:
    """Return the outcomes once there are COUNT."""
    async with asyncio.timeout(5):
        while len(cluster.broker.ends) < count:  # noqa: ASYNC110  (the fake has no event for it)
            await asyncio.sleep(0)
    return cluster.broker.ends


async def test_a_checker_sees_the_message_as_it_was_sent() -> None:
    cluster = FakeCluster.of_one("orders")
    seen: list[ReceivedMessage] = []

    async def checker(message: ReceivedMessage) -> Verdict:
        seen.append(message)
        return True

    async with producer(cluster, checker=checker):
        cluster.broker.checks.put_nowait(check())
        (end,) = await ended(cluster, 1)

    (message,) = seen
    assert (message.topic, message.queue, message.body, message.key) == ("orders", 2, b"one", "k")
    assert (end.group, end.topic, end.transaction_id) == ("G", "orders", "ID")
    assert (end.resolution, end.from_check, end.half_log_offset) == (pb.COMMIT, True, 500)


async def test_an_ordinary_function_checks_in_a_thread_of_its_own() -> None:
    cluster = FakeCluster.of_one("orders")

    def checker(message: ReceivedMessage) -> Verdict:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return Resolution.ROLLBACK

    async with producer(cluster, checker=checker):
        cluster.broker.checks.put_nowait(check())
        (end,) = await ended(cluster, 1)

    assert end.resolution == pb.ROLLBACK


async def test_a_checker_that_fails_or_does_not_know_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster.of_one("orders")
    verdicts: list[Any] = [LookupError("no database"), None, "yes", True]

    async def checker(message: ReceivedMessage) -> Verdict:
        verdict = verdicts.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict  # type: ignore[no-any-return]

    async with producer(cluster, checker=checker):
        for number in range(4):
            cluster.broker.checks.put_nowait(check(f"{number}"))
        (end,) = await ended(cluster, 1)

    assert end.transaction_id == "3"
    assert "transaction checker failed, broker will ask again broker=broker-a id=0" in caplog.text
    assert "transaction checker failed, broker will ask again broker=broker-a id=2" in caplog.text


async def test_an_answer_that_is_refused_breaks_nothing() -> None:
    cluster = FakeCluster.of_one("orders")
    cluster.broker.end_faults.append(TransactionResolved("committed already"))

    async def checker(message: ReceivedMessage) -> Verdict:
        return False

    async with producer(cluster, checker=checker):
        cluster.broker.checks.put_nowait(check("1"))
        cluster.broker.checks.put_nowait(check("2"))
        assert len(await ended(cluster, 2)) == 2


async def test_checks_under_way_are_bounded() -> None:
    cluster = FakeCluster.of_one("orders")
    gate = asyncio.Event()
    running = 0

    async def checker(message: ReceivedMessage) -> Verdict:
        nonlocal running
        running += 1
        await gate.wait()
        return True

    async with producer(cluster, checker=checker):
        for number in range(2 * CHECKS_MAX):
            cluster.broker.checks.put_nowait(check(f"{number}"))
        for _ in range(200):
            await asyncio.sleep(0)
        assert running == CHECKS_MAX
        assert cluster.broker.checks.qsize() >= CHECKS_MAX - 1
        gate.set()
        await ended(cluster, 2 * CHECKS_MAX)


async def test_a_broken_stream_is_opened_again_and_new_brokers_are_found() -> None:
    cluster = FakeCluster.of_one("orders")
    clock = VirtualClock()
    address = cluster.broker.address
    cluster.lost.add(address)

    async def checker(message: ReceivedMessage) -> Verdict:
        return True

    async with producer(cluster, clock, checker):
        await clock.advance(1_000)
        cluster.lost.clear()
        cluster.broker.checks.put_nowait(check())
        await clock.advance(5_000)
        assert len(await ended(cluster, 1)) == 1
        assert cluster.asked.count(address) < 12


async def test_a_broker_without_checks_is_asked_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster.of_one("orders")
    clock = VirtualClock()
    tries: list[int] = []

    class Old(asyncio.Queue[pb.TransactionCheck]):
        async def get(self) -> pb.TransactionCheck:
            tries.append(clock.now_ms())
            raise Unsupported("no such method")

    cluster.broker.checks = Old()

    async def checker(message: ReceivedMessage) -> Verdict:
        return True

    async with producer(cluster, clock, checker):
        await clock.advance(59_000)

    assert [tried - tries[0] for tried in tries] == [0, 30_000]
