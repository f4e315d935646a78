"""`bench replicas`: three replicas, their name server and ZooKeeper on this machine, and what replication costs on it.

    failover     from a kill -9 of the master to the acknowledgement of the same producer's next send, acks="replicas";
                 how many messages a consumer gets again
    transfer     how long sends wait while leadership is transferred
    sends        one at a time, with what followers have written and with what they have synced; as many as one
                 producer can, next to acks="disk" with the same processes
    catch-up     of an empty follower while nothing is sent, and how much slower sends are meanwhile

Where times depend on what else runs here, the processor time is printed as well.

Needs the extra `replication`, a Java, and the jars of a ZooKeeper (--zookeeper-home). With the jars of Apache RocketMQ
(--apache) its master and slave run as well (apache_servers.py). All share the processors of this machine: a set on
three machines has three times as many.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import yaml

from ...client import Admin, AsyncProducer, Message, Producer, PullConsumer
from ...client.producing.receipt import Receipt
from ...proto.clock import SystemClock
from ...proto.errors import ConfigError, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import CallFailed, connect
from ..server_process import ServerProcess
from ..zookeeper_server import Ports, ZooKeeperServer, find_jars, free_ports
from . import measure, servers
from .apache_servers import ApacheSender, apache_jars, apache_pair, apache_version

SET: Final = "bench"
CLUSTER: Final = "bench-replicas"
REPLICAS: Final = 3
SESSION_MS: Final = 2_000
KILLS: Final = 20
MOVES: Final = 5
BODY_BYTES: Final = 128
CATCH_UP_BODY: Final = 1024
CATCH_UP_BYTES: Final = 1 << 30
_SETTLE_S: Final = 30.0
_CATCH_UP_S: Final = 600.0
_WARM_S: Final = 1.0
_LOOK_S: Final = 0.02
#: Each question is some milliseconds of the follower's processor.
_ASK_CATCH_UP_S: Final = 0.2
_ASK_S: Final = 1.0
#: The default `--seconds`, with which `KILLS` are made.
_USUAL_SECONDS: Final = 3.0
_ROUNDS: Final = 3
_STRETCH: Final = 1_000
#: Stretches that a storm of sends has under way.
_STRETCHES: Final = 32
_IN_FLIGHT: Final = 64
#: The setting of RocketMQ's brokers by which a send waits for their memory, or for the master's disk, too.
_FLUSHES: Final = {"memory": "ASYNC_FLUSH", "disk": "SYNC_FLUSH"}

Need = Literal["disk", "memory"]
Seen = TypeVar("Seen")


def _wait_for(
    look: Callable[[], Seen | None],
    what: str,
    at_most_s: float = _SETTLE_S,
    every_s: float = _LOOK_S,
) -> Seen:
    """Return what LOOK, EVERY_S, returns once that is something; raise, with WHAT was waited for, after AT_MOST_S."""
    end = time.perf_counter() + at_most_s
    while (seen := look()) is None:
        if time.perf_counter() >= end:
            raise PocketMQError(f"waited {at_most_s:.0f} s in vain for {what}")
        time.sleep(every_s)
    return seen


class BenchSet:
    """A replica set below FOLDER, with the ZooKeeper SERVER and the name server NAMESERVER."""

    def __init__(self, folder: Path, server: str, nameserver: str, need: Need) -> None:
        self.nameserver = nameserver
        self._folder = folder
        self._zookeeper = server
        self._need = need
        self._set = f"{SET}-{need}"
        self._ports = free_ports(2 * REPLICAS)
        self.processes: dict[int, ServerProcess] = {}

    def start(self) -> None:
        """Make the set and start all its replicas."""
        self._folder.mkdir(parents=True)
        asyncio.run(self._create())
        for replica in self.ids:
            self.begin(replica)
        self.settled()
        with Admin(self.nameserver) as admin:
            admin.create_topic(servers.TOPIC, queues=servers.QUEUES)

    @property
    def ids(self) -> range:
        return range(1, REPLICAS + 1)

    def address(self, replica: int) -> str:
        """Where the others reach REPLICA."""
        return f"127.0.0.1:{self._ports[REPLICAS + replica - 1]}"

    def store(self, replica: int) -> Path:
        return self._folder / f"{replica}"

    async def _create(self) -> None:
        from ...broker.replication.registry import ReplicaSetState
        from ...broker.replication.zookeeper import ZooKeeperRegistry

        registry = await ZooKeeperRegistry.open(
            self._zookeeper, CLUSTER, self._set, session_ms=5_000, now_ms=SystemClock().now_ms
        )
        try:
            addresses = {replica: self.address(replica) for replica in self.ids}
            await registry.create(
                ReplicaSetState(epoch=0, master=0, in_sync=frozenset(addresses), replicas=addresses)
            )
        finally:
            await registry.close()

    def begin(self, replica: int) -> None:
        """Start the process of REPLICA."""
        settings = {
            "broker": {"cluster": CLUSTER, "nameservers": [self.nameserver]},
            "replication": {
                "replica_set": self._set,
                "replica_id": replica,
                "zookeeper": [self._zookeeper],
                "listen": self.address(replica),
                "min_in_sync": 2,
                "replica_ack": self._need,
                "session_ms": SESSION_MS,
            },
        }
        path = self._folder / f"{replica}.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        arguments = ("--config", str(path), "--port", str(self._ports[replica - 1]))
        self.processes[replica] = ServerProcess(self.store(replica), *arguments, verb="broker")

    def stop(self) -> None:
        """End all replicas, as `kill -9` does: their stores are thrown away."""
        for process in self.processes.values():
            process.kill()

    def statuses(self) -> dict[int, pb.ReplicaStatusReply]:
        """Return the status of each replica that answers."""
        return asyncio.run(self._statuses())

    def status(self, replica: int) -> pb.ReplicaStatusReply | None:
        """Return what REPLICA says of itself; None: it does not answer."""
        return asyncio.run(self._ask(replica))

    def cpu_seconds(self) -> dict[int, float]:
        """Return what processor time each process that runs has used."""
        running = (one for one in self.processes.items() if one[1].is_running)
        return {replica: process.cpu_seconds() for replica, process in running}

    async def _statuses(self) -> dict[int, pb.ReplicaStatusReply]:
        found = await asyncio.gather(*(self._ask(replica) for replica in self.ids))
        return {
            replica: status
            for replica, status in zip(self.ids, found, strict=True)
            if status is not None
        }

    async def _ask(self, replica: int) -> pb.ReplicaStatusReply | None:
        with suppress(CallFailed):
            status: pb.ReplicaStatusReply = await self._call(
                replica, "Status", pb.ReplicaStatusRequest(), pb.ReplicaStatusReply, _ASK_S
            )
            return status
        return None

    async def _call(
        self, replica: int, method: str, request: Any, reply_type: Any, timeout_s: float
    ) -> Any:
        """Return what REPLICA answers to METHOD at its replication port."""
        async with connect(self.address(replica)) as channel:
            ask = channel.unary_unary(
                f"/pocketmq.v1.Replication/{method}",
                type(request).SerializeToString,
                reply_type.FromString,
            )
            return await ask(request, timeout=timeout_s)

    def settled(self) -> int:
        """Wait until a master has all others in sync; return the master."""
        return _wait_for(
            self._master_of_all, f"all replicas in sync: see the logs in {self._folder}"
        )

    def _master_of_all(self) -> int | None:
        statuses = self.statuses()
        for replica, status in statuses.items():
            if status.role == pb.MASTER and len(status.in_sync) == REPLICAS == len(statuses):
                return replica
        return None

    def move(self, master: int, to: int) -> None:
        """Transfer the master from MASTER to replica TO."""
        request = pb.MoveMasterRequest(set=self._set, to=to)
        try:
            asyncio.run(self._call(master, "MoveMaster", request, pb.MoveMasterReply, _SETTLE_S))
        except CallFailed as failed:
            raise PocketMQError(f"transfer failed: {failed.details()}") from failed


def replicas(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure a replica set."""
    if not conditions.zookeeper_home:
        raise ConfigError("bench replicas needs the jars of a ZooKeeper: --zookeeper-home FOLDER")
    figure = measure.Figure(
        name="replicas",
        what=f"{REPLICAS} replicas and ZooKeeper here: acks=replicas, {BODY_BYTES} B, one producer",
    )
    apache = Path(conditions.apache) if conditions.apache else None
    if apache is not None:
        apache_jars(apache)
    kills = max(1, round(KILLS * conditions.seconds / _USUAL_SECONDS))
    with _set(conditions, "memory") as replica_set:
        _one_by_one(replica_set, conditions.seconds, figure, "memory")
    with _set(conditions, "disk") as replica_set:
        _one_by_one(replica_set, conditions.seconds, figure, "disk")
        _pipelined(replica_set, conditions.seconds, figure)
        figure.facts |= _hand_overs(replica_set)
        figure.facts |= _failovers(replica_set, kills)
        figure.facts |= _catch_up(replica_set)
        figure.facts |= _catch_up_beside_sends(replica_set, conditions.seconds)
    figure.p50_ms, figure.p99_ms = figure.facts["disk_p50_ms"], figure.facts["disk_p99_ms"]
    writes = measure.synced_writes_per_second(conditions.folder)
    figure.beside["fdatasync_ms"] = 1000 / writes
    if apache is not None:
        figure.beside |= _apache(apache, conditions)
    figure.aim = (figure.facts["failover_p95_s"], 3.0, False)
    figure.notes = [*_notes(figure), *_plain_notes(figure)]
    if apache is not None:
        figure.notes.append(_apache_note(figure, apache_version(apache)))
    return figure


