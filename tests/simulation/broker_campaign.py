"""Replica sets of whole brokers, in trouble from a seed: nothing acknowledged is lost, nothing that was read is undone.

    python -m tests.simulation.broker_campaign --seeds 10000 --mutant "3 acknowledges by the smaller set"

A seed decides everything, and replays it: what is found names it. With `--mutant` a rule is broken
(replica_mutants.py), and the campaign has to find that out.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any, Final

from pocketmq.proto.errors import (
    OffsetOutOfRange,
    OutOfOrderSequence,
    PocketMQError,
    TopicExists,
    UnknownProducer,
)
from pocketmq.proto.errors_wire import from_rpc_error, from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record_run import walk
from pocketmq.proto.rpc.channels import EOF, CallFailed

from ..campaigns.history import (
    Acknowledged,
    Committed,
    Fetched,
    History,
    Reign,
    Rule,
    Sent,
    Violation,
    check,
    digest_of,
)
from ..campaigns.stored import ends_of, open_stopped, queues_of, replica_files
from ..crash.kill_campaign import body_of
from ..numbered import numbered_run
from ..runs import make_run
from .channel import Channel
from .machine import Machine
from .replica_brokers import Member, World, simulated_threads
from .replica_mutants import mutant
from .virtual_loop import loop_clock, run

TOPIC: Final = "T"
GROUP: Final = "g"
#: Queue 0 is sent to with acks="replicas", queue 1 with acks="memory".
QUEUES: Final = 2
_TROUBLE_MS: Final = 4_000
#: How long a client waits for an answer before it asks somebody else.
_PATIENCE_S: Final = 1.0
#: The message of the error for a stream that ended, without an error, before its answer came.
NO_ANSWER: Final = "the stream ended"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed decides of a world, so that each kind comes up."""

    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the replicas."""
        return {"min_in_sync": 2 if self.seed % 4 > 1 else 1}

    @property
    def syncs(self) -> bool:
        """Does a store sync before it acknowledges anything?"""
        return self.seed % 2 == 1

    @property
    def store(self) -> dict[str, Any]:
        return {"flush": "sync"} if self.syncs else {}


class Client:
    """A client of WORLD: asks whoever answers as the master."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.random = Random(world.random.random())
        self._machine = Machine(name, f"10.9.0.1:{len(name)}", world.clock)
        self._asked = 0

    async def turn(self) -> None:
        """Ask somebody else from now on."""
        self._asked += 1
        await asyncio.sleep(self.random.uniform(0.01, 0.05))

    @property
    def asked(self) -> Member:
        """Return who is asked at present."""
        members = self._world.members
        return members[self._asked % len(members)]

    def _channel(self) -> Channel:
        return Channel(self._world.network, self._machine, self.asked.address)

    async def ask(self, method: str, request: Any, reply_type: Any) -> Any:
        """Return the answer to REQUEST. Raises PocketMQError."""
        channel = self._channel()
        call = channel.unary_unary(
            f"/pocketmq.v1.Broker/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_type.FromString,
        )
        try:
            return await call(request, timeout=_PATIENCE_S)
        except CallFailed as error:
            raise from_rpc_error(error) from error

    async def exchange(self, method: str, request: Any, reply_type: Any) -> Any:
        """Return the one answer on a stream to REQUEST. Raises PocketMQError, TimeoutError."""
        call = self._channel().stream_stream(
            f"/pocketmq.v1.Broker/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply_type.FromString,
        )()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await call.write(request)
                reply = await call.read()
        except CallFailed as error:
            raise from_rpc_error(error) from error
        except asyncio.InvalidStateError as error:
            raise PocketMQError("the stream was over") from error
        finally:
            call.cancel()
        if reply is EOF:
            raise PocketMQError(NO_ANSWER)
        if reply.error.name:
            raise from_wire(reply.error)
        return reply


