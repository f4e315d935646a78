"""A receive whose answer was lost is repeated under its attempt's id."""

from __future__ import annotations

from pathlib import Path

import pytest

from .popping import INVISIBLE_MS, Popping, seen


async def test_the_same_messages_come_at_once_without_counting(broker: Popping) -> None:
    broker.send(b"1", b"2", b"3")
    first = broker.pop(2, attempt_id="x")
    broker.ack(first[0])

    again = broker.pop(2, attempt_id="x")

    assert seen(again) == [(b"2", 1)]
    assert [one.handle for one in again] == [first[1].handle]
    broker.ack(*again)
    assert seen(broker.pop(attempt_id="x")) == [(b"3", 1)]


@pytest.mark.parametrize("clean", [True, False])
async def test_an_attempt_outlasts_the_broker(tmp_path: Path, clean: bool) -> None:
    broker = Popping(tmp_path, queues=2)
    broker.send(b"1")
    broker.send(b"2", queue=1)
    first = broker.pop(auto_renew=True, attempt_id="x")

    await broker.restart(clean=clean)

    assert broker.pop(attempt_id="y") == []
    again = broker.pop(auto_renew=True, attempt_id="x")
    assert sorted(seen(again)) == [(b"1", 1), (b"2", 1)]
    assert {one.handle for one in again} == {one.handle for one in first}
    broker.ack(*again)
    assert broker.pops.in_flight == 0
    await broker.stop()


async def test_an_id_that_is_too_long_is_none(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop(attempt_id="x" * 257)

    assert broker.pop(attempt_id="x" * 257) == []


async def test_an_attempt_that_is_over_is_a_new_one(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop(attempt_id="x")
    await broker.clock.advance(INVISIBLE_MS)

    assert seen(broker.pop(attempt_id="x")) == [(b"1", 2)]
