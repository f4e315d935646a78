"""Consumers of one group join, leave, die and stand still at random while messages flow: nothing may be lost.

    python -m tests.simulation.group_campaign --seed 7 --minutes 5 --messages 1000000 --trouble broker

Two brokers, two name servers, three consumers and a producer live on one virtual time. In the end every message that
was acknowledged must have been handled, without gaps, and twice only where it is excused (ledger.py). The seed decides
everything; it is printed with what was found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from pocketmq.client import AsyncProducer, Message, Queue
from pocketmq.proto.errors import PocketMQError

from .cluster import Client, Cluster, SimulatedBroker, SimulatedNameServer, cluster_of
from .ledger import Ledger
from .members import GROUP, LEASE_MS, SESSION_MS, TOPIC, CoreMember, Member, PullMember, PushMember
from .virtual_loop import run

QUEUES: Final = 8
BODY_BYTES: Final = 100
TICK_MS: Final = 200
#: What goes wrong besides members.
TROUBLES: Final = ("members", "name-server", "broker", "links", "clock", "all")
#: By so much wall clocks are set, either way: corrections, an hour, a day; and what a leap second's smear is told in.
STEPS_MS: Final = (1, 7, 1_000, 3_600_000, 86_400_000)
KINDS: Final[dict[str, Callable[[int, Client, Ledger, str], Member]]] = {
    "core": CoreMember,
    "pull": PullMember,
    "push": PushMember,
    "ordered": partial(PushMember, ordered=True),
}
#: Everything must be handled so long after the trouble ended, at the latest.
SETTLED_MS: Final = 180_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One campaign."""

    seed: int
    minutes: float
    messages: int
    trouble: str = "members"
    kind: str = "core"
    strategy: str = "sticky"
    members: int = 3


@dataclass
class Report:
    """What was found."""

    seed: int
    sent: int = 0
    acknowledged: int = 0
    stored: int = 0
    handled: int = 0
    missing: int = 0
    repeats: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    settled_ms: int = 0
    cpu_s: float = 0.0
    faults: list[str] = field(default_factory=list)


