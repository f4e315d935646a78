"""Repeats are told by the log alone: by a master that followed before, and by one whose log was cut meanwhile."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.message_store import MessageStore

from ...numbered import bodies, numbered_run
from ...runs import bodies_of
from ...store.following import feed
from .mastered import TOPIC, Mastered, Sender


async def stored(sender: Sender, mastered: Mastered, first: int, count: int = 3) -> tuple[int, int]:
    """Send a run of numbers; return how many of it were stored before, and its first queue offset."""
    run = numbered_run(bodies(first, count), first, durability=pb.MEMORY)
    reply = sender.answer(await sender.put(run))
    assert reply is not None
    assert not reply.error.name, reply.error
    mastered.mastership.raise_confirm()
    return reply.repeated_count, reply.first_queue_offset


def follow(follower: Mastered, master: MessageStore) -> None:
    """Have the store of FOLLOWER take all that MASTER has, and lead."""
    follower.store.follow()
    feed(master, follower.store, Random(1))
    follower.store.lead()


async def test_a_follower_that_becomes_master_knows_what_was_sent_to_the_old_one(
    tmp_path: Path,
) -> None:
    follower = Mastered(tmp_path / "b", epoch=8)
    async with Mastered(tmp_path / "a") as master:
        await master.topic()
        sender = Sender(master)
        for first in (0, 3, 6):
            await stored(sender, master, first)
        follow(follower, master.store)

    async with follower:
        await follower.topic()
        sender = Sender(follower)
        assert await stored(sender, follower, 6) == (3, 6)
        assert await stored(sender, follower, 8) == (1, 8)
        assert await stored(sender, follower, 11) == (0, 11)
        assert bodies_of(follower.store, TOPIC, 0) == bodies(0, 14)


@pytest.mark.parametrize("snapshot", [True, False])
async def test_what_was_cut_counts_as_not_stored(tmp_path: Path, snapshot: bool) -> None:
    """The old master has numbers 0 to 8 on record; 3 to 8 were cut, and the new master took 3 to 5 only."""
    old, new = Mastered(tmp_path / "a"), Mastered(tmp_path / "b", epoch=8)
    async with old:
        await old.topic()
        sender = Sender(old)
        await stored(sender, old, 0)
        common = old.store.max_log_offset
        follow(new, old.store)
        await stored(sender, old, 3)
        await stored(sender, old, 6)
        old.mastership.end()
        await old.broker.stop()
        table = tmp_path / "a" / "store" / "pocketmq" / "producers.json"
        assert table.exists(), "it tells of all nine"
        if not snapshot:
            table.unlink()
        old.store.truncate_to(common)
    old_again = Mastered(tmp_path / "a", epoch=9)
    async with new:
        await new.topic()
        assert await stored(Sender(new), new, 3) == (0, 3)
        follow(old_again, new.store)

    async with old_again:
        sender = Sender(old_again)
        assert await stored(sender, old_again, 3) == (3, 3)
        assert await stored(sender, old_again, 6) == (0, 6)
        assert bodies_of(old_again.store, TOPIC, 0) == bodies(0, 9)
