"""Trouble a replica set of real processes under load, fail it over again and again, and check its whole history.

    python -m tests.campaigns.replicas --failovers 200 --seed 1

Three brokers, a ZooKeeper of three servers, links between all of them that are cut, machines that are spoilt (see
nemesis.py, which draws from the seed), clients that write down what they send and read. After each step all is mended,
and sends with acks="replicas" have to be acknowledged again within `SERVICE_S`. At the end all replicas come to rest
with the same log, stop, and history.py holds what they have against what clients were told.

The moments are drawn from the seed; what the machine does between them is its own, so a seed repeats the plan and not
the instant. `--keep FOLDER` leaves stores and logs there. Links are TCP proxies; with `--namespaces`, as root, they are
a network between namespaces (namespaces.py), so that what is cut is lost as on a wire.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import click
import numpy as np

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import CallFailed, connect
from pocketmq.tools.zookeeper_server import ZooKeeperServer

from ..zookeeper.servers import running
from .history import History, Violation, check, tally
from .links import CLIENTS, REGISTRY, Links
from .namespaces import check as check_namespaces, hub
from .nemesis import Step, Strike, Trouble, plan
from .replica_set import REPLICAS, SET, Replica, ReplicaSet
from .spoilt import Spoilt
from .workload import QUEUES, TOPIC, Workload

#: After all is mended acks="replicas" is acknowledged again within so long.
SERVICE_S: Final = 30.0
#: And all replicas are in sync, with the same log, within so long.
REST_S: Final = 60.0
_SLOW_LINK_MS: Final = 100
_SLOW_SYNC_MS: Final = 200
_CLOCK_MS: Final = 3_600_000
_MOVE_PATH: Final = "/pocketmq.v1.Replication/MoveMaster"


@dataclass(slots=True)
class Outcome:
    """What came of a campaign."""

    failovers: int = 0
    violations: list[Violation] = field(default_factory=list)
    #: What else should not have been: no service, no rest.
    complaints: list[str] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)
    #: The longest time without an acknowledgement by acks="replicas", of steps with one trouble, by what it was.
    gaps_s: dict[str, list[float]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    #: The first error of each kind that a failover need not bring.
    told: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.complaints

    def gaps(self) -> dict[str, dict[str, float]]:
        """Return how often, median and worst of the gaps, by what the trouble was."""
        return {
            name: {
                "times": len(found),
                "p50_s": round(float(np.median(found)), 2),
                "most_s": round(max(found), 2),
            }
            for name, found in sorted(self.gaps_s.items())
        }


class ReplicaCampaign:
    """FAILOVERS of a set in FOLDER with the ensemble ZOOKEEPER, planned from SEED. RULE: one that replicas break."""

    def __init__(
        self,
        folder: Path,
        zookeeper: Sequence[ZooKeeperServer],
        *,
        failovers: int,
        seed: int,
        steps: Iterator[Step] | None = None,
        say: Callable[[str], None] = lambda line: None,
        links: Links | None = None,
    ) -> None:
        self._failovers = failovers
        self._seed = seed
        self._steps = steps or plan(seed)
        self._say = say
        self.history = History()
        self.set = ReplicaSet(folder, zookeeper, self.history, links=links)
        self.outcome = Outcome()
        self._zookeeper = zookeeper
        self._workload: Workload | None = None

    async def run(self) -> Outcome:
        """Do everything."""
        outcome = self.outcome
        try:
            await self.set.start()
            workload = self._workload = Workload(
                self.set.nameserver, self.history, seed=self._seed, per_second=30
            )
            await workload.start()
            await self._wait_for_service("the start")
            for step in self._steps:
                if self.failovers >= self._failovers or outcome.complaints:
                    break
                await self._do(step)
            await self._come_to_rest(workload)
            outcome.failures, outcome.repeats = workload.failures, workload.repeats
            outcome.told = workload.told
        finally:
            await self.set.close()
        outcome.failovers = self.failovers
        outcome.tally = tally(self.history)
        outcome.violations = check(self.history)
        return outcome

    @property
    def failovers(self) -> int:
        """How often another replica became master; one that is elected again is not counted."""
        masters = [one.replica for one in self.history.cells if one.replica]
        return sum(one != other for one, other in pairwise(masters))

    async def _do(self, step: Step) -> None:
        assert self._workload is not None
        await asyncio.sleep(step.calm_s)
        epoch, began_s = self.set.epoch, asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as striking:
            for strike in step.strikes:
                striking.create_task(self._strike(strike))
        self.set.mend()
        await self._wait_for_service(str(step))
        times = self._workload.acknowledged_s
        during = times[max(0, bisect_left(times, began_s) - 1) :]
        gap_s = float(np.diff(during).max()) if len(during) > 1 else 0.0
        name = step.strikes[0].trouble.name.lower()
        if self.set.epoch > epoch and len(step.strikes) == 1:
            self.outcome.gaps_s.setdefault(name, []).append(gap_s)
        self._say(
            f"{self.failovers}: {step}: epoch {epoch} to {self.set.epoch},"
            f" nothing acknowledged for {gap_s:.1f} s"
        )

    async def _wait_for_service(self, what: str) -> None:
        """Wait for an acknowledgement of what was sent by acks="replicas"; complain if none comes."""
        assert self._workload is not None
        try:
            async with asyncio.timeout(SERVICE_S):
                await self.set.all_begun()
                await self._workload.next_acknowledged()
        except TimeoutError:
            self.outcome.complaints.append(
                f'after {what} nothing with acks="replicas" was acknowledged for {SERVICE_S:.0f} s'
            )
            self._tell_trouble()

    def _tell_trouble(self) -> None:
        """Say what may help to find a cause."""
        cell = self.set.cell
        self._say(f"cell {cell}; live {dict(self.set.live)}")
        for line in (*self.set.complaints[-5:], *self.set.logs()):
            self._say(line)

    # --- troubles

    async def _strike(self, strike: Strike) -> None:
        await asyncio.sleep(strike.after_s)
        set_ = self.set
        who = set_.master or set_.replicas[0]
        if strike.who != "master":
            others = set_.others(who)
            who = others[int(strike.chance * len(others))]
        match strike.trouble:
            case Trouble.KILL | Trouble.KILL_SOON:
                await self._kill([who], strike.lasts_s)
            case Trouble.KILL_ALL:
                await self._kill(set_.replicas, strike.lasts_s)
            case Trouble.STOP:
                set_.pause(who)
                await asyncio.sleep(strike.lasts_s)
                set_.resume(who)
            case Trouble.RESTART:
                await set_.stop(who)
                await asyncio.sleep(strike.lasts_s)
                set_.begin_soon(who)
            case Trouble.MOVE:
                await self._move(who, strike.chance)
            case Trouble.REGISTRY_LEADER:
                await self._kill_registry_leader(strike.lasts_s)
            case Trouble.SLOW_DISK | Trouble.FULL_DISK | Trouble.CLOCK:
                self._spoil(who, strike)
                await asyncio.sleep(strike.lasts_s)
            case _:
                self._trouble_links(who, strike)
                await asyncio.sleep(strike.lasts_s)

    async def _kill(self, replicas: Sequence[Replica], lasts_s: float) -> None:
        await asyncio.gather(*map(self.set.kill, replicas))
        await asyncio.sleep(lasts_s)
        for replica in replicas:
            self.set.begin_soon(replica)

    async def _move(self, master: Replica, chance: float) -> None:
        others = self.set.others(master)
        to = others[int(chance * len(others))]
        request = pb.MoveMasterRequest(set=SET, to=to.number)
        async with connect(master.replication_address) as channel:
            ask = channel.unary_unary(
                _MOVE_PATH, pb.MoveMasterRequest.SerializeToString, pb.MoveMasterReply.FromString
            )
            try:
                await ask(request, timeout=10.0)
            except CallFailed as failed:
                self._say(f"not handed over: {failed.details()}")

    async def _kill_registry_leader(self, lasts_s: float) -> None:
        for server in self._zookeeper:
            if await server.mode() in ("leader", "standalone"):
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(lasts_s)
                await asyncio.to_thread(server.start)
                return

    def _spoil(self, who: Replica, strike: Strike) -> None:
        if strike.trouble is Trouble.SLOW_DISK:
            who.spoil(Spoilt(sync_ms=_SLOW_SYNC_MS))
        elif strike.trouble is Trouble.FULL_DISK:
            who.spoil(Spoilt(full=True))
        else:
            who.spoil(Spoilt(clock_ms=_CLOCK_MS if strike.chance < 0.5 else -_CLOCK_MS))

    def _trouble_links(self, who: Replica, strike: Strike) -> None:
        links = self.set.links
        others = [one.name for one in self.set.others(who)]
        match strike.trouble:
            case Trouble.CUT:
                links.cut(who.name, [others[int(strike.chance * len(others))]])
            case Trouble.CUT_ONE_WAY:
                links.cut(who.name, others, one_way=True)
            case Trouble.CUT_FROM_ALL:
                links.cut(who.name, others)
            case Trouble.CUT_REGISTRY:
                links.cut(who.name, [REGISTRY])
            case Trouble.CUT_REGISTRY_ALL:
                links.cut(REGISTRY, [who.name, *others])
            case Trouble.CUT_CLIENTS:
                links.cut(who.name, [CLIENTS])
            case Trouble.ALONE:
                links.cut(who.name, [REGISTRY, *others])
            case Trouble.SNAP:
                links.snap(who.name, others)
            case Trouble.SLOW:
                links.delay(who.name, others, _SLOW_LINK_MS)
            case _:
                raise AssertionError(strike.trouble)

    # --- the end

    async def _come_to_rest(self, workload: Workload) -> None:
        """Send no more, let all replicas have the same log, let readers read all of it, and stop everything."""
        await workload.stop_sending()
        try:
            confirm = await self.set.at_rest(REST_S)
        except TimeoutError:
            self.outcome.complaints.append(f"the replicas did not come to rest within {REST_S} s")
            self._tell_trouble()
            confirm = 0
        self.set.read_queues(TOPIC, QUEUES)
        ends = {queue: len(rows) for queue, rows in self.history.queues.items()}
        await workload.finish(ends, REST_S)
        for replica in self.set.replicas:
            await self.set.stop(replica)
        self.set.collect(confirm)


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--failovers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--zookeepers", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder for stores and logs, which stay")
    parser.add_argument(
        "--namespaces",
        action="store_true",
        help="cut links by network namespaces; needs root and `ip`",
    )
    arguments = parser.parse_args()
    if arguments.namespaces and (why := check_namespaces()):
        parser.error(why)
    logging.basicConfig(level=logging.ERROR)  # That sends wait for a failover is no news here.
    click.echo(f"seed {arguments.seed}, {arguments.failovers} failovers")
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as network:
        folder = arguments.keep or Path(temporary)
        links = None
        if arguments.namespaces:
            try:
                links = network.enter_context(hub(REPLICAS))
            except OSError as error:
                parser.error(f"namespaces cannot be made here, leave out --namespaces: {error}")
        with running(folder / "zookeeper", arguments.zookeepers) as zookeeper:
            campaign = ReplicaCampaign(
                folder,
                zookeeper,
                failovers=arguments.failovers,
                seed=arguments.seed,
                say=click.echo,
                links=links,
            )
            outcome = asyncio.run(campaign.run())
    click.echo(
        json.dumps(
            {
                "seed": arguments.seed,
                "failovers": outcome.failovers,
                **outcome.tally,
                "gaps": outcome.gaps(),
                "failures": dict(outcome.failures),
                "told": outcome.told,
                "handed_out_again": dict(outcome.repeats),
                "complaints": outcome.complaints[:20],
                "violations": [f"{rule}: {sentence}" for rule, sentence in outcome.violations],
            }
        )
    )
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