class Campaign:
    """Runs PLAN on CLUSTER."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self._plan = plan
        self._cluster = cluster
        self._random = Random(cluster.random.random())
        self._ledger = Ledger(ordered=plan.kind != "push")
        self._numbers = 0
        self._members: dict[int, Member | None] = {}
        #: Kept, or the collector of garbage would close what they were at, which runs code of the dead.
        self._dead: list[Member] = []
        self._events: Counter[str] = Counter()
        self._sent = self._acknowledged = 0
        self._acknowledged_numbers: list[range] = []
        self._over = asyncio.Event()

    async def run(self) -> Report:
        """Have everything happen; return what was found."""
        began_s = time.process_time()
        async with self._cluster.admin() as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with asyncio.TaskGroup() as tasks:
            for slot in range(self._plan.members):
                tasks.create_task(self._live(slot))
            for trouble in self._troubles():
                tasks.create_task(trouble)
            await self._produce()
            self._over.set()
        settled_ms = await self._settle()
        report = self._report(settled_ms)
        report.cpu_s = round(time.process_time() - began_s, 1)
        return report

    # --- messages

    async def _produce(self) -> None:
        client = self._cluster.client("producer")
        plan = self._plan
        ticks = max(1, round(plan.minutes * 60_000 / TICK_MS))
        async with AsyncProducer(
            self._cluster.addresses,
            clock=client.machine.clock,
            connections=client.connections(),
            random=client.random,
            delivery_timeout_ms=120_000,
        ) as producer:
            outcomes = []
            for tick in range(ticks):
                numbers = range(plan.messages * tick // ticks, plan.messages * (tick + 1) // ticks)
                outcomes.append(asyncio.ensure_future(self._send(producer, numbers)))
                await self._cluster.sleep(TICK_MS)
            await asyncio.gather(*outcomes)

    async def _send(self, producer: AsyncProducer, numbers: range) -> None:
        self._sent += len(numbers)
        messages = [
            Message(TOPIC, b"%010d" % number + bytes(BODY_BYTES - 10)) for number in numbers
        ]
        try:
            await producer.send_many(messages)
        except PocketMQError as error:
            self._note(f"send failed: {type(error).__name__}")
        else:
            self._acknowledged += len(numbers)
            self._acknowledged_numbers.append(numbers)

    def _note(self, event: str) -> None:
        self._events[event] += 1

    # --- members

    async def _live(self, slot: int) -> None:
        """Have one member after the other in SLOT, until the end."""
        random, sleep = self._random, self._pause
        while True:
            member = await self._join(slot)
            while not self._over.is_set():
                await sleep(random.uniform(3_000, 30_000))
                if self._over.is_set():
                    return
                fate = random.choice(("leave", "kill", "vanish", "stall", "stall long", "stay"))
                self._note(fate)
                if fate.startswith("stall"):
                    await self._stall(member, fate == "stall long")
                elif fate != "stay":
                    await self._go(slot, member, fate)
                    break
            if self._over.is_set() and self._members[slot] is not None:
                return
            await sleep(random.uniform(0, 20_000))

    async def _pause(self, pause_ms: float) -> None:
        """Return PAUSE_MS from now, or when everything is over."""
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._over.wait()
        except TimeoutError:
            return

    async def _join(self, slot: int) -> Member:
        self._numbers += 1
        self._note("join")
        client = self._cluster.client(f"member-{self._numbers}")
        make = KINDS[self._plan.kind]
        member = make(self._numbers, client, self._ledger, self._plan.strategy)
        self._members[slot] = member
        await member.start()
        return member

    async def _stall(self, member: Member, is_long: bool) -> None:
        if is_long:
            pause_ms = self._random.uniform(LEASE_MS, 3 * LEASE_MS)
            self._ledger.excuse(member.number, "stalled", self._committed())
        else:
            pause_ms = self._random.uniform(100, LEASE_MS / 3)
        member.client.machine.stall()
        await self._pause(pause_ms)
        member.client.machine.go_on()

    async def _go(self, slot: int, member: Member, fate: str) -> None:
        if fate == "leave":
            await self._leave(member)
        else:
            self._ledger.excuse(member.number, "killed", self._committed())
            member.client.kill(silently=fate == "vanish")
            member.die()
            self._dead.append(member)
        self._members[slot] = None

    async def _leave(self, member: Member) -> None:
        """Have MEMBER go as one goes; a broker that is away does not take what it has finished."""
        committed = self._committed()
        try:
            await member.leave()
        except PocketMQError:
            self._note("left without a commit")
            self._ledger.excuse(member.number, "not committed", committed)

    def _committed(self) -> dict[Queue, int]:
        """Return what the brokers that run know as committed."""
        found = {}
        for broker in self._cluster.brokers:
            if broker.running:
                for topic, queue, offset in _offsets_of(broker):
                    found[Queue(topic, broker.name, queue)] = offset
        return found

    # --- other trouble

    def _troubles(self) -> list[Coroutine[Any, Any, None]]:
        kinds = {
            "name-server": self._trouble_name_servers,
            "broker": self._trouble_brokers,
            "links": self._trouble_links,
            "clock": self._trouble_clocks,
        }
        wanted = kinds if self._plan.trouble == "all" else {self._plan.trouble: None}
        return [trouble() for name, trouble in kinds.items() if name in wanted]

    async def _trouble_name_servers(self) -> None:
        await self._lose_and_return(self._cluster.name_servers, "name server")

    async def _trouble_brokers(self) -> None:
        await self._lose_and_return(self._cluster.brokers, "broker")

    async def _lose_and_return(
        self, servers: list[SimulatedNameServer] | list[SimulatedBroker], what: str
    ) -> None:
        """Kill one of SERVERS, and have it back, again and again; in the end all are there."""
        random = self._random
        while not self._over.is_set():
            await self._pause(random.uniform(10_000, 60_000))
            if self._over.is_set():
                return
            server = random.choice(servers)
            self._note(f"{what} lost")
            await server.kill()
            await self._pause(random.uniform(500, 30_000))
            await server.start()
            if isinstance(server, SimulatedBroker):
                self._ledger.broker_back(server.name, self._committed())

    async def _trouble_links(self) -> None:
        """Cut connections, which come back at once, and hold them up for less than a lease."""
        random = self._random
        while not self._over.is_set():
            await self._pause(random.uniform(500, 5_000))
            members = [member for member in self._members.values() if member is not None]
            links = [
                link
                for member in members
                for link in self._cluster.network.links_of(member.client.machine)
            ]
            if not links:
                continue
            link = random.choice(links)
            if random.random() < 0.8:
                self._note("cut")
                link.cut()
            else:
                self._note("held up")
                link.pause()
                await self._pause(random.uniform(100, LEASE_MS / 4))
                link.heal()

    async def _trouble_clocks(self) -> None:
        """Set the wall clock of one machine or another, either way: nobody is excused for that."""
        random = self._random
        while not self._over.is_set():
            await self._pause(random.uniform(500, 10_000))
            machines = [one.client.machine for one in self._members.values() if one is not None]
            servers = (*self._cluster.brokers, *self._cluster.name_servers)
            machines += [one.machine for one in servers if one.machine is not None]
            self._note("clock set")
            step_ms = random.choice((-1, 1)) * random.choice(STEPS_MS)
            random.choice(machines).clock.step(step_ms)

    # --- the end

    def _ends(self) -> dict[Queue, int]:
        return {
            Queue(TOPIC, broker.name, number): broker.broker.store.queue_bounds(TOPIC, number)[1]
            for broker in self._cluster.brokers
            for number in range(QUEUES)
        }

    async def _settle(self) -> int:
        """Wait until everything is handled; return how long that took."""
        clock = self._cluster.clock
        began_ms = clock.now_ms()
        while self._ledger.missing(self._ends()) and clock.now_ms() - began_ms < SETTLED_MS:
            await clock.sleep(200)
        took_ms = clock.now_ms() - began_ms
        await clock.sleep(2 * SESSION_MS)
        for member in self._members.values():
            if member is not None:
                await self._leave(member)
        return took_ms

    def _report(self, settled_ms: int) -> Report:
        ledger = self._ledger
        ends = self._ends()
        missing = ledger.missing(ends)
        faults = list(ledger.faults)
        faults += [f"{queue}: {count} were never handled" for queue, count in missing.items()]
        lost = sum(
            len(numbers) - int(ledger.seen[numbers.start : numbers.stop].sum())
            for numbers in self._acknowledged_numbers
            if len(numbers)
        )
        if lost:
            faults.append(f"{lost} messages were acknowledged and never handled")
        if self._acknowledged < self._sent:
            faults.append(f"only {self._acknowledged} of {self._sent} messages were acknowledged")
        faults += self._uncommitted(ends)
        return Report(
            seed=self._plan.seed,
            sent=self._sent,
            acknowledged=self._acknowledged,
            stored=sum(ends.values()),
            handled=ledger.handled,
            missing=sum(missing.values()) + lost,
            repeats=dict(ledger.repeats),
            events=dict(sorted(self._events.items())),
            settled_ms=settled_ms,
            faults=faults,
        )

    def _uncommitted(self, ends: dict[Queue, int]) -> list[str]:
        committed = self._committed()
        return [
            f"{queue}: committed {committed.get(queue)} of {end} when all had left"
            for queue, end in ends.items()
            if end and committed.get(queue) != end and not self._ledger.lost_broker(queue)
        ]


def _offsets_of(broker: SimulatedBroker) -> list[tuple[str, int, int]]:
    running = broker.broker._running
    assert running is not None
    return running.parts.offsets.of_group(GROUP)


def carry_out(plan: Plan, folder: Path) -> Report:
    """Run PLAN with stores under FOLDER."""

    async def everything() -> Report:
        async with cluster_of(folder, seed=plan.seed) as cluster:
            return await Campaign(plan, cluster).run()

    return run(everything())


def main() -> int:
    if (
        os.environ.get("PYTHONHASHSEED") != "0"
    ):  # The order of sets of strings is part of the history.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(
            sys.executable, [sys.executable, "-m", "tests.simulation.group_campaign", *sys.argv[1:]]
        )
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--trouble", choices=TROUBLES, default="members")
    parser.add_argument("--kind", choices=list(KINDS), default=next(iter(KINDS)))
    parser.add_argument("--strategy", default="sticky")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else Random().randrange(1 << 32)
    plan = Plan(**{**vars(options), "seed": seed})
    sys.stdout.write(f"seed {seed}\n")
    with tempfile.TemporaryDirectory() as folder:
        report = carry_out(plan, Path(folder))
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
