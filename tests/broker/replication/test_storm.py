"""A replica set in one process while everything happens to it: nothing acknowledged is lost, all logs become equal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from pocketmq.proto.errors import DiskFailure, PocketMQError

from ...runs import bodies_of
from .replica_set import TOPIC, Member, ReplicaSet, replica_set

SENDERS: Final = 4
#: How long a sender waits before it takes its message for lost.
SEND_S: Final = 3.0
STEPS: Final = 25
PAUSE_S: Final = 0.8


class Storm:
    """What happens to WORLD, drawn from a seed; and what was sent and acknowledged meanwhile."""

    def __init__(self, world: ReplicaSet, seed: int) -> None:
        self._world = world
        self._random = Random(seed)
        self._down: list[Member] = []
        self._is_over = False
        self._sent = 0
        self.acknowledged: list[bytes] = []

    async def rage(self) -> None:
        """Do what comes, and mend all in the end."""
        senders = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        for _ in range(STEPS):
            await asyncio.sleep(self._random.random() * PAUSE_S)
            await self._do(self._random.choice(self._acts()))
        for member in self._down:
            await member.start()
        self._is_over = True
        await asyncio.gather(*senders)

    async def _send(self) -> None:
        while not self._is_over:
            self._sent += 1
            body = b"%d" % self._sent + b"x" * self._random.choice([0, 50, 700])
            try:
                async with asyncio.timeout(SEND_S):
                    await self._world.masters[0].roles.send(body)
            except (PocketMQError, TimeoutError, AssertionError, IndexError):
                await asyncio.sleep(0.01)  # No master, or it is one no more.
            else:
                self.acknowledged.append(body)

    def _acts(self) -> list[Callable[[Member], Awaitable[None]]]:
        always = [self._expire, self._cut_registry, self._hand_over, self._mute, self._fail]
        return [*always, *([self._start] * 3 if self._down else [self._kill, self._stop])]

    async def _do(self, act: Callable[[Member], Awaitable[None]]) -> None:
        try:
            await act(self._random.choice(self._world.up))
        except (PocketMQError, AssertionError, IndexError):
            return  # It begins again from its device, or nobody is master at present.

    async def _start(self, _: Member) -> None:
        await self._down.pop().start()

    async def _kill(self, member: Member) -> None:
        await member.kill()
        self._down.append(member)

    async def _stop(self, member: Member) -> None:
        await member.stop()
        self._down.append(member)

    async def _expire(self, member: Member) -> None:
        member.expire()

    async def _cut_registry(self, _: Member) -> None:
        self._world.registry_is_away = True
        await asyncio.sleep(self._random.random() * 2 * PAUSE_S)
        self._world.registry_is_away = False

    async def _hand_over(self, member: Member) -> None:
        await self._world.masters[0].node.hand_over(member.id, 1_000)

    async def _mute(self, member: Member) -> None:
        member.mute()

    async def _fail(self, member: Member) -> None:
        member.store.health.fail(DiskFailure("a device that fails once"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_acknowledged_is_lost_whatever_happens(tmp_path: Path, seed: int) -> None:
    async with replica_set(
        tmp_path, min_in_sync=2, session_ms=1_000, replica_lag_ms=1_500
    ) as world:
        await world.whole()
        storm = Storm(world, seed)
        await storm.rage()

        master = await world.whole()
        end = master.store.max_log_offset
        assert {member.log(end) for member in world.up} == {master.log(end)}
        stored = Counter(bodies_of(master.store, TOPIC, 0))
        assert [body for body in storm.acknowledged if stored[body] != 1] == []
        assert len(storm.acknowledged) > 100
        assert not set_aside(tmp_path)


def set_aside(folder: Path) -> list[Path]:
    return list(folder.glob("*.set-aside-*"))