class Campaign:
    """One seed: WORLD, its clients and its troubles, and the history that they make."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan = plan
        self.world = world
        self.history = History()
        self._next_number = 0
        self._is_over = False
        self.acknowledged = 0
        #: Where the queues end, once nothing is sent any more.
        self._ends: dict[int, int] | None = None
        #: What told the producer that something is missing.
        self._broken: PocketMQError | None = None

    # --- clients

    def _number(self, producer: str, acks: str, queue: int) -> int:
        number = self._next_number
        self._next_number += 1
        self.history.sent[number] = Sent(number, producer, acks, queue)
        return number

    async def _make_topic(self, client: Client) -> None:
        topic = pb.TopicConfig(name=TOPIC, read_queues=QUEUES, write_queues=QUEUES, permission=6)
        while True:
            try:
                await client.ask("CreateTopic", pb.CreateTopicRequest(topic=topic), pb.TopicReply)
                return
            except TopicExists:
                return
            except PocketMQError:
                await client.turn()

    async def produce(self) -> None:
        """Send numbered runs with acks="replicas", each until it is acknowledged."""
        client = Client(self.world, "producer")
        await self._make_topic(client)
        first = 0
        while not self._is_over:
            numbers = [
                self._number("p", "replicas", 0) for _ in range(client.random.choice((1, 1, 2, 4)))
            ]
            run = numbered_run(
                [body_of(number) for number in numbers],
                first,
                topic=TOPIC,
                durability=pb.REPLICAS,
            )
            first += len(numbers)
            reply = await self._until_acknowledged(client, run)
            if reply is None:
                return
            self.acknowledged += len(numbers)
            offsets = list(reply.queue_offsets) or range(
                reply.first_queue_offset, reply.first_queue_offset + len(numbers)
            )
            for number, offset in zip(numbers, offsets, strict=True):
                self.history.acknowledged.append(Acknowledged(number, 0, offset))
            await asyncio.sleep(client.random.uniform(0, 0.06))

    async def _until_acknowledged(
        self, client: Client, run: pb.ProduceRun
    ) -> pb.ProduceReply | None:
        while True:
            try:
                reply: pb.ProduceReply = await client.exchange("Produce", run, pb.ProduceReply)
                return reply
            except (OutOfOrderSequence, UnknownProducer) as error:
                # What was acknowledged before it is gone: the checker has to say so as well.
                self._broken = error
                return None
            except (PocketMQError, TimeoutError):
                if self._is_over:
                    return None
                await client.turn()

    async def produce_to_memory(self) -> None:
        """Send with acks="memory", each once."""
        client = Client(self.world, "careless")
        await self._make_topic(client)
        while not self._is_over:
            number = self._number("m", "memory", 1)
            run = make_run(TOPIC, 1, [body_of(number)])
            request = pb.ProduceRun(
                topic=TOPIC,
                queue=1,
                records=bytes(run.records),
                sizes=run.columns.sizes.tolist(),
                durability=pb.MEMORY,
            )
            try:
                reply = await client.exchange("Produce", request, pb.ProduceReply)
                self.history.acknowledged.append(Acknowledged(number, 1, reply.first_queue_offset))
            except (PocketMQError, TimeoutError):
                await client.turn()
            await asyncio.sleep(client.random.uniform(0, 0.2))

    async def read(self, name: str, queue: int, *, until: Callable[[int], bool]) -> None:
        """Read QUEUE from its beginning until UNTIL says so of the next offset."""
        client = Client(self.world, name)
        offset = 0
        while not until(offset):
            request = pb.FetchRequest(
                topic=TOPIC, queue=queue, offset=offset, min_bytes=1, max_wait_ms=500
            )
            try:
                reply = await client.exchange("Fetch", request, pb.FetchReply)
            except OffsetOutOfRange:
                return  # What was read is gone: the checker finds it missing.
            except (PocketMQError, TimeoutError):
                await client.turn()
                continue
            starts, end = walk(reply.records)
            bounds = [*starts.tolist(), end]
            digests = [digest_of(reply.records[a:b]) for a, b in pairwise(bounds)]
            if digests:
                self.history.fetched.append(Fetched(name, queue, offset, digests))
                offset = reply.next_offset
                await self._commit(client, queue, offset)
        self.history.finished.add((name, queue))

    async def _commit(self, client: Client, queue: int, offset: int) -> None:
        if client.random.random() < 0.7:
            return
        request = pb.CommitOffsetsRequest(
            group=GROUP, offsets=[pb.GroupOffset(topic=TOPIC, queue=queue, offset=offset)]
        )
        with suppress(PocketMQError, TimeoutError):  # The next commit takes it along.
            await client.ask("CommitOffsets", request, pb.CommitOffsetsReply)
            self.history.committed.append(Committed(GROUP, queue, offset))

    # --- troubles

    async def trouble(self) -> None:
        world, random = self.world, Random(self.world.random.random())
        troubles: list[Callable[[Random], Awaitable[None]]] = [
            self._kill,
            self._kill,
            self._cut_power,
            self._cut_pair,
            self._cut_from_registry,
            self._isolate_master,
            self._isolate_master,
            self._expire_master,
            self._registry_trouble,
            self._cut_all_power,
        ]
        end_ms = world.clock.now_ms() + _TROUBLE_MS
        while world.clock.now_ms() < end_ms:
            await world.clock.sleep(random.uniform(50, 900))
            await random.choice(troubles)(random)

    def _some(self, random: Random) -> Any:
        """Return a member, the master rather than another."""
        master = self.world.master
        return (
            master
            if master is not None and random.random() < 0.6
            else random.choice(self.world.members)
        )

    async def _kill(self, random: Random) -> None:
        member = self._some(random)
        self.world.note(f"kill {member.id}")
        await member.kill()
        await self.world.clock.sleep(random.choice((5, 300, 1_600)) * random.random())
        await member.start()

    def _may_lose_power(self) -> bool:
        """Is one clean replica left? What was only in memory when the last one lost it is for a person to give up."""
        return self.plan.syncs or self.world.is_whole()

    async def _cut_power(self, random: Random) -> None:
        if not self._may_lose_power():
            return
        member = self._some(random)
        self.world.note(f"cut the power of {member.id}")
        await member.cut_power()
        await self.world.clock.sleep(random.choice((5, 300, 1_600)) * random.random())
        await member.start()

    async def _cut_all_power(self, random: Random) -> None:
        if not self.plan.syncs:
            return
        self.world.note("cut all power")
        for member in self.world.members:
            await member.cut_power()
        await asyncio.gather(*(member.start() for member in self.world.members))

    async def _cut_pair(self, random: Random) -> None:
        one, other = random.sample(self.world.members, 2)
        self.world.note(f"cut {one.id} from {other.id}")
        self.world.cut_off(one.id, other.id)
        await self.world.clock.sleep(random.uniform(50, 1_500))
        self.world.cut_off(one.id, other.id, cut=False)

    async def _cut_from_registry(self, random: Random) -> None:
        member = self._some(random)
        self.world.note(f"cut {member.id} from the registry")
        self.world.without_registry.add(member.id)
        await self.world.clock.sleep(random.uniform(200, 2_500))
        self.world.without_registry.discard(member.id)

    async def _isolate_master(self, random: Random) -> None:
        """Clients go on to reach it; the others elect another."""
        member = self.world.master
        if member is None:
            return
        self.world.note(f"isolate {member.id}")
        others = [one.id for one in self.world.members if one is not member]
        for other in others:
            self.world.cut_off(member.id, other)
        await self.world.clock.sleep(random.uniform(0, 200))
        self.world.without_registry.add(member.id)
        await self.world.clock.sleep(random.uniform(500, 2_500))
        self.world.without_registry.discard(member.id)
        for other in others:
            self.world.cut_off(member.id, other, cut=False)

    async def _expire_master(self, random: Random) -> None:
        sessions = sorted(self.world.ensemble.sessions)
        if sessions:
            session = random.choice(sessions)
            self.world.note(f"end session {session}")
            self.world.ensemble.expire(session)

    async def _registry_trouble(self, random: Random) -> None:
        self.world.note("trouble of the registry")
        self.world.registry_trouble = random.choice((0.1, 0.3))
        await self.world.clock.sleep(random.uniform(100, 1_500))
        self.world.registry_trouble = 0.0

    # --- all of it

    async def run(self) -> list[Violation]:
        """Go through it, and return what must not have been."""
        world = self.world
        await world.start()
        writing = [
            asyncio.ensure_future(self.produce()),
            asyncio.ensure_future(self.produce_to_memory()),
        ]
        reading = [
            asyncio.ensure_future(self.read(f"r{queue}", queue, until=self._is_read))
            for queue in range(QUEUES)
        ]
        await self.trouble()
        world.note("heal")
        await world.come_to_rest()
        await world.clock.sleep(1_000)
        self._is_over = True
        await asyncio.gather(*writing)
        master = await world.come_to_rest()
        end = master.store.max_log_offset
        store = master.store
        self._ends = {queue: store.queue_bounds(TOPIC, queue)[1] for queue in range(QUEUES)}
        read, late = await asyncio.wait(reading, timeout=30)
        for task in late:
            task.cancel()
        for task in read:
            task.result()
        roots = {member.id: member.root / "store" for member in world.members}
        bugs = world.bugs()
        configs = {member.id: member.process.config for member in world.members if member.process}
        await world.stop()
        for bug in bugs:
            raise AssertionError("a handler had a bug") from bug
        self._look_at_disks(roots, configs, master.id, end)
        found = check(self.history)
        if not found and (self._broken is not None or late):
            raise AssertionError(f"nothing is missing, and yet: {self._broken or 'readers wait'}")
        return found

    def _is_read(self, offset: int) -> bool:
        return self._ends is not None and offset in self._ends.values() and self._all_read()

    def _all_read(self) -> bool:
        assert self._ends is not None
        heard = {
            queue: max(
                (
                    one.first + len(one.digests)
                    for one in self.history.fetched
                    if one.queue == queue
                ),
                default=0,
            )
            for queue in range(QUEUES)
        }
        return heard == self._ends

    def _look_at_disks(
        self, roots: dict[int, Path], configs: dict[int, Any], master: int, confirm: int
    ) -> None:
        history, world = self.history, self.world
        history.confirm = confirm
        history.cells = [
            Reign(cell.master, cell.epoch) for cell in world.ensemble.history if cell.master
        ]
        history.reigns = [Reign(replica, epoch) for replica, epoch in world.reigns]
        for replica, root in roots.items():
            store = open_stopped(configs[replica])
            try:
                if replica == master:
                    history.queues = queues_of(store, TOPIC, QUEUES)
                end = store.max_log_offset
            finally:
                store.close()
            history.replicas.append(replica_files(replica, root, end, confirm))
        assert ends_of(history.queues) == self._ends


async def _campaign(plan: Plan, folder: Path) -> tuple[Campaign, list[Violation]]:
    clock = loop_clock()
    random = Random(plan.seed)
    with simulated_threads(random):
        world = World(plan.seed, folder, clock, store=plan.store, **plan.settings)
        campaign = Campaign(plan, world)
        return campaign, await campaign.run()


def campaign(seed: int) -> tuple[Campaign, list[Violation]]:
    """Go through SEED; return it, and what must not have been."""
    with tempfile.TemporaryDirectory(prefix="replica-brokers-") as folder:
        return run(_campaign(Plan(seed), Path(folder)))


def catch(name: str, rule: Rule, seeds: range) -> tuple[int, Violation] | None:
    """Return the first of SEEDS in which the mutant NAME breaks RULE, and what was found; None: it does in none."""
    with mutant(name):
        for seed in seeds:
            for found in campaign(seed)[1]:
                if found.rule == rule:
                    return seed, found
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutant", default="", help="break this rule; a loss is to be found")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = range(given.first, given.first + given.seeds)
    if given.mutant:
        caught = catch(given.mutant, "acknowledged", seeds)
        _tell(f"{given.mutant}: {f'seed {caught[0]}: {caught[1]}' if caught else 'NOT FOUND'}")
        return 0 if caught else 1
    began_s, acknowledged, reigns = time.monotonic(), 0, 0
    with Pool(given.jobs, maxtasksperchild=200) as pool:
        for seed, heard, led, said in pool.imap(_outcome, seeds):
            acknowledged, reigns = acknowledged + heard, reigns + led
            if said:
                _tell(f"seed {seed}: {said}")
                return 1
    spent_s = time.monotonic() - began_s
    _tell(f"{given.seeds} seeds, {acknowledged} acknowledged, {reigns} reigns, {spent_s:.0f} s")
    return 0


def _outcome(seed: int) -> tuple[int, int, int, str]:
    """Go through SEED; return it, how much was acknowledged, how often a master began, and what was found."""
    logging.disable(logging.CRITICAL)
    try:
        found, violations = campaign(seed)
    except Exception:  # Whatever it is, the seed is told.
        return seed, 0, 0, traceback.format_exc()
    said = "\n".join([f"{one.rule}: {one.sentence}" for one in violations])
    return seed, found.acknowledged, len(found.world.reigns), said


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
