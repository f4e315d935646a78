"""`pocketmq clock advance` with official push consumers that fail: every retry comes at its own instant."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from pocketmq.client import AsyncAdmin
from pocketmq.client.administration.clocks import AsyncClockAdmin

from ...served import ServerProcess
from .driver import dialling

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.timeout(300)]

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
#: What a group waits before each of its sixteen retries: the first sixteen delay levels.
WAITS: Final = [
    *(1 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
]


@pytest.mark.parametrize("language", ["python", "java", "go"])
async def test_five_hours_bring_sixteen_retries_and_the_dead_letter_each_at_its_instant(
    language: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "store", "--clock", "virtual") as server:
        nameserver = server.nameserver
        async with (
            AsyncAdmin(nameserver) as admin,
            AsyncClockAdmin(nameserver) as clocks,
            dialling(language, str(server.ready["broker"]), tmp_path / "log") as driver,
        ):
            await admin.create_topic("orders")
            await admin.create_group("g")
            await driver("producer", name="p", topics=["orders"])
            await driver("push", name="c", group="g", topic="orders", failures=99)
            (before,) = await clocks.now()
            await driver("send", client="p", topic="orders", body="poison")
            called = [await driver.event("c")]

            (moved,) = await clocks.advance(5 * HOUR)

            called += [await driver.event("c") for _ in WAITS]
            await asyncio.sleep(0.5)
            letters = await admin.dead_letters("g")

    assert [message["attempt"] for message in called] == list(range(1, 18))
    (letter,) = letters
    assert letter.died_ms - before.now_ms == sum(WAITS)
    assert moved.now_ms == before.now_ms + 5 * HOUR
