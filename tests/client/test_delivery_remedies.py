"""What a producer does about each thing that may go wrong, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from pocketmq.client import Message, Queue, Receipt
from pocketmq.client.producing.batch import ProducerBatch
from pocketmq.client.producing.delivery import RetryLog
from pocketmq.proto.errors import (
    ConnectFailed,
    DeliveryTimeout,
    InvalidArgument,
    MasterFenced,
    MessageTooLarge,
    OutOfOrderSequence,
    Overloaded,
    ProducerFenced,
    SendFailed,
    Unsupported,
)

from .faulty_network import FaultyNetwork, sail


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Retries are logged."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


async def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    sea = FaultyNetwork([])
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 10)
        await sea.clock.advance(10)
        sea.brokers[0].sequences.forget()

    sea.send("named", 10)
    await sea.clock.advance(10)
    await sea.end()

    # Nothing is known of the producer when the second comes: the first was acknowledged, so nothing is in doubt.
    assert [outcome.result().queue_offset for _, outcome in sea.sent] == [0, 1, 2]
    assert (sea.counters.epochs, sea.counters.possible_repeats) == (2, 0)


async def test_what_may_be_twice_after_a_broker_forgot_is_counted() -> None:
    sea = FaultyNetwork(["fine", "stored, lost"])
    await sea.producer.start()
    sea.send("named", 10)
    await sea.clock.advance(10)
    sea.send("named", 10)
    await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    sea.brokers[0].sequences.forget()
    await sea.clock.advance(1_000)
    await sea.end()

    assert sea.sent[1][1].result().queue_offset == 2
    assert Counter(body for _, body in sea.stored())[sea.sent[1][0].body] == 2
    assert sea.counters.possible_repeats == 1


@pytest.mark.parametrize(("fault", "broker"), [("overloaded", "b"), ("stored, lost", "a")])
async def test_only_what_was_refused_for_sure_goes_elsewhere(fault: str, broker: str) -> None:
    sea = FaultyNetwork([fault])
    await sea.producer.start()
    sea.producer._sender._choice.choose = lambda message, queues: queues[0]  # type: ignore[method-assign]

    (receipt,) = await sail(sea, "any")

    assert isinstance(receipt, Receipt)
    assert (receipt.broker, receipt.repeated) == (broker, fault == "stored, lost")
    assert sea.counters.moves == (broker == "b")


async def test_a_failed_run_that_may_be_stored_leaves_no_gap() -> None:
    sea = FaultyNetwork(["fine", "lost"], {"retries": 0})

    first, second, third = await sail(sea, "named", "named", "named")

    assert isinstance(first, Receipt)
    assert isinstance(second, SendFailed)
    assert not isinstance(second, DeliveryTimeout)
    assert isinstance(third, Receipt)
    assert (third.queue_offset, sea.counters.epochs) == (1, 1)


async def test_what_is_bad_was_never_stored_whatever_was_lost_before() -> None:
    sea = FaultyNetwork(["lost"])
    await sea.producer.start()
    for kind in ("bad", "named"):
        sea.send(kind, 10)
    await sea.clock.advance(2_000)

    assert [type(error) for error in sea.failed()] == [InvalidArgument]
    assert (sea.counters.epochs, sea.counters.possible_repeats) == (0, 0)
    await sea.end()


async def test_a_failed_run_that_is_not_stored_gives_its_numbers_back() -> None:
    sea = FaultyNetwork(["fine", "overloaded"], {"retries": 0})

    _, second, third = await sail(sea, "named", "named", "named")

    assert isinstance(second, SendFailed)
    assert isinstance(third, Receipt)
    assert sea.counters.epochs == 0


async def test_a_producer_that_was_replaced_is_at_its_end() -> None:
    sea = FaultyNetwork([ProducerFenced("a newer epoch")])
    await sea.producer.start()
    for _ in range(3):
        sea.send("named", 700)

    await sea.clock.advance(10)

    assert [type(error) for error in sea.failed()] == [ProducerFenced] * 3
    with pytest.raises(ProducerFenced):
        sea.producer.send_nowait(Message("orders", b"x"))
    await sea.end()


async def test_a_gap_is_closed_by_a_new_epoch() -> None:
    sea = FaultyNetwork([OutOfOrderSequence("expected 0")])

    (receipt,) = await sail(sea, "named")

    assert isinstance(receipt, Receipt)
    assert (sea.counters.epochs, sea.counters.possible_repeats) == (1, 0)


async def test_a_run_that_never_leaves_expires() -> None:
    sea = FaultyNetwork(["unreachable"] * 1_000)
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 1_000)
    await sea.clock.advance(3_000)

    assert [type(error) for error in sea.failed()] == [DeliveryTimeout] * 2
    assert "nobody there" in str(sea.failed()[0])
    assert sea.counters.expired == 2
    await sea.end()


async def test_a_message_above_the_largest_request_is_refused() -> None:
    sea = FaultyNetwork([], {"max_request_size": 400})
    await sea.producer.start()

    with pytest.raises(MessageTooLarge, match=r"limit is 400 \(max_request_size\)"):
        await sea.producer.send(Message("orders", b"x" * 400))
    with pytest.raises(MessageTooLarge):
        await sea.producer.send_many([Message("orders", b"x"), Message("orders", b"x" * 400)])
    await sea.end()


async def test_a_broker_that_does_not_serve_what_is_asked_is_told_at_once() -> None:
    sea = FaultyNetwork([Unsupported("no replicas")])

    (error,) = await sail(sea, "named")

    assert isinstance(error, Unsupported)


class ManualHand:
    """A clock that shows what it is set to."""

    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def run_for(broker: str) -> ProducerBatch:
    return Mock(queue=Queue("T", broker, 0), messages=[b"x"], attempts=1)


def test_retries_are_one_line_and_then_a_summary(caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)
    caplog.set_level(logging.INFO, "pocketmq.client")
    hand = ManualHand()
    log = RetryLog(hand)

    for hand.now_ms in range(0, 20_000, 100):
        for broker in ("a", "b"):
            log.retried(run_for(broker), ConnectFailed("no"), quiet=False)
        log.retried(run_for("c"), MasterFenced("no"), quiet=True)
    log.acknowledged("a")
    log.acknowledged("a")
    log.acknowledged("c")

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 * 2 + 1, lines
    assert "batch not acknowledged, retrying queue=T[a:0]" in lines[0]
    assert "retries=100" in lines[2]
    assert lines[-1] == "batches acknowledged again broker=a"


def test_a_broker_that_fails_now_and_then_is_no_flood(caplog: pytest.LogCaptureFixture) -> None:
    logging.disable(logging.NOTSET)
    caplog.set_level(logging.INFO, "pocketmq.client")
    hand = ManualHand()
    log = RetryLog(hand)

    for hand.now_ms in range(0, 20_000, 100):
        log.retried(run_for("a"), Overloaded("full"), quiet=False)
        log.acknowledged("a")

    assert len(caplog.records) == 2 * 2
