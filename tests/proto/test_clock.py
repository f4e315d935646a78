"""The clock that can be moved."""

import asyncio

from pocketmq.proto.clock import SystemClock, VirtualClock


async def test_the_virtual_clock_wakes_sleepers_in_order_at_their_instants() -> None:
    clock = VirtualClock(1000)
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, instant_ms: int) -> None:
        await clock.sleep_until(instant_ms)
        woken.append((name, clock.now_ms()))

    async with asyncio.TaskGroup() as group:
        for name, instant_ms in (("late", 9000), ("early", 2000), ("never", 10_000), ("past", 5)):
            group.create_task(sleeper(name, instant_ms))
        await clock.advance(8500)
        assert woken == [("past", 1000), ("early", 2000), ("late", 9000)]
        await clock.advance(10_000)

    assert woken[-1] == ("never", 10_000)
    assert clock.now_ms() == 19_500


async def test_the_system_clock_never_steps_back() -> None:
    clock = SystemClock()
    first = clock.now_ms()

    await clock.sleep_until(first)

    assert clock.now_ms() >= first
