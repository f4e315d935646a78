"""What `/metrics` says of replicas, by whole brokers in a set on virtual time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from pocketmq.broker.replication.replica_metrics import replica_figures

from ..runs import make_run
from .replica_brokers import LAG_MS, Member, World, simulated_threads
from .virtual_loop import loop_clock, run


def told(member: Member) -> dict[str, float]:
    """Return the figures of MEMBER, without what all have in common; of another replica with its id."""
    assert member.process is not None
    found: dict[str, float] = {}
    for figure in replica_figures(member.process.node.look()):
        replica = "".join(f" {value}" for label, value in figure.labels if label == "replica")
        assert isinstance(figure.value, float | int)
        found[figure.name.removeprefix("pocketmq_replica_") + replica] = figure.value
    return found


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 (of virtual time)
        await asyncio.sleep(0.01)


async def story(folder: Path) -> None:
    """Cut a follower off its master, let it come back, then kill the master."""
    clock = loop_clock()
    with simulated_threads(Random(1)):
        world = World(1, folder, clock)
        await world.start()
        master = await world.come_to_rest()
        first, second = (one for one in world.members if one is not master)
        epoch = world.ensemble.history[-1].epoch
        end = master.store.max_log_offset

        begun = told(master)
        assert begun[f"info {master.id}"] == 1
        assert (begun["master"], begun["live"], begun["epoch"]) == (1, 1, epoch)
        assert (begun["in_sync_replicas"], begun["end_bytes"]) == (3, end)
        assert begun["confirmed_bytes"] == end
        assert begun[f"behind_bytes {first.id}"] == begun[f"behind_seconds {first.id}"] == 0
        await until(lambda: told(first)["in_sync_replicas"] == 3)  # It reads the cell later.
        follows = told(first)
        assert (follows["master"], follows["epoch"]) == (0, epoch)
        assert not any(name.startswith("behind") for name in follows)

        world.cut_off(master.id, first.id)
        assert master.process is not None
        leadership = master.process.node._running.leadership  # type: ignore[union-attr]
        assert leadership is not None
        leadership.appended(master.store.append(make_run("A", 0, [b"x" * 100])).end_offset)
        size = master.store.max_log_offset - end
        await clock.sleep(200)
        now = told(master)
        assert now[f"behind_bytes {first.id}"] == size
        assert now[f"in_sync {first.id}"] == now[f"in_sync {second.id}"] == 1
        assert 0.19 < now[f"behind_seconds {first.id}"] < 0.21
        assert now[f"behind_bytes {second.id}"] == 0
        assert (now["end_bytes"], now["confirmed_bytes"]) == (end + size, end)

        await clock.sleep(2 * LAG_MS)
        now = told(master)
        assert (now["in_sync_replicas"], now["confirmed_bytes"]) == (2, end + size)
        assert (now[f"in_sync {first.id}"], now[f"in_sync {second.id}"]) == (0, 1)
        assert now["in_sync_changes_total"] == begun["in_sync_changes_total"] + 1
        assert told(second)["in_sync_changes_total"] == follows["in_sync_changes_total"] + 1
        await world.come_to_rest()
        now = told(master)
        assert (now["in_sync_replicas"], now[f"behind_seconds {first.id}"]) == (3, 0)
        assert now["master_changes_total"] == begun["master_changes_total"]

        await master.kill()
        await until(lambda: world.master is not None)
        await until(lambda: told(first)["epoch"] == told(second)["epoch"] == epoch + 1)
        for one in (first, second):
            assert told(one)["master_changes_total"] == follows["master_changes_total"] + 1
        await world.come_to_rest()
        await world.stop()
        assert world.bugs() == []


def test_figures_tell_how_replicas_stand_and_how_far_others_are_behind(tmp_path: Path) -> None:
    run(story(tmp_path))
    shutil.rmtree(tmp_path)


def test_a_replica_that_begins_again_says_that_it_is_not_live_and_forgets_no_change(
    tmp_path: Path,
) -> None:
    async def fail() -> None:
        clock = loop_clock()
        with simulated_threads(Random(2)):
            world = World(2, tmp_path, clock)
            await world.start()
            master = await world.come_to_rest()
            other = next(one for one in world.members if one is not master)
            assert other.process is not None
            before = told(other)
            other.process.node._running._fail(OSError("a bug"))  # type: ignore[union-attr]
            await asyncio.sleep(0)
            again = told(other)
            assert (again["live"], "epoch" in again) == (0, False)
            await world.come_to_rest()
            await until(lambda: told(other)["live"] == 1)
            for name in ("master_changes_total", "in_sync_changes_total"):
                assert again[name] == before[name] <= told(other)[name]
            await world.stop()

    run(fail())
