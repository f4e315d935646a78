"""Broadcasting: every member handles everything, and keeps its own offsets in a file; nothing is retried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import AsyncPushConsumer
from pocketmq.client.consuming.local_offsets import parse

from .push_world import World, number, store


class Member:
    """A consumer with a name of its own, and what it has handled."""

    def __init__(self, world: World, folder: Path, name: str, **settings: Any) -> None:
        self.numbers: list[int] = []
        self.consumer: AsyncPushConsumer = world.consumer(
            self.handle,
            broadcasting=True,
            offsets_folder=str(folder),
            instance_id=name,
            **settings,
        )

    async def handle(self, message: Any) -> None:
        self.numbers.append(number(message))


def kept_in(folder: Path) -> tuple[str, list[int]]:
    """Return the only client with offsets in FOLDER, and the offsets."""
    (file,) = folder.glob("*/billing/offsets.json")
    return file.parent.parent.name, list(parse(file.read_text()).values())


async def test_every_member_handles_everything(tmp_path: Path) -> None:
    world = World(queues=2)
    one, two = Member(world, tmp_path, "one"), Member(world, tmp_path, "two")

    async with one.consumer, two.consumer:
        await world.pass_ms(1)
        store(world.broker, 10, queue=0)
        store(world.broker, 10, queue=1)
        await world.pass_ms(10)

    assert sorted(one.numbers) == sorted(two.numbers) == sorted([*range(10)] * 2)
    assert world.broker.committed == {}
    assert world.broker.sharing.joins == []


async def test_a_new_member_starts_at_the_end_and_comes_back_where_it_was(tmp_path: Path) -> None:
    world = World()
    store(world.broker, 10)

    member = Member(world, tmp_path, "one")
    async with member.consumer:
        await world.pass_ms(1)
        store(world.broker, 2)
        await world.pass_ms(10)
    store(world.broker, 3)
    back = Member(world, tmp_path, "one")
    async with back.consumer:
        await world.pass_ms(10)

    assert member.numbers == [10, 11]
    assert back.numbers == [12, 13, 14]


async def test_offsets_are_written_as_time_passes(tmp_path: Path) -> None:
    world = World()
    store(world.broker, 10)

    async with Member(world, tmp_path, "one", start="earliest").consumer:
        await world.pass_ms(5_000)
        assert kept_in(tmp_path) == ("127.0.0.1@one", [10])


async def test_a_failed_message_is_dropped_with_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    store(world.broker, 3)

    async def listener(message: Any) -> bool:
        return False

    async with world.consumer(
        listener, broadcasting=True, offsets_folder=str(tmp_path), start="earliest"
    ) as consumer:
        await world.pass_ms(10)
        assert (consumer.metrics().dropped, consumer.metrics().failed) == (3, 3)

    first, others = (r.message for r in caplog.records if "dropped" in r.message)
    reason = 'reason="the listener returned False"'
    assert first.startswith("message failed and was dropped group=billing topic=orders")
    assert first.endswith(reason)
    assert others.startswith("message failed and was dropped count=2 group=billing topic=orders")
    assert others.endswith(reason)
    assert world.broker.sent_back == []
    assert kept_in(tmp_path) == ("127.0.0.1@DEFAULT", [3])


async def test_what_cannot_be_kept_is_said_and_handled_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    store(world.broker, 3)
    (tmp_path / "127.0.0.1@one").write_text("in the way")

    member = Member(world, tmp_path, "one", start="earliest")
    async with member.consumer:
        await world.pass_ms(6_000)

    assert member.numbers == [0, 1, 2]
    assert "cannot write the offsets file" in caplog.text or "offset not committed" in caplog.text