def _notes(figure: measure.Figure) -> list[str]:
    facts = figure.facts
    lines: Sequence[tuple[str, float, str, float, bool]] = (
        ("kill -9 of the master to the next acknowledged send, p95", facts["failover_p95_s"], "s", 3.0, False),
        ("hand-over, longest wait of a send", facts["hand_over_s"], "s", 0.3, False),
        ("one at a time, written, p50", facts["memory_p50_ms"], "ms", 1.0, False),
        (
            "one at a time, synced, p50",
            facts["disk_p50_ms"],
            "ms",
            facts["memory_p50_ms"] + figure.beside["fdatasync_ms"],
            False,
        ),
        ("pipelined, acks=replicas / acks=disk", facts["replicas_to_disk"], "", 0.5, True),
        ("catch-up of an empty follower, nothing sent meanwhile", facts["catch_up_mb_per_second"], "MB/s", 200.0, True),
        ("loss of send rate during a catch-up", facts["foreground_lost_percent"], "%", 20.0, False),
        ("redelivered after a failover", facts["redelivered_ms"], "ms' worth", 100.0, False),
    )  # fmt: skip
    return [
        f"{what}: {value:.3g} {unit}, aim {'≥' if more else '≤'} {aim:.3g}"
        f" {'met' if (value >= aim if more else value <= aim) else 'missed'}"
        for what, value, unit, aim, more in lines
    ]


