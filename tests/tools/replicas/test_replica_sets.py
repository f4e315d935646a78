"""The commands of `pocketmq replicas`, with a real ZooKeeper and replicas that answer what a test wants."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pocketmq.broker.replication.registry import LiveNode, ReplicaSetState
from pocketmq.broker.replication.zookeeper import ZooKeeperRegistry
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import NotEnoughReplicas
from pocketmq.proto.errors_wire import failure_of
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Call, MethodTable, serve, service, unary
from pocketmq.tools.zookeeper_server import ZooKeeperServer, free_ports

from ...integration.command import Done, Shell, pocketmq
from ...zookeeper.servers import running

pytestmark = [pytest.mark.java, pytest.mark.processes]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running(tmp_path_factory.mktemp("zookeeper")) as (server,):
        yield server


class Replica:
    """What answers at a replication port."""

    def __init__(self, name: str, replica_id: int) -> None:
        self.said = pb.ReplicaStatusReply(
            cluster="DefaultCluster",
            set=name,
            replica_id=replica_id,
            role=pb.FOLLOWER,
            has_session=True,
        )
        self.asked: list[object] = []
        self.refuses: Exception | None = None
        self.address = ""

    def methods(self) -> MethodTable:
        return service(
            "pocketmq.v1.Replication",
            {
                "Status": unary(pb.ReplicaStatusRequest, pb.ReplicaStatusReply, self._status),
                "MoveMaster": unary(pb.MoveMasterRequest, pb.MoveMasterReply, self._move),
                "AcceptLoss": unary(pb.AcceptLossRequest, pb.AcceptLossReply, self._accept),
            },
        )

    def _status(self, _request: pb.ReplicaStatusRequest, _call: Call) -> pb.ReplicaStatusReply:
        return self.said

    def _move(self, request: pb.MoveMasterRequest, _call: Call) -> pb.MoveMasterReply:
        self.asked.append(request)
        if self.refuses:
            raise self.refuses
        return pb.MoveMasterReply(epoch=self.said.epoch + 1, refused_ms=42)

    def _accept(self, request: pb.AcceptLossRequest, _call: Call) -> pb.AcceptLossReply:
        self.asked.append(request)
        return pb.AcceptLossReply()


class Stage:
    """A replica set that nobody has made yet, of three replicas, of which some answer."""

    def __init__(self, zookeeper: str, stack: AsyncExitStack) -> None:
        self.zookeeper = zookeeper
        self.name = f"orders-{next(_numbers)}"
        self.replicas = {one: Replica(self.name, one) for one in (1, 2, 3)}
        self._stack = stack

    async def begin(self, *answering: int) -> None:
        for one, port in zip(self.replicas, free_ports(3), strict=True):
            self.replicas[one].address = f"127.0.0.1:{port}"
            if one in answering:
                table = self.replicas[one].methods()
                await self._stack.enter_async_context(serve(table, port=port, describe=failure_of))

    @property
    def words(self) -> list[str]:
        return [f"{one}={replica.address}" for one, replica in self.replicas.items()]

    async def call(self, verb: str, *words: str, stdin: bytes = b"") -> Done:
        return await asyncio.to_thread(
            Shell(""), "replicas", verb, *words, "--zookeeper", self.zookeeper, stdin=stdin
        )

    async def registry(self) -> ZooKeeperRegistry:
        found = await ZooKeeperRegistry.open(
            self.zookeeper,
            "DefaultCluster",
            self.name,
            session_ms=5_000,
            now_ms=SystemClock().now_ms,
        )
        self._stack.push_async_callback(found.close)
        return found

    async def lead(self, master: int, in_sync: set[int], epoch: int = 7) -> ZooKeeperRegistry:
        """Have a record as a set has it that was led, and all of IN_SYNC live."""
        registry = await self.registry()
        addresses = {one: replica.address for one, replica in self.replicas.items()}
        await registry.create(
            ReplicaSetState(
                epoch=epoch, master=master, in_sync=frozenset(in_sync), replicas=addresses
            )
        )
        for one in in_sync:
            node = LiveNode(address=f"clients-{one}:8081", epoch=epoch, end=4096)
            await registry.announce(one, node)
        return registry


@pytest.fixture
async def stage(server: ZooKeeperServer) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(server.address, stack)


# ---------------------------------------------------------------- init


async def test_the_first_record_has_all_replicas_and_no_master(stage: Stage) -> None:
    await stage.begin()

    done = await stage.call("init", stage.name, *stage.words, "--json")

    assert done.code == 0, done
    assert done.documents == [
        {
            "cluster": "DefaultCluster",
            "set": stage.name,
            "epoch": 0,
            "in_sync": [1, 2, 3],
            "replicas": {str(one): of.address for one, of in stage.replicas.items()},
        }
    ]
    found = await (await stage.registry()).read()
    assert found is not None
    assert (found.cell.epoch, found.cell.master, found.cell.in_sync) == (0, 0, frozenset({1, 2, 3}))


async def test_a_record_is_never_overwritten(stage: Stage) -> None:
    await stage.begin(1)
    registry = await stage.lead(2, {1, 2})

    for source in ((), ("--seed-from", "1", "--yes")):
        done = await stage.call("init", stage.name, "1=127.0.0.1:1", *source)
        assert done.code == 5
        assert "exists already, in epoch 7, with the replicas 1, 2, 3: see" in done.err

    found = await registry.read()
    assert found is not None
    assert found.cell.epoch == 7
    same = await stage.call("init", stage.name, *stage.words, "--if-missing")
    assert (same.code, same.out) == (
        0,
        f"{stage.name} of DefaultCluster exists: epoch 7, master 2.\n",
    )
    other = await stage.call("init", stage.name, "1=127.0.0.1:1", "--if-missing")
    assert other.code == 5


async def test_a_record_by_which_nobody_was_master_may_be_corrected(stage: Stage) -> None:
    await stage.begin(1)
    assert (await stage.call("init", stage.name, "1=wrong:1")).code == 0
    stage.replicas[1].said.MergeFrom(pb.ReplicaStatusReply(epoch=7, end=4096))
    assert (await stage.call("init", stage.name, *stage.words[1:])).code == 0

    told = (await stage.call("status", stage.name)).out
    done = await stage.call("init", stage.name, *stage.words, "--seed-from", "1", "--yes")

    assert "no master yet, in sync 2, 3 (2 of 2)" in told
    assert done.code == 0, done
    found = await (await stage.registry()).read()
    assert found is not None
    assert (found.cell.epoch, found.cell.in_sync) == (8, frozenset({1}))
    assert set(found.cell.replicas) == {1, 2, 3}


async def test_status_tells_that_the_record_is_older_than_the_logs(stage: Stage) -> None:
    await stage.begin(1)
    assert (await stage.call("init", stage.name, *stage.words)).code == 0
    stage.replicas[1].said.MergeFrom(pb.ReplicaStatusReply(epoch=7, end=4096))

    told = (await stage.call("status", stage.name)).out

    assert (
        f"ZooKeeper, which lost data: `pocketmq replicas init {stage.name} … --seed-from ID`"
        in told
    )


async def test_replicas_with_a_log_need_to_be_told_which_goes_on(stage: Stage) -> None:
    await stage.begin(1, 2)
    stage.replicas[1].said.MergeFrom(pb.ReplicaStatusReply(epoch=7, end=4096, confirm=4000))
    stage.replicas[2].said.MergeFrom(pb.ReplicaStatusReply(epoch=9, end=5000, confirm=4000))

    done = await stage.call("init", stage.name, *stage.words)

    assert done.code == 2
    assert "1 has 4,096 bytes, 4,000 of them confirmed, in epoch 7; 2 has 5,000" in done.err
    assert "Give --seed-from with the replica whose log continues" in done.err


async def test_after_a_loss_the_record_has_a_later_epoch_than_any_replica(stage: Stage) -> None:
    await stage.begin(1, 2)
    stage.replicas[1].said.MergeFrom(pb.ReplicaStatusReply(epoch=7, end=4096))
    stage.replicas[2].said.MergeFrom(pb.ReplicaStatusReply(epoch=9, end=5000))
    words = ("init", stage.name, *stage.words, "--seed-from", "2")

    refused = await stage.call(*words, stdin=b"n\n")
    assert refused.code == 130
    assert await (await stage.registry()).read() is None
    done = await stage.call(*words, stdin=b"y\n")

    assert done.code == 0, done
    assert "replica 2 has 5,000 bytes" in done.err
    assert "replica 3 does not answer, its log is unknown" in done.err
    found = await (await stage.registry()).read()
    assert found is not None
    assert (found.cell.epoch, found.cell.master, found.cell.in_sync) == (10, 0, frozenset({2}))


async def test_an_address_of_another_replica_is_refused(stage: Stage) -> None:
    await stage.begin(1, 2)
    one, two, three = stage.words
    swapped = ["1=" + two.partition("=")[2], "2=" + one.partition("=")[2], three]

    done = await stage.call("init", stage.name, *swapped)

    assert done.code == 2
    assert "the address of replica 1 of" in done.err
    assert "belongs to replica 2 of" in done.err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["1"], "write a replica as ID=HOST:PORT, such as 1=10.0.0.1:8082"),
        (["a=b:1"], "write a replica as ID=HOST:PORT"),
        (["1=b"], '"replicas" at "1" must be "host:port"'),
        (["0=b:1"], '"replicas" has the id 0'),
        (["1=b:1", "1=c:1"], "each replica has an id and an address of its own"),
        (["1=b:1", "2=b:1"], "each replica has an id and an address of its own"),
        (["1=b:1", "--seed-from", "2"], "--seed-from 2: give the ID of one of the replicas"),
    ],
)
async def test_replicas_of_another_form_are_refused(words: list[str], fault: str) -> None:
    done = await asyncio.to_thread(Shell(""), "replicas", "init", "orders", *words)

    assert done.code == 2
    assert fault in done.err


# ---------------------------------------------------------------- replicas


async def test_replicas_are_added_moved_and_taken_out_while_the_set_is_led(stage: Stage) -> None:
    await stage.begin()
    registry = await stage.lead(2, {1, 2})
    before = await registry.read()

    done = await stage.call("change", stage.name, "4=d:1", "1=elsewhere:1", "--remove", "3")

    assert done.code == 0, done
    assert done.out.splitlines() == ["1=elsewhere:1", stage.words[1], "4=d:1"]
    after = await registry.read()
    assert before is not None
    assert after is not None
    assert replace(after.cell, replicas={}) == replace(before.cell, replicas={})


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--remove", "1"], "--remove 1: the replica is in sync, and counts for acknowledgements"),
        (["--remove", "9"], "--remove 9: the set has only the replicas 1, 2, 3"),
        (["4=d:1", "5=d:1"], "each replica has an id and an address of its own"),
        (["4=d"], '"replicas" at "4" must be "host:port"'),
        (["--remove", "3", "3=d:1"], "--remove 3: the replica has an address as well"),
        ([], "Give ID=HOST:PORT, or --remove ID"),
    ],
)
async def test_what_would_take_a_set_its_safety_is_refused(
    stage: Stage, words: list[str], fault: str
) -> None:
    await stage.begin()
    registry = await stage.lead(2, {1, 2})
    before = await registry.read()

    done = await stage.call("change", stage.name, *words)
    address = stage.words[0].partition("=")[2]
    taken = await stage.call("change", stage.name, f"4={address}")

    assert (done.code, taken.code) == (2, 2)
    assert fault in done.err
    assert f"replicas 1 and 4 would both have the address {address}: give each its own" in taken.err
    assert await registry.read() == before


# ---------------------------------------------------------------- status


async def test_status_shows_the_record_and_what_each_replica_says(stage: Stage) -> None:
    await stage.begin(1, 2)
    await stage.lead(2, {1, 2})
    stage.replicas[1].said.MergeFrom(pb.ReplicaStatusReply(epoch=7, end=4096, synced=4000))
    stage.replicas[2].said.MergeFrom(
        pb.ReplicaStatusReply(role=pb.MASTER, epoch=7, end=4100, synced=4100, confirm=4000)
    )

    done = await stage.call("status", stage.name)
    told = (await stage.call("status", stage.name, "--json")).documents[0]

    assert done.code == 0, done
    assert f"{stage.name} of DefaultCluster: epoch 7, master 2, in sync 1, 2 (2 of 3)" in done.out
    assert "it does not run" in done.out
    assert (told["epoch"], told["master"], told["in_sync"]) == (7, 2, [1, 2])
    first, second, third = told["replicas"]
    assert (first["role"], first["end"], first["clients"]) == ("follower", 4096, "clients-1:8081")
    assert (second["role"], second["confirm"], second["error"]) == ("master", 4000, None)
    assert not third["live"]
    assert "127.0.0.1" in third["error"]


async def test_status_shows_all_sets_and_those_whose_record_is_spoilt(stage: Stage) -> None:
    await stage.begin()
    registry = await stage.lead(2, {1, 2})
    other = Stage(stage.zookeeper, AsyncExitStack())
    await other.begin()
    assert (await other.call("init", other.name, *other.words)).code == 0
    await registry._session.ask(lambda client: client.set_async(registry.node, b"?"))

    told = {one["set"]: one for one in (await stage.call("status", "--json")).documents}
    alone = await stage.call("status", stage.name)

    assert "it is not JSON: b'?'" in told[stage.name]["error"]
    assert told[other.name]["master"] == 0
    assert alone.code == 2
    assert f"sets/{stage.name}/state: it is not JSON" in alone.err


async def test_a_set_that_is_not_there_is_named_with_what_makes_it(stage: Stage) -> None:
    for verb, *words in (
        ("status",),
        ("transfer", "1"),
        ("force-elect", "--accept-loss", "1", "--yes"),
    ):
        done = await stage.call(verb, "nowhere", *words)
        assert done.code == 2
        assert "has no replica set 'nowhere' in this ZooKeeper" in done.err


async def test_without_a_zookeeper_the_command_says_so() -> None:
    (port,) = free_ports(1)

    done = await asyncio.to_thread(
        Shell(""), "replicas", "status", "--zookeeper", f"127.0.0.1:{port}"
    )

    assert done.code == 4
    assert f"no ZooKeeper of 127.0.0.1:{port} has started a session" in done.err
    assert "check that it is running" in done.err


# ---------------------------------------------------------------- move and elect


async def test_the_master_is_asked_to_hand_over(stage: Stage) -> None:
    await stage.begin(1, 2)
    await stage.lead(2, {1, 2})
    stage.replicas[2].said.epoch = 7

    done = await stage.call("transfer", stage.name, "1", "--timeout", "3s", "--json")
    already = await stage.call("transfer", stage.name, "2")

    assert done.documents == [
        {"set": stage.name, "before": 2, "master": 1, "epoch": 8, "refused_ms": 42}
    ]
    assert stage.replicas[2].asked == [pb.MoveMasterRequest(set=stage.name, to=1, timeout_ms=3000)]
    assert "replica 2 is already the master, in epoch 7" in already.out


async def test_what_the_master_refuses_is_told(stage: Stage) -> None:
    await stage.begin(2)
    await stage.lead(2, {1, 2})
    stage.replicas[2].refuses = NotEnoughReplicas("replica 1 does not have all within 5 s")

    refused = await stage.call("transfer", stage.name, "1")
    unknown = await stage.call("transfer", stage.name, "4")

    assert refused.code == 4
    assert "replica 1 does not have all within 5 s" in refused.err
    assert unknown.code == 2
    assert "has the replicas 1, 2, 3, not 4" in unknown.err


async def test_a_loss_is_told_and_confirmed_before_a_replica_stands(stage: Stage) -> None:
    await stage.begin(1, 3)
    registry = await stage.lead(2, {2, 3})
    stage.replicas[1].said.end = 1_000
    stage.replicas[3].said.end = 5_000
    words = ("force-elect", stage.name, "--accept-loss", "1")

    live = await stage.call(*words, "--yes")
    assert live.code == 5
    assert f"without loss, use `pocketmq replicas transfer {stage.name} REPLICA`" in live.err
    await registry.close()

    refused = await stage.call(*words, stdin=b"n\n")
    assert refused.code == 130
    assert stage.replicas[1].asked == []
    done = await stage.call(*words, stdin=b"y\n")

    assert done.code == 0, done
    assert "Replica 1 is not in sync: acknowledged messages may be lost." in done.err
    assert "Replica 2, in sync, does not answer: records that only it has are lost." in done.err
    assert "Replica 3, in sync, has 4,000 bytes beyond the 1,000 of replica 1." in done.err
    assert stage.replicas[1].asked == [pb.AcceptLossRequest(set=stage.name, replica_id=1)]


async def test_a_master_that_came_back_unclean_may_be_elected_all_the_same(stage: Stage) -> None:
    await stage.begin(2)
    registry = await stage.lead(2, {2})
    (node,) = (await registry.live()).values()
    await registry.announce(2, replace(node, unclean=True))

    done = await stage.call("force-elect", stage.name, "--accept-loss", "2", "--yes", "--json")

    assert done.code == 0, done
    assert stage.replicas[2].asked == [pb.AcceptLossRequest(set=stage.name, replica_id=2)]


# ---------------------------------------------------------------- a broker that does not fit the record


@pytest.mark.long
async def test_a_replica_that_the_record_does_not_have_says_which_command_adds_it(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.begin()
    (port,) = free_ports(1)

    async def start(replica_id: int) -> Done:
        listen = ("--replication-listen", f"127.0.0.1:{port}", "--zookeeper", stage.zookeeper)
        words = ("--replica-set", stage.name, "--replica-id", str(replica_id), *listen)
        return await asyncio.to_thread(
            pocketmq, "broker", "--store", str(tmp_path / "store"), "--port", "0", *words
        )

    nowhere = await start(1)
    assert (await stage.call("init", stage.name, *stage.words)).code == 0
    new, elsewhere = await start(4), await start(1)

    assert {nowhere.code, new.code, elsewhere.code} == {2}
    assert f"`pocketmq replicas init {stage.name} 1=127.0.0.1:{port} …`" in nowhere.err
    assert f"`pocketmq replicas change {stage.name} 4=127.0.0.1:{port}`" in new.err
    assert f"`pocketmq replicas change {stage.name} 1=127.0.0.1:{port}`" in elsewhere.err
