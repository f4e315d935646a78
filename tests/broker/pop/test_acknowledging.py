"""What a receipt handle finishes, and which handles are refused."""

from __future__ import annotations

import pytest

from pocketmq.broker.pop.handles import decode_handle, encode_handle
from pocketmq.proto.errors import InvalidReceiptHandle

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, seen


async def test_what_is_acknowledged_does_not_come_again(broker: Popping) -> None:
    broker.send(b"1", b"2")
    first, _ = broker.pop()

    broker.ack(first)
    await broker.clock.advance(INVISIBLE_MS)

    assert seen(broker.pop()) == [(b"2", 2)]


async def test_the_offset_is_that_of_the_lowest_that_is_not_finished(broker: Popping) -> None:
    broker.send(b"1", b"2", b"3")
    one, two, three = broker.pop()

    assert broker.committed() == 0
    broker.ack(two)
    assert broker.committed() == 0
    broker.ack(one)
    assert broker.committed() == 2
    broker.ack(three)
    assert broker.committed() == 3


async def test_again_is_fine(broker: Popping) -> None:
    broker.send(b"1", b"2")
    one, _ = broker.pop()

    broker.ack(one)
    broker.ack(one)


@pytest.mark.parametrize(
    "handle", ["", "nonsense", "p0-0", "p0-0-zz", "x0-0-0", "p0-0-1", "p7-0-1", "p0-63-1"]
)
async def test_a_handle_that_never_was_is_refused(broker: Popping, handle: str) -> None:
    broker.send(b"1")
    broker.pop()

    with pytest.raises(InvalidReceiptHandle):
        broker.pops.acknowledge(GROUP, TOPIC, handle)


async def test_a_handle_is_refused_once_its_time_is_over(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop()

    await broker.clock.advance(INVISIBLE_MS)

    with pytest.raises(InvalidReceiptHandle, match="its time is over"):
        broker.ack(one)


async def test_the_handle_of_an_earlier_delivery_does_not_finish_a_later_one(
    broker: Popping,
) -> None:
    broker.send(b"1")
    (one,) = broker.pop()
    await broker.clock.advance(INVISIBLE_MS)
    (again,) = broker.pop()

    with pytest.raises(InvalidReceiptHandle, match="later delivery"):
        broker.ack(one)
    broker.ack(again)


async def test_another_group_is_not_told_anything(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop()

    with pytest.raises(InvalidReceiptHandle):
        broker.ack(one, group="stranger")
    assert len(broker.pops._tables) == 1


async def test_nobody_names_a_delivery_by_a_handle_of_its_neighbour(broker: Popping) -> None:
    broker.send(b"1", b"2")
    one, two = broker.pop()
    known, other = decode_handle(one.handle), decode_handle(two.handle)
    for guessed in range(known.serial - 300, known.serial + 300):
        guess = encode_handle(False, other.queue, other.offset, max(guessed, 1))

        with pytest.raises(InvalidReceiptHandle):
            broker.pops.acknowledge(GROUP, TOPIC, guess)