def _plain_notes(figure: measure.Figure) -> list[str]:
    facts = figure.facts
    return [
        *(
            f"processor time of one send at a time, {need}: master {facts[f'{need}_master_us']:.0f} µs, each follower"
            f" {facts[f'{need}_follower_us']:.0f} µs, client {facts[f'{need}_client_us']:.0f} µs"
            for need in _FLUSHES
        ),
        f"processor time of a catch-up: master {facts['catch_up_master_ms_per_mib']:.2f} ms a MiB, follower"
        f" {facts['catch_up_follower_ms_per_mib']:.2f} ms a MiB",
        f"with sends ({facts['foreground_messages_per_second']:,.0f} per second, the log grew by"
        f" {facts['foreground_growth_mb_per_second']:.1f} MB/s) the follower came nearer by"
        f" {facts['foreground_nearer_mb_per_second']:.1f} MB/s",
    ]


def _apache(home: Path, conditions: measure.BenchConditions) -> dict[str, float]:
    """Return what RocketMQ's master and slave in HOME do with single sends."""
    found: dict[str, float] = {}
    for need, flush in _FLUSHES.items():
        folder = conditions.folder / f"apache-{need}"
        with apache_pair(home, folder, flush) as master:
            sender = ApacheSender(master, BODY_BYTES)
            found[f"apache_{need}_p50_ms"], found[f"apache_{need}_p99_ms"] = measure.percentiles_ms(
                sender.one_by_one(conditions.seconds)
            )
            found[f"apache_{need}_messages_per_second"] = sender.per_second(
                _IN_FLIGHT, conditions.seconds
            )
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _apache_note(figure: measure.Figure, version: str) -> str:
    beside = figure.beside
    each = (
        f"{flush}: p50 {beside[f'apache_{need}_p50_ms']:.3g} ms one at a time,"
        f" {beside[f'apache_{need}_messages_per_second']:,.0f} per second with {_IN_FLIGHT} in flight"
        for need, flush in _FLUSHES.items()
    )
    return (
        f"for comparison Apache RocketMQ {version}, SYNC_MASTER and one slave, inSyncReplicas=2, single sends by a"
        f" remoting client: {'; '.join(each)}"
    )


