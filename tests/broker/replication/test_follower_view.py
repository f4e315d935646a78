"""What a replica that follows knows of how far it is: it says so only while that is all that was confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.replication.follower_view import FollowerView

from ...waiting import until
from .replica_set import TOPIC, Member, replica_set


def view_of(member: Member) -> FollowerView | None:
    return member.node.follower_view


def is_current(member: Member) -> bool:
    view = view_of(member)
    return view is not None and view.is_current


async def test_followers_are_current_and_the_master_is_no_follower(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as world:
        master = await world.master()
        await master.roles.send(b"1")
        await world.whole()

        def tells_all(member: Member) -> bool:
            view = view_of(member)
            return (
                view is not None
                and view.is_current
                and view.epoch == world.cell.epoch
                and view.store.queue_bounds(TOPIC, 0) == (0, 1)
            )

        await until(lambda: all(tells_all(one) for one in world.up if one is not master))
        assert view_of(master) is None


async def test_who_does_not_hear_the_master_is_not_current(tmp_path: Path) -> None:
    async with replica_set(tmp_path) as world:
        master = await world.master()
        await world.whole()
        (first, second) = (one for one in world.up if one is not master)
        await until(lambda: is_current(first) and is_current(second))

        await master.close_port()

        await until(lambda: not is_current(first) and not is_current(second))
        await until(
            lambda: view_of(first) is not None
        )  # What is confirmed may be read all the same.
        await master.node.stop()


@pytest.mark.slow
async def test_who_does_not_hear_of_the_registry_is_not_current(tmp_path: Path) -> None:
    async with replica_set(tmp_path, session_ms=3_000) as world:
        master = await world.master()
        follower = next(one for one in world.up if one is not master)
        await until(lambda: is_current(follower))

        world.registry_is_away = True

        await until(lambda: not is_current(follower))


async def test_who_lacks_what_was_confirmed_is_not_current(tmp_path: Path) -> None:
    async with replica_set(tmp_path, session_ms=60_000, replica_lag_ms=100) as world:
        master = await world.whole()
        follower = next(one for one in world.up if one is not master)
        await until(lambda: is_current(follower))
        await follower.stop()
        await until(lambda: follower.id not in world.cell.in_sync)
        await master.roles.send(*[b"x" * 1_000] * 20)
        # It hears first how far its master has confirmed, then byte by byte what that is.
        await follower.start()
        views: list[int] = []

        def has_been_current() -> bool:
            view = view_of(follower)
            if view is not None and view.is_current:
                views.append(view.store.queue_bounds(TOPIC, 0)[1])
            return bool(views)

        await until(has_been_current)
        assert views == [20]
