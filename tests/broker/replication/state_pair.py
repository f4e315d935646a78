"""A master and a follower of the state beside the log: real stores and tables, a link that a test moves by hand."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path
from typing import Any

from pocketmq.broker.commit_texts import CommitTexts, commit_text_table
from pocketmq.broker.consume_stats import ConsumeStats, statistics_table
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.replication.file_stream import table_parts
from pocketmq.broker.replication.state_sink import StateSink
from pocketmq.broker.replication.state_source import StateSource
from pocketmq.broker.replication.table_part import TablePart
from pocketmq.broker.replication.table_stream import TableState
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.disk import Disk
from pocketmq.store.file_changes import stored_changes
from pocketmq.store.file_table import FileTable
from pocketmq.store.flush import Flusher
from pocketmq.store.format.state_tables import GROUPS, TOPICS, GroupConfig, TableForm, TopicConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.table_files import read_tables

from ...runs import Hand, make_run, open_store
from ...store.following import frames, take


class AtOnce(Flusher):
    """Has no thread."""

    def __init__(self) -> None:
        super().__init__("at once")

    def start(self) -> None:
        """Nothing is started."""


class Master:
    """The tables of a broker on the store at PATH, and their source in EPOCH."""

    def __init__(self, path: Path, clock: Hand, epoch: int = 1) -> None:
        self.clock = clock
        self.store = open_store(path, now_ms=clock, replica=True)
        disk = OsDisk()
        self.topics = FileTable(StateFile(disk, str(path), TOPICS.file), TOPICS, clock)
        self.groups = FileTable(StateFile(disk, str(path), GROUPS.file), GROUPS, clock)
        saver = AtOnce()
        for kept in (self.topics, self.groups):
            kept.start(saver, lambda function: function())
        self.tables = statistics_table(), commit_text_table()
        self.consume_stats, self.texts = (
            ConsumeStats(clock, self.tables[0]),
            CommitTexts(self.tables[1]),
        )
        self.offsets = Offsets(
            StateFile(disk, str(path), "consumerOffset.json"), clock, self.texts, self.store
        )
        self.levels: dict[int, int] = {}
        self.others: set[int] = {2}
        self.lead(epoch)

    def lead(self, epoch: int) -> None:
        def log_end() -> int:
            return self.store.max_log_offset

        parts = table_parts(
            self.topics,
            self.groups,
            self.offsets,
            lambda: self.levels,
            log_end,
        )
        parts += [TablePart(TableState(table)) for table in self.tables]
        self.source = StateSource(epoch, parts, log_end, lambda: self.others)

    def put_topic(self, name: str, queues: int = 4) -> None:
        self.topics.put(name, TopicConfig(name=name, read_queues=queues, write_queues=queues))

    def put_group(self, name: str, retries: int = 16) -> None:
        self.groups.put(name, GroupConfig(name=name, retry_times_max=retries))

    def send(self, topic: str = "A", count: int = 1) -> None:
        self.store.append(make_run(topic, 0, [b"body"] * count))


class Follower:
    """The sink on the store at PATH. A kill leaves what is on the disk; it starts again on a copy."""

    def __init__(self, path: Path, clock: Hand, disk: Disk | None = None) -> None:
        self.path = path
        self.clock = clock
        self.disk = disk
        self.confirm = 0
        self.acks: deque[pb.FollowStateAck] = deque()
        self._open()

    def _open(self) -> None:
        self.store: MessageStore = open_store(
            self.path, now_ms=self.clock, replica=True, disk=self.disk
        )
        self.store.follow()
        self.acks.clear()
        self.sink = StateSink(self.store, self.clock, self.clock, self.acks.append, AtOnce())
        self.sink.start()

    def kill(self) -> None:
        self.path = Path(shutil.copytree(self.path, f"{self.path}+"))
        self._open()

    def tables(self) -> dict[str, Any]:
        """Return what a broker finds that opens the tables as they lie on the disk now."""
        return tables_at(self.path)


def tables_at(path: Path) -> dict[str, Any]:
    """Return the tables of the store at PATH."""
    root, disk, clock = str(path), OsDisk(), Hand()
    topics: FileTable[Any]
    groups: FileTable[Any]
    forms: tuple[TableForm[Any], TableForm[Any]] = (TOPICS, GROUPS)
    topics, groups = (
        FileTable(
            StateFile(disk, root, form.file), form, clock, changes=stored_changes(disk, root, form)
        )
        for form in forms
    )
    statistics, commit_texts = statistics_table(), commit_text_table()
    read_tables(disk, f"{root}/pocketmq/tables", [statistics, commit_texts])
    consume_stats, texts = ConsumeStats(clock, statistics), CommitTexts(commit_texts)
    offsets = Offsets(StateFile(disk, root, "consumerOffset.json"), clock)
    return tables_of(topics, groups, offsets, consume_stats, texts)


def tables_of(
    topics: FileTable[Any],
    groups: FileTable[Any],
    offsets: Offsets,
    consume_stats: ConsumeStats,
    texts: CommitTexts,
) -> dict[str, Any]:
    return {
        "topics": dict(topics.entries),
        "groups": dict(groups.entries),
        "offsets": {name: dict(table.entries) for name, table in offsets.tables.items()},
        "statistics": dict(consume_stats.items()),
        "texts": {key: texts.get(key) for key in texts.known()},
    }


class Link:
    """A link between MASTER and FOLLOWER, replica 2."""

    last = 0

    def __init__(self, master: Master, follower: Follower) -> None:
        Link.last += 1
        self.number = Link.last
        self.master = master
        self.follower = follower
        self.frames: deque[pb.FollowState] = deque()
        follower.acks.clear()
        self._post(master.source.hello(self.number, 2, follower.sink.begin()))

    def _post(self, sent: list[tuple[int, pb.FollowState]]) -> None:
        for number, frame in sent:
            assert number == self.number
            self.frames.append(pb.FollowState.FromString(frame.SerializeToString()))

    def change(self, now_ms: int) -> None:
        """The master sends what changed."""
        self._post(self.master.source.changed(now_ms))

    def deliver(self) -> None:
        """The oldest frame arrives."""
        if self.frames:
            self.follower.sink.take(self.frames.popleft(), self.follower.confirm)

    def acknowledge(self) -> None:
        """The oldest acknowledgement arrives."""
        if self.follower.acks:
            self._post(self.master.source.acked(self.number, self.follower.acks.popleft()))

    def feed(self, size: int | None = None) -> None:
        """The follower gets the log, or some SIZE bytes of it, and hears that as much is confirmed."""
        import random

        master, follower = self.master.store, self.follower.store
        end = master.max_log_offset if size is None else follower.raw_end + size
        for data, at in frames(master, random.Random(1), follower.raw_end):
            take(follower, data[: end - at], at)
            if at + len(data) >= end:
                break
        self.confirm(follower.max_log_offset)

    def confirm(self, offset: int) -> None:
        self.follower.confirm = offset
        self.follower.sink.confirmed(offset)

    def settle(self) -> None:
        """All that is under way arrives, and is written."""
        for _ in range(8):
            self.master.clock.now_ms += 1_000
            self.change(self.master.clock.now_ms)
            self.feed()
            while self.frames:
                self.deliver()
            self.follower.sink.tick()
            while self.follower.acks:
                self.acknowledge()

    def cut(self) -> None:
        self.master.source.lost(self.number)
        self.frames.clear()
        self.follower.acks.clear()