@contextmanager
def _set(conditions: measure.BenchConditions, need: Need) -> Iterator[BenchSet]:
    """A set that needs NEED, in a folder of its own, with a ZooKeeper and a name server of its own."""
    folder = conditions.folder / need
    jars = find_jars(Path(conditions.zookeeper_home))
    server = ZooKeeperServer(jars, folder / "zookeeper", [Ports(*free_ports(3))])
    with ExitStack() as stack:
        server.start()
        stack.callback(server.kill)
        asyncio.run(_serving(server))
        nameserver = stack.enter_context(ServerProcess(None, "--port", "0", verb="nameserver"))
        replica_set = BenchSet(folder / "set", server.address, nameserver.nameserver, need)
        stack.callback(replica_set.stop)
        replica_set.start()
        yield replica_set
    shutil.rmtree(folder, ignore_errors=True)


async def _serving(server: ZooKeeperServer) -> None:
    await server.serving()


def _one_by_one(replica_set: BenchSet, seconds: float, figure: measure.Figure, need: Need) -> None:
    """Note p50 and p99 of sends that wait for one another, and what processor time one takes."""
    latencies: list[float] = []
    message = Message(servers.TOPIC, bytes(BODY_BYTES))
    master = replica_set.settled()
    with Producer(replica_set.nameserver, acks="replicas") as producer:
        for _ in range(100):
            producer.send(message)
        own, used = measure.own_cpu_seconds(), replica_set.cpu_seconds()
        end = time.perf_counter() + seconds
        while (sent := time.perf_counter()) < end:
            producer.send(message)
            latencies.append(time.perf_counter() - sent)
        own = measure.own_cpu_seconds() - own
        used = {one: later - used[one] for one, later in replica_set.cpu_seconds().items()}
    p50_ms, p99_ms = measure.percentiles_ms(latencies)
    led = used.pop(master)
    figure.facts |= {
        f"{need}_p50_ms": p50_ms,
        f"{need}_p99_ms": p99_ms,
        f"{need}_master_us": led / len(latencies) * 1e6,
        f"{need}_follower_us": sum(used.values()) / len(used) / len(latencies) * 1e6,
        f"{need}_client_us": own / len(latencies) * 1e6,
    }


def _pipelined(replica_set: BenchSet, seconds: float, figure: measure.Figure) -> None:
    """Measure one producer with acks="replicas" and with "disk", alternately; keep the best of each."""
    rates: dict[str, list[float]] = {"disk": [], "replicas": []}
    for _ in range(_ROUNDS):
        for acks in ("disk", "replicas"):
            rates[acks].append(_send_for(replica_set, acks, seconds / 2))
    disk, ours = max(rates["disk"]), max(rates["replicas"])
    figure.messages_per_second = ours
    figure.bytes_per_second = ours * BODY_BYTES
    figure.facts |= {"disk_messages_per_second": disk, "replicas_to_disk": ours / disk}


def _send_for(replica_set: BenchSet, acks: Any, seconds: float) -> float:
    """Return how many messages per second are acknowledged of those that one thread passes."""
    body = bytes(BODY_BYTES)
    count = 0
    with Producer(replica_set.nameserver, acks=acks) as producer:
        producer.send(Message(servers.TOPIC, body))
        last = producer.send_nowait(Message(servers.TOPIC, body))
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(_STRETCH):
                last = producer.send_nowait(Message(servers.TOPIC, body))
            count += _STRETCH
        producer.flush()
        took = time.perf_counter() - began
        last.result()
    return count / took


