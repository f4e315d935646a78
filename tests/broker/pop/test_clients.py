"""Leases that last as long as their owner is heard of."""

from __future__ import annotations

from .popping import INVISIBLE_MS, Popping, seen


async def test_a_client_that_is_heard_of_keeps_what_it_has_for_three_hours(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop(auto_renew=True, invisible_ms=0)

    for _ in range(3 * 60 * 6 - 1):
        await broker.clock.advance(10_000)
        broker.pops.client_alive("c")
    assert broker.pop() == []
    await broker.clock.advance(10_000)

    assert seen(broker.pop()) == [(b"1", 2)]
    assert one.invisible_ms == 60_000


async def test_a_client_that_is_not_heard_of_loses_it_after_a_minute(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop(auto_renew=True)
    await broker.clock.advance(30_000)
    broker.pops.client_alive("c")

    await broker.clock.advance(59_999)
    assert broker.pop(client_id="d") == []
    await broker.clock.advance(1)

    assert seen(broker.pop(client_id="d")) == [(b"1", 2)]


async def test_a_client_that_goes_loses_it_within_a_second_and_its_receives_end(
    broker: Popping,
) -> None:
    broker.send(b"1")
    broker.pop(auto_renew=True)
    broker.wait()

    broker.pops.client_gone("c")

    assert broker.answer().deliveries == ()
    broker.wait(client_id="d")
    await broker.clock.advance(1_000)
    assert seen(broker.answer().deliveries) == [(b"1", 2)]


async def test_a_time_that_was_asked_for_outlasts_its_client(broker: Popping) -> None:
    broker.send(b"1")
    broker.pop()

    broker.pops.client_gone("c")

    await broker.clock.advance(INVISIBLE_MS - 1)
    assert broker.pop() == []


async def test_the_first_handle_stays_good_while_it_is_renewed(broker: Popping) -> None:
    broker.send(b"1")
    (one,) = broker.pop(auto_renew=True)
    await broker.clock.advance(50_000)
    broker.pops.client_alive("c")
    await broker.clock.advance(50_000)

    broker.ack(one)

    assert broker.pops._leases._by_owner == {}
    assert len(broker.timers) == 0
