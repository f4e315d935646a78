"""A store with its atomic commits, without a network: requests in, answers as values, syncs when they are told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.groups.kept_leases import LeaseStore, lease_table
from pocketmq.broker.groups.lease_guard import LeaseGuard
from pocketmq.broker.groups.lease_table import LeasingMember, QueueKey, QueueRequest
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.broker.transactions.atomic_commits import AtomicCommits, CommitParts
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record
from pocketmq.store.disk import Disk
from pocketmq.store.format.state_tables import TopicConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...fake_calls import FakeCall
from ...runs import Device, make_run, records_of, small_config
from ...store.table_worlds import open_changes

GROUP = "transformers"
SOURCE, TARGET = "in", "out"


class Desk:
    """The parts of a broker that atomic commits need. BY_HAND: the device does what `sync` and `save` tell it to."""

    def __init__(
        self,
        path: Path,
        disk: Disk | None = None,
        *,
        clock: VirtualClock | None = None,
        by_hand: bool = False,
        **settings: Any,
    ) -> None:
        disk = disk or OsDisk()
        self.clock = clock or VirtualClock()
        self.config = BrokerConfig(**settings)
        sizes = {"log_file_size_bytes": 1 << 20, "queue_file_size_bytes": 6_000}
        config = small_config(path, **sizes)
        self.store = MessageStore.open(config, disk=disk, now_ms=self.clock.unix_ms)
        self.flusher, self.saver = Device(), Device()
        if by_hand:
            background = self.store._background
            background.log_flusher = background.group._flusher = self.flusher

        def state(name: str) -> StateFile:
            return StateFile(disk, config.path, name)

        topics, groups = open_changes(config.path, disk=disk)
        unix_ms = self.clock.unix_ms
        self.topics = Topics(state("topics.json"), self.config, unix_ms, changes=topics)
        self.groups = Groups(state("subscriptionGroup.json"), self.config, unix_ms, groups)
        self.offsets = Offsets(state("consumerOffset.json"), self.clock.unix_ms, log=self.store)
        if by_hand:
            self.offsets.start(self.saver, lambda function: function())
        self.timers = Timers(self.clock)
        self.leases = LeaseStore(lease_table(), self.timers, limit=lambda: 100)
        self.woken: list[tuple[str, int]] = []
        self.appends = Appender(self.store, self.woken.append)
        self.commits = AtomicCommits(
            self.config,
            CommitParts(
                store=self.store,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                appends=self.appends,
                lease_guard=LeaseGuard(self.leases, lambda: 30_000),
                check_not_popped=lambda group: None,
                timers=self.timers,
                unix_ms=self.clock.unix_ms,
            ),
        )

    def start(self) -> None:
        self.commits.start()

    def stop(self) -> None:
        """Stop cleanly."""
        self.commits.close()
        self.offsets.save()
        self.topics.table.close()
        self.groups.table.close()
        self.store.close()

    def kill(self) -> None:
        """End without a word; what was written to files stays."""
        self.store._close_files()

    # --- the device

    def sync(self) -> None:
        """Have the device do all that it was asked to."""
        while self.flusher.jobs or self.saver.jobs:
            self.flusher.do_next()
            self.saver.do_next()

    def save(self) -> None:
        """Write consumerOffset.json, as is done every few seconds."""
        store = self.store
        self.offsets.save_after_sync(lambda done: store.request_sync(store.max_log_offset, done))

    # --- what clients do

    def make_topic(self, name: str, type_name: str = "NORMAL") -> None:
        topic = TopicConfig(
            name=name,
            read_queues=4,
            write_queues=4,
            permission=6,
            attributes={"message.type": type_name},
        )
        self.topics.create(topic, update=False)

    def send(self, bodies: Sequence[str], topic: str = SOURCE, queue: int = 0) -> None:
        self.appends.append_one(make_run(topic, queue, [body.encode() for body in bodies]))

    def lease(self, member: str, queue: int = 0) -> int:
        """Grant QUEUE of SOURCE to MEMBER; return the token."""
        asker = LeasingMember(group=GROUP, member_id=member, instance_id="", lease_ms=30_000)
        want = QueueRequest(QueueKey(SOURCE, queue), 0)
        (lease,) = self.leases.table.ask(asker, [want], self.leases.now_ms())
        assert lease is not None, "somebody else has it"
        return lease.token

    def commit(
        self,
        commit_id: str,
        offsets: Mapping[int, tuple[int, int]],
        outputs: Mapping[tuple[str, int], Sequence[str]],
        lease: int = 0,
    ) -> FakeCall:
        """Ask for a commit of OFFSETS, begin and end by queue of SOURCE, and OUTPUTS, bodies by topic and queue."""
        return self.ask(request_of(commit_id, offsets, outputs, lease))

    def ask(self, request: pb.AtomicCommitRequest) -> FakeCall:
        """Ask for REQUEST; raise what it is refused with at once."""
        call = FakeCall()
        self.commits.commit(request, call)
        if call.error is not None:
            raise call.error
        return call

    # --- what is there

    def records(self, topic: str = TARGET, queue: int = 0) -> list[Record]:
        return records_of(self.store, topic, queue)

    def bodies(self, topic: str = TARGET, queue: int = 0) -> list[str]:
        return [record.body.decode() for record in self.records(topic, queue)]

    def committed(self, queue: int = 0) -> int | None:
        return self.offsets.committed(SOURCE, GROUP, queue)


def request_of(
    commit_id: str,
    offsets: Mapping[int, tuple[int, int]],
    outputs: Mapping[tuple[str, int], Sequence[str]],
    lease: int = 0,
) -> pb.AtomicCommitRequest:
    request = pb.AtomicCommitRequest(commit_id=commit_id, group=GROUP)
    for queue, (begin, end) in offsets.items():
        request.offsets.add(topic=SOURCE, queue=queue, begin=begin, end=end, lease=lease)
    for (topic, queue), bodies in outputs.items():
        ids = [{"UNIQ_KEY": f"{commit_id}-{number}", "TAGS": "t"} for number in range(len(bodies))]
        run = make_run(topic, queue, [body.encode() for body in bodies], ids)
        sizes = run.columns.sizes.tolist()
        request.runs.add(topic=topic, queue=queue, records=bytes(run.records), sizes=sizes)
    return request