class _Sending:
    """Sends one message after the other with acks="replicas" on a thread of its own, and notes when each was there."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: By `time.perf_counter`.
        self.acknowledged: list[float] = []

    def __enter__(self) -> _Sending:
        self._thread.start()
        try:
            _wait_for(lambda: self.acknowledged or None, "a first acknowledgement")
        except PocketMQError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        message = Message(servers.TOPIC, bytes(BODY_BYTES))
        with Producer(
            self._nameserver, acks="replicas", delivery_timeout_ms=60_000, retry_backoff_max_ms=100
        ) as producer:
            while not self._ending.is_set():
                producer.send(message)
                self.acknowledged.append(time.perf_counter())

    def wait_from(self, instant: float) -> float:
        """Wait for the first acknowledgement after the gap that contains INSTANT; return how long after it that is."""
        # Acknowledgements from before its end may arrive a moment later.
        gap = instant + 0.05
        acknowledged = _wait_for(
            lambda: next((one for one in self.acknowledged[-1_000:] if one > gap), None),
            "an acknowledgement after a failover",
        )
        return acknowledged - instant


def _hand_overs(replica_set: BenchSet) -> dict[str, float]:
    """Return the longest time without an acknowledgement around transfers of leadership."""
    longest = 0.0
    with _Sending(replica_set.nameserver) as sending:
        for _ in range(MOVES):
            master = replica_set.settled()
            began = time.perf_counter()
            replica_set.move(master, master % REPLICAS + 1)
            replica_set.settled()
            sending.wait_from(time.perf_counter())
            times = [one for one in sending.acknowledged if one > began - 0.5]
            longest = max(longest, float(np.diff(times).max()))
    return {"hand_over_s": longest, "hand_overs": MOVES}


def _failovers(replica_set: BenchSet, kills: int) -> dict[str, float]:
    """Return how long sends wait after kills of the master, and what a consumer is handed again."""
    gaps: list[float] = []
    again_ms: list[float] = []
    with _Sending(replica_set.nameserver) as sending, _Reading(replica_set.nameserver) as reading:
        for _ in range(kills):
            master = replica_set.settled()
            time.sleep(0.5)
            killed = time.perf_counter()
            replica_set.processes[master].kill()
            gaps.append(sending.wait_from(killed))
            replica_set.begin(master)
            replica_set.settled()
            again_ms.append(reading.handed_again_ms(killed))
    p50, p95 = np.percentile(gaps, [50, 95])
    return {
        "failovers": kills,
        "failover_p50_s": float(p50),
        "failover_p95_s": float(p95),
        "failover_most_s": max(gaps),
        "redelivered_ms": max(again_ms),
    }


class _Reading:
    """A consumer on a thread of its own, which commits as often as one does that says nothing of it."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: When each (queue, offset) was delivered first.
        self._handed: dict[tuple[int, int], float] = {}
        #: When redelivered messages were first delivered, and when they were redelivered.
        self._again: list[tuple[float, float]] = []

    def __enter__(self) -> _Reading:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        with PullConsumer("bench", servers.TOPIC, self._nameserver, start="latest") as consumer:
            while not self._ending.is_set():
                with suppress(PocketMQError):
                    for message in consumer.poll(timeout_ms=200):
                        where, now = (message.queue, message.queue_offset), time.perf_counter()
                        first = self._handed.setdefault(where, now)
                        if first != now:
                            self._again.append((first, now))

    def handed_again_ms(self, since: float) -> float:
        """Return how long before SINCE the oldest redelivered message was first delivered."""
        oldest = min((first for first, now in self._again if now > since >= first), default=since)
        return (since - oldest) * 1000


def _catch_up(replica_set: BenchSet) -> dict[str, float]:
    """Return how fast an empty follower has the log while nothing is sent, and what it costs both ends."""
    master, follower = _emptied(replica_set)
    asyncio.run(_fill(replica_set.nameserver))
    end = _end_of(replica_set, master)
    replica_set.begin(follower)
    first = _end_of(replica_set, follower)
    began, before = time.perf_counter(), replica_set.cpu_seconds()
    at = _wait_for(
        lambda: now if (now := _end_of(replica_set, follower)) >= end else None,
        f"log offset {end} on an empty follower",
        _CATCH_UP_S,
        _ASK_CATCH_UP_S,
    )
    took, after = time.perf_counter() - began, replica_set.cpu_seconds()
    cpu_ms = {one: (after[one] - before[one]) * 1000 for one in (master, follower)}
    return {
        "catch_up_bytes": at - first,
        "catch_up_seconds": took,
        "catch_up_mb_per_second": (at - first) / took / 1e6,
        "catch_up_master_ms_per_mib": cpu_ms[master] / ((at - first) / measure.MIB),
        "catch_up_follower_ms_per_mib": cpu_ms[follower] / ((at - first) / measure.MIB),
    }


