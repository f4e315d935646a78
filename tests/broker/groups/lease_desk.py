"""Leases of a broker on a virtual clock, asked for without a wire."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.groups.kept_leases import LeaseStore, lease_table
from pocketmq.broker.groups.lease_guard import LeaseGuard
from pocketmq.broker.groups.leases import LeaseService
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.disk import Disk
from pocketmq.store.flush import Flusher
from pocketmq.store.format.state_tables import TopicConfig
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.table_journal import JournalParts, TableJournal

from ...fake_calls import FakeCall, FakeUser
from ...store.table_worlds import FakeLog

TOPIC = "T"
QUEUES = 3
LEASE_MS = 20_000


class LeaseCall(FakeCall):
    """A request for leases, and its answer."""

    @property
    def tokens(self) -> list[int] | None:
        """The tokens that were granted; None: it was not answered, or not with leases."""
        return (
            [one.token for one in self.answer.queues]
            if isinstance(self.answer, pb.LeaseReply)
            else None
        )


class Desk:
    """Leases of a broker on a virtual clock."""

    def __init__(self, path: Path, disk: Disk | None = None, **config: Any) -> None:
        self.clock = VirtualClock()
        self.timers = Timers(self.clock)
        self.timers.start()
        self.disk = disk or OsDisk()
        settings_ = BrokerConfig(**{"lease_ms": LEASE_MS, **config})

        def file(name: str) -> StateFile:
            return StateFile(self.disk, str(path), name)

        now_ms = self.clock.now_ms
        self.topics = Topics(file("topics.json"), settings_, now_ms)
        if "T" not in {topic.name for topic in self.topics.all(include_system=False)}:
            topic = TopicConfig(name=TOPIC, read_queues=QUEUES, write_queues=QUEUES)
            self.topics.create(topic, update=False)
        kept_as = lease_table()
        self.journal = TableJournal(
            JournalParts(
                disk=self.disk,
                folder=str(path / "pocketmq" / "tables"),
                log=FakeLog(random.Random(1)),
                flusher=Flusher("not started: syncs at once"),
                clock=self.clock,
                call_owner=lambda function: function(),
                failed=lambda error: None,
            )
        )
        self.journal.add(kept_as)
        self.journal.open()
        self.journal.start(lambda function: function())
        self.timers.every(500, self.journal.tick)
        self.kept = kept = LeaseStore(kept_as, self.timers, limit=lambda: settings_.leases_max)
        self.lease_guard = LeaseGuard(kept, lambda: settings_.lease_ms)
        self.leases = LeaseService(
            settings_,
            self.topics,
            Groups(file("subscriptionGroup.json"), settings_, now_ms),
            Offsets(file("consumerOffset.json"), now_ms),
            self.timers,
            kept,
        )

    def ask(
        self,
        member_id: str,
        *queues: int,
        wait_ms: int = 0,
        user: FakeUser | None = None,
        **fields: Any,
    ) -> LeaseCall:
        call = LeaseCall(user=user)
        request = pb.LeaseRequest(
            group="g",
            member_id=member_id,
            queues=[pb.QueueLease(topic=TOPIC, queue=queue) for queue in queues],
            wait_ms=wait_ms,
            **fields,
        )
        self.leases.lease(request, call)
        return call

    def release(self, member_id: str, queue: int, *, user: FakeUser | None = None) -> None:
        queues = [pb.QueueLease(topic=TOPIC, queue=queue)]
        request = pb.ReleaseRequest(group="g", member_id=member_id, queues=queues)
        self.leases.release(request, LeaseCall(user=user))

    def fetch(self, queue: int, token: int) -> None:
        self.lease_guard.renew_by_fetch("g", TOPIC, queue, token)

    def fetch_all(self, member_id: str, queues: tuple[int, ...]) -> None:
        """Have MEMBER_ID fetch those of QUEUES that it holds."""
        for lease in self.leases.of_group("g"):
            if lease.member_id == member_id and lease.queue in queues:
                self.fetch(lease.queue, lease.token)

    def holders(self) -> dict[int, str]:
        return {lease.queue: lease.member_id for lease in self.leases.of_group("g")}
