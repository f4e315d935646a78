"""What a broker knows again of deliveries after a clean stop and after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import InvalidReceiptHandle

from .popping import GROUP, INVISIBLE_MS, TOPIC, Popping, bodies, seen


@pytest.mark.parametrize("clean", [True, False])
async def test_what_is_in_flight_stays_so_and_handles_stay_good(
    broker: Popping, clean: bool
) -> None:
    broker.send(b"1", b"2", b"3")
    one, two, three = broker.pop()
    broker.ack(two)

    await broker.restart(clean=clean)

    assert broker.pop() == []
    broker.ack(one)
    assert broker.committed() == 2
    await broker.clock.advance(INVISIBLE_MS)
    assert seen(broker.pop()) == [(b"3", 2)]
    with pytest.raises(InvalidReceiptHandle):
        broker.ack(three)


async def test_what_was_due_is(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop()
    await broker.clock.advance(INVISIBLE_MS)

    await broker.restart()

    assert seen(broker.pop()) == [(b"1", 2)]


async def test_a_client_that_lives_on_has_half_a_minute_at_least(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop(auto_renew=True)
    await broker.clock.advance(55_000)
    broker.pops.client_alive("c")

    await broker.restart()
    await broker.clock.advance(29_999)

    broker.ack(one)


async def test_what_a_client_may_never_have_got_comes_again_while_it_lives(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop(auto_renew=True)

    await broker.restart(clean=False)
    for _ in range(6):
        broker.pops.client_alive("c")
        await broker.clock.advance(10_000)

    assert seen(broker.pop()) == [(b"1", 2)]


async def test_without_a_journal_what_is_not_finished_comes_again(
    broker: Popping, tmp_path: Path
) -> None:
    broker.send(b"1", b"2", b"3")
    broker.ack(broker.pop()[0])
    await broker.stop()
    shutil.rmtree(tmp_path / "store/pocketmq/tables")

    broker._begin()

    assert seen(broker.pop()) == [(b"2", 1), (b"3", 1)]


async def test_a_group_that_was_put_back_while_the_broker_was_down_is_there(
    broker: Popping,
) -> None:
    broker.send(b"1", b"2", b"3")
    broker.ack(*broker.pop())
    broker.offsets.commit(TOPIC, GROUP, 0, 1)

    await broker.restart()

    assert bodies(broker.pop()) == [b"2", b"3"]


async def test_a_group_that_went_on_elsewhere_goes_on_there(broker: Popping) -> None:
    broker.send(b"1", b"2", b"3")
    broker.pop()
    broker.offsets.commit(TOPIC, GROUP, 0, 2)

    await broker.restart()
    await broker.clock.advance(INVISIBLE_MS)

    assert seen(broker.pop()) == [(b"3", 2)]


async def test_a_kill_that_lost_offsets_brings_nothing_again_that_the_journal_knows(
    broker: Popping,
) -> None:
    broker.send(b"1", b"2")
    broker.pop(1)
    broker.offsets.save()
    broker.ack(*broker.pop(1))

    await broker.restart(clean=False)
    await broker.clock.advance(INVISIBLE_MS)

    assert seen(broker.pop()) == [(b"1", 2)]