def _catch_up_beside_sends(replica_set: BenchSet, seconds: float) -> dict[str, float]:
    """Return what as many sends with acks="disk" as one producer can lose while an empty follower catches up."""
    replica_set.settled()
    master, follower = _emptied(replica_set)
    with _Storm(replica_set.nameserver) as storm:
        time.sleep(_WARM_S)
        before = storm.rate_for(seconds)
        replica_set.begin(follower)
        # Its process has started, and the log has: what follows is the catch-up alone.
        _wait_for(lambda: _end_of(replica_set, follower) or None, "bytes on an empty follower")
        began = time.perf_counter()
        firsts = [_end_of(replica_set, replica) for replica in (master, follower)]
        beside = storm.rate_for(seconds)
        lasts = [_end_of(replica_set, replica) for replica in (master, follower)]
        took = time.perf_counter() - began
    grown, taken = (last - first for first, last in zip(firsts, lasts, strict=True))
    return {
        "foreground_messages_per_second": beside,
        "foreground_lost_percent": max(0.0, 100 * (1 - beside / before)),
        "foreground_growth_mb_per_second": grown / took / 1e6,
        "foreground_nearer_mb_per_second": (taken - grown) / took / 1e6,
    }


def _emptied(replica_set: BenchSet) -> tuple[int, int]:
    """Kill a follower, and delete its store; return the master and it when the set no longer waits for it."""
    master = replica_set.settled()
    follower = master % REPLICAS + 1
    replica_set.processes[follower].kill()
    shutil.rmtree(replica_set.store(follower))

    def is_without() -> bool | None:
        status = replica_set.status(master)
        return True if status is not None and follower not in status.in_sync else None

    _wait_for(is_without, f"a set without replica {follower}")
    return master, follower


class _Storm:
    """As many sends with acks="disk" as one thread passes, of which some thousands are under way."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: When each stretch was acknowledged, by `time.perf_counter`.
        self._acknowledged: list[float] = []

    def __enter__(self) -> _Storm:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        body = bytes(BODY_BYTES)
        with Producer(self._nameserver, acks="disk", delivery_timeout_ms=60_000) as producer:
            ends: deque[Future[Receipt]] = deque()
            while not self._ending.is_set():
                for _ in range(_STRETCH - 1):
                    producer.send_nowait(Message(servers.TOPIC, body))
                ends.append(producer.send_nowait(Message(servers.TOPIC, body)))
                if len(ends) > _STRETCHES:
                    ends.popleft().result()
                    self._acknowledged.append(time.perf_counter())

    def rate_for(self, seconds: float) -> float:
        """Return how many messages per second are acknowledged in the next SECONDS, and until some were."""
        began, before = time.perf_counter(), len(self._acknowledged)
        time.sleep(seconds)
        _wait_for(lambda: self._acknowledged[before:] or None, "an acknowledgement of a storm")
        times = self._acknowledged[before:]
        return len(times) * _STRETCH / (times[-1] - began)


def _end_of(replica_set: BenchSet, replica: int) -> int:
    return _wait_for(lambda: replica_set.status(replica), f"an answer of replica {replica}").end


async def _fill(nameserver: str) -> None:
    """Send `CATCH_UP_BYTES` of log."""
    batches = CATCH_UP_BYTES // (servers.record_bytes(CATCH_UP_BODY) * _STRETCH)
    async with AsyncProducer(nameserver, acks="memory") as producer:
        for at in range(0, batches, 16):
            some = range(min(16, batches - at))
            await asyncio.gather(
                *(producer.send_many(servers.batch(_STRETCH, CATCH_UP_BODY)) for _ in some)
            )
