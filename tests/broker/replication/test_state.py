"""State beside the log: followers end with what the master has, no offset above their log, nothing answered is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pocketmq.broker.replication import state_source, table_part
from pocketmq.broker.replication.file_stream import GROUPS_FILE, TOPICS_FILE
from pocketmq.broker.replication.table_part import TablePart
from pocketmq.proto.errors import InvalidArgument, MasterFenced, PocketMQError, StoreError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.format.state_tables import parse_delay_offsets
from pocketmq.store.offsets_file import OFFSETS_FILE

from ...fakes import FaultyDisk
from ...runs import Hand
from .state_pair import Follower, Link, Master, tables_at, tables_of


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Master, Follower, Link]:
    clock = Hand()
    master, follower = Master(tmp_path / "master", clock), Follower(tmp_path / "follower", clock)
    return master, follower, Link(master, follower)


@pytest.fixture
def failing(tmp_path: Path) -> tuple[Master, Follower, Link, FaultyDisk]:
    """A pair that has settled, and the follower's disk, which can fail."""
    clock, disk = Hand(), FaultyDisk()
    master = Master(tmp_path / "master", clock)
    follower = Follower(tmp_path / "follower", clock, disk)
    link = Link(master, follower)
    link.settle()
    return master, follower, link, disk


Pair = tuple[Master, Follower, Link]
FailingPair = tuple[Master, Follower, Link, FaultyDisk]


def state_of(master: Master) -> dict[str, object]:
    return tables_of(
        master.topics, master.groups, master.offsets, master.consume_stats, master.texts
    )


def test_a_follower_has_what_its_master_has(pair: Pair) -> None:
    master, follower, link = pair
    master.put_topic("A")
    master.put_group("g", retries=3)
    master.send(count=5)
    master.offsets.commit("A", "g", 0, 5, "half of it")
    master.levels[3] = 7
    link.settle()

    assert follower.tables() == state_of(master)
    assert master.source.has_all(2)
    levels = (follower.path / "config" / "delayOffset.json").read_text()
    assert parse_delay_offsets(levels).offsets == {3: 7}


def test_a_diff_has_only_what_changed(pair: Pair) -> None:
    master, _, link = pair
    for name in "ABC":
        master.put_topic(name)
    link.settle()
    master.put_topic("B", queues=9)
    master.topics.drop("C")
    link.change(master.clock.now_ms)

    frame = link.frames.popleft()
    assert frame.file == TOPICS_FILE
    beans = json.loads(frame.diff)["topicConfigTable"]
    assert beans["B"]["readQueueNums"] == 9
    assert beans["C"] is None
    assert len(beans) == 2


def test_offsets_go_out_together_every_hundred_milliseconds(pair: Pair) -> None:
    master, _, link = pair
    master.send(count=9)
    link.settle()
    link.change(now := master.clock.now_ms + 1_000)
    for offset in range(1, 9):
        master.offsets.commit("A", "g", 0, offset)
        link.change(now + offset)
    assert not link.frames
    link.change(now + state_source.COALESCED_MS)
    assert [json.loads(frame.diff) for frame in link.frames] == [{"offsetTable": {"A@g": {"0": 8}}}]


def test_an_offset_waits_until_the_log_is_confirmed_as_far(pair: Pair) -> None:
    master, follower, link = pair
    link.settle()
    master.send(count=5)
    master.offsets.commit("A", "g", 0, 5)
    link.change(master.clock.now_ms + 200)
    link.deliver()
    follower.sink.tick()
    assert "A@g" not in follower.tables()["offsets"]["offsetTable"]
    assert not follower.acks

    link.feed()
    follower.sink.tick()
    assert follower.tables()["offsets"]["offsetTable"] == {"A@g": {0: 5}}
    assert [ack.file for ack in follower.acks] == [OFFSETS_FILE]


def test_what_waits_for_a_log_that_never_comes_is_not_taken_in(pair: Pair) -> None:
    master, follower, link = pair
    link.settle()
    master.send(count=5)
    master.offsets.commit("A", "g", 0, 5)
    link.change(master.clock.now_ms + 200)
    link.deliver()
    link.cut()

    follower.store.lead()
    follower.sink.lead()
    assert follower.tables()["offsets"]["offsetTable"] == {}


def test_what_waits_for_no_more_than_the_log_has_counts_once_it_leads(pair: Pair) -> None:
    master, follower, link = pair
    link.settle()
    master.send(count=5)
    master.offsets.commit("A", "g", 0, 5)
    link.change(master.clock.now_ms + 200)
    link.deliver()
    confirm = follower.confirm
    link.feed()
    assert confirm < follower.store.max_log_offset
    follower.store.lead()
    follower.sink.lead()
    assert follower.tables()["offsets"]["offsetTable"] == {"A@g": {0: 5}}


def test_a_topic_is_answered_when_all_of_the_maximal_set_have_it(pair: Pair) -> None:
    master, follower, link = pair
    link.settle()
    told: list[PocketMQError | None] = []
    master.put_topic("A")
    master.source.when_replicated(told.append, TOPICS_FILE)
    link.change(master.clock.now_ms)
    link.deliver()
    assert not told
    assert "A" in follower.tables()["topics"], "it outlives a kill before it is acknowledged"
    link.acknowledge()
    assert told == [None]


def test_a_follower_that_leaves_the_set_is_not_waited_for(pair: Pair) -> None:
    master, _, link = pair
    told: list[PocketMQError | None] = []
    master.put_topic("A")
    master.source.when_replicated(told.append, TOPICS_FILE)
    link.cut()
    assert not told
    master.others.clear()
    master.source.changed(master.clock.now_ms)
    assert told == [None]


def test_who_waits_when_the_epoch_ends_is_told_so(pair: Pair) -> None:
    master, _, _ = pair
    told: list[PocketMQError | None] = []
    master.put_topic("A")
    master.source.when_replicated(told.append, TOPICS_FILE)
    fenced = MasterFenced("epoch 2 has begun")
    master.source.close(fenced)
    master.source.when_replicated(told.append, GROUPS_FILE)
    assert told == [fenced, fenced]


def test_a_link_that_comes_again_brings_what_was_missed_and_no_more(pair: Pair) -> None:
    master, follower, link = pair
    for name in "ABC":
        master.put_topic(name)
    link.settle()
    link.cut()
    master.put_topic("D")
    again = Link(master, follower)
    assert [frame.file for frame in again.frames] == [TOPICS_FILE]
    assert list(json.loads(again.frames[0].diff)["topicConfigTable"]) == ["D"]


def test_a_follower_that_was_killed_gets_everything_again(pair: Pair) -> None:
    master, follower, link = pair
    master.put_topic("A")
    link.settle()
    link.cut()
    follower.kill()
    assert "A" in follower.tables()["topics"]
    again = Link(master, follower)
    assert all(frame.WhichOneof("content") == "whole" for frame in again.frames)
    assert not master.source.has_all(2)
    again.settle()
    assert master.source.has_all(2)


def test_who_is_to_be_in_sync_has_the_topics_of_now(pair: Pair) -> None:
    master, _, link = pair
    link.settle()
    assert master.source.has_all(2)
    master.put_topic("A")
    link.change(master.clock.now_ms)
    assert not master.source.has_all(2)
    link.settle()
    assert master.source.has_all(2)
    master.send()
    master.offsets.commit("A", "g", 0, 1)  # These are always under way.
    link.change(master.clock.now_ms + 1_000)
    assert master.source.has_all(2)
    link.cut()
    assert not master.source.has_all(2)


def test_another_master_tells_everything_and_what_it_lacks_is_set_aside(
    tmp_path: Path, pair: Pair
) -> None:
    master, follower, link = pair
    master.put_topic("A")
    master.put_topic("unheard")
    master.send()
    master.offsets.commit("A", "old", 0, 1)
    link.settle()
    link.cut()
    master.topics.drop("unheard")
    master.offsets.forget_group("old")
    master.lead(2)
    again = Link(master, follower)
    again.settle()

    assert follower.tables() == state_of(master)
    folder = follower.path / "pocketmq" / "set-aside"
    topics = json.loads((folder / "topics.json.1").read_text())
    assert list(topics["topicConfigTable"]) == ["unheard"]
    offsets = json.loads((folder / "consumerOffset.json.1").read_text())
    assert offsets == {"offsetTable": {"A@old": {"0": 1}}}


def test_notes_of_a_time_as_master_go_when_another_is_followed(pair: Pair) -> None:
    master, follower, link = pair
    link.cut()
    leases = follower.sink._tables.leases
    leases.put("g", "T", ["m"])
    Link(master, follower)
    assert len(leases) == 0


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (
            pb.FollowState(epoch=1, file="other.json", version=1 << 32, whole=b"{}"),
            "is unknown to this follower",
        ),
        (pb.FollowState(epoch=1, file="../x", version=1 << 32, whole=b"{}"), "relative path"),
        (pb.FollowState(epoch=1, file=TOPICS_FILE, version=1 << 32), "is missing"),
        (pb.FollowState(epoch=1, file=TOPICS_FILE, version=1 << 32, whole=b"{"), "cannot be read"),
        (pb.FollowState(epoch=1, file=TOPICS_FILE, version=1 << 32, whole=b"[]"), "cannot be read"),
        (
            pb.FollowState(epoch=1, file=TOPICS_FILE, version=1 << 32, whole=b'{"t":{}}'),
            "is unknown, not one of",
        ),
        (
            pb.FollowState(
                epoch=1,
                file=TOPICS_FILE,
                version=1 << 32 | 9,
                whole=b'{"topicConfigTable":{"A":7}}',
            ),
            "cannot be read",
        ),
        (
            pb.FollowState(
                epoch=1,
                file=OFFSETS_FILE,
                version=1 << 32 | 9,
                whole=b'{"offsetTable":{"A@g":{"0":true}}}',
            ),
            "not a whole number",
        ),
        (
            pb.FollowState(
                epoch=1, file=TOPICS_FILE, version=1 << 32 | 9, base=1 << 32 | 8, diff=b"{}"
            ),
            "the last was",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_lost(
    pair: Pair, frame: pb.FollowState, reason: str
) -> None:
    master, follower, link = pair
    master.put_topic("A")
    link.settle()
    before = follower.tables()
    with pytest.raises(InvalidArgument, match=reason):
        follower.sink.take(frame, 0)
    assert follower.tables() == before
    master.put_topic("B")
    link.settle()
    assert follower.tables() == state_of(master)


def test_a_follower_without_room_takes_it_in_later(failing: FailingPair) -> None:
    master, follower, link, disk = failing
    follower.sink._tables.journal._leave_file()  # It has space.
    disk.run_full("tables")
    master.put_topic("A")
    link.change(master.clock.now_ms)
    with pytest.raises(StoreError):
        link.deliver()
    link.cut()
    assert not master.source.has_all(2)
    disk.heal()
    again = Link(master, follower)
    again.settle()
    assert follower.tables() == state_of(master)


def test_a_log_counts_as_synced_once_its_topics_are(failing: FailingPair) -> None:
    master, follower, link, disk = failing
    told: list[str] = []
    follower.sink.when_kept(lambda: told.append("at once"))
    disk.break_syncs("tables")
    master.put_topic("A")
    link.change(master.clock.now_ms)
    link.deliver()
    follower.sink.when_kept(lambda: told.append("never"))
    assert told == ["at once"]


def test_offsets_that_cannot_be_saved_are_not_acknowledged(failing: FailingPair) -> None:
    master, follower, link, disk = failing
    master.send()
    master.offsets.commit("A", "g", 0, 1)
    told: list[PocketMQError | None] = []
    master.source.when_replicated(told.append, OFFSETS_FILE)
    disk.run_full("consumerOffset")
    link.settle()
    assert not told
    disk.heal()
    link.settle()
    assert told == [None]
    assert follower.tables()["offsets"]["offsetTable"] == {"A@g": {0: 1}}


def test_a_slow_follower_holds_a_bounded_number_of_frames(pair: Pair) -> None:
    master, _, link = pair
    link.settle()
    for number in range(3 * state_source.FRAMES_MAX):
        master.put_topic(f"T{number}")
        link.change(master.clock.now_ms)
    assert len(link.frames) == state_source.FRAMES_MAX
    link.settle()
    assert master.source.has_all(2)


def test_changes_that_are_forgotten_are_told_as_a_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_part, "RECENT_MAX", 5)
    master, follower, link = pair
    link.settle()
    link.cut()
    for number in range(9):
        master.put_topic(f"T{number}")
        master.source.changed(master.clock.now_ms)
    master.topics.drop("T0")
    master.source.changed(master.clock.now_ms)
    again = Link(master, follower)
    assert again.frames[0].WhichOneof("content") == "whole"
    again.settle()
    assert follower.tables() == state_of(master)


def test_state_that_is_too_large_keeps_followers_out_of_the_set(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_source, "STATE_SIZE_MAX", 2_000)
    master, _, link = pair
    for number in range(30):
        master.put_topic(f"T{number}")
    link.settle()
    assert not master.source.has_all(2)
    assert "too large for followers" in caplog.text


def test_state_that_is_too_large_is_not_rendered_again_before_it_changes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_source, "STATE_SIZE_MAX", 2_000)
    master, _, link = pair
    for number in range(30):
        master.put_topic(f"T{number}")
    link.settle()
    rendered: list[int] = []
    content = TablePart._content
    monkeypatch.setattr(
        TablePart,
        "_content",
        lambda *args: rendered.append(1) or content(*args),  # type: ignore[func-returns-value]
    )

    for _ in range(5):
        master.clock.now_ms += 100
        link.change(master.clock.now_ms)

    assert len(rendered) <= 1


class Walk:
    """Changes, links and ends in any order."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.clock = Hand()
        self.master = Master(path / "master", self.clock)
        self.follower = Follower(path / "follower", self.clock)
        self.link: Link | None = Link(self.master, self.follower)
        self.epoch = 1
        self.answered: set[str] = set()
        #: Which change of each topic is the last that was asked for.
        self.asked: dict[str, object] = {}

    def put_topic(self) -> None:
        name, mark = f"T{self.rng.randrange(5)}", object()

        def answer(error: PocketMQError | None) -> None:
            if error is None and self.asked.get(name) is mark:
                self.answered.add(name)

        self.master.put_topic(name, self.rng.randrange(1, 9))
        self.asked[name] = mark
        self.master.source.when_replicated(answer, TOPICS_FILE)

    def drop_topic(self) -> None:
        if topics := list(self.master.topics.entries):
            name = self.rng.choice(topics)
            self.answered.discard(name)
            self.asked.pop(name, None)
            self.master.topics.drop(name)

    def put_group(self) -> None:
        self.master.put_group(f"g{self.rng.randrange(3)}", self.rng.randrange(16))

    def send(self) -> None:
        self.master.send(self.rng.choice("AB"), self.rng.randrange(1, 4))

    def commit(self) -> None:
        topic, group = self.rng.choice("AB"), f"g{self.rng.randrange(3)}"
        end = self.master.store.queue_bounds(topic, 0)[1]
        self.master.offsets.commit(topic, group, 0, end, self.rng.choice(["", "text", None]))

    def forget_group(self) -> None:
        self.master.offsets.forget_group(f"g{self.rng.randrange(3)}")

    def deliver_level(self) -> None:
        self.master.levels[self.rng.randrange(1, 19)] = self.rng.randrange(100)

    def change(self) -> None:
        if self.link is not None:
            self.link.change(self.clock.now_ms)

    def deliver(self) -> None:
        for _ in range(self.rng.randrange(6) if self.link is not None else 0):
            assert self.link is not None
            self.link.deliver()

    def acknowledge(self) -> None:
        if self.link is not None:
            self.link.acknowledge()
            self.link.feed(self.rng.randrange(1, 400))

    def tick(self) -> None:
        self.follower.sink.tick()

    def cut(self) -> None:
        if self.link is not None:
            self.link.cut()
        self.link = None

    def connect(self) -> None:
        self.cut()
        self.link = Link(self.master, self.follower)

    def kill(self) -> None:
        self.cut()
        self.follower.kill()

    def elect(self) -> None:
        self.cut()
        self.epoch += 1
        self.master.source.close(MasterFenced("over"))
        self.master.lead(self.epoch)

    def step(self) -> None:
        self.clock.now_ms += self.rng.choice([0, 10, 150])
        actions = [self.put_topic, self.drop_topic, self.put_group, self.forget_group]
        actions += [self.deliver_level, self.kill, self.elect, self.cut, self.tick]
        often = [self.send, self.commit, self.change, self.deliver, self.acknowledge]
        self.rng.choice([*actions, *often, *often, self.connect, self.connect])()

    def check(self) -> None:
        found = self.follower.tables()
        for key, queues in found["offsets"]["offsetTable"].items():
            end = self.follower.store.queue_bounds(key.partition("@")[0], 0)[1]
            assert all(offset <= end for offset in queues.values()), f"{key} is above the log"
        assert self.answered <= found["topics"].keys(), "what was answered is there"


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 25))]
)
def test_whatever_happens_a_follower_ends_with_what_its_master_has(
    seed: int, tmp_path: Path
) -> None:
    walk = Walk(seed, tmp_path)
    for _ in range(150):
        walk.step()
        walk.check()
    walk.connect()
    assert walk.link is not None
    walk.link.settle()

    assert walk.follower.tables() == state_of(walk.master)
    assert walk.master.source.has_all(2)
    walk.follower.store.lead()
    walk.follower.sink.lead()
    assert tables_at(walk.follower.path) == state_of(walk.master)


def test_what_the_device_gets_while_a_link_begins_is_acknowledged_over_it(pair: Pair) -> None:
    """The hello said less, and what was acknowledged before it was answered nobody heard."""
    master, follower, link = pair
    link.settle()
    master.offsets.commit("A", "g", 0, 0)
    link.change(master.clock.now_ms + 200)
    link.deliver()
    link.cut()
    versions = follower.sink.begin()
    master.clock.now_ms += 10_000
    follower.sink.tick()
    assert [ack.file for ack in follower.acks] == [OFFSETS_FILE]
    follower.acks.clear()

    link.number += 1_000
    link.frames.extend(frame for _, frame in master.source.hello(link.number, 2, versions))
    while link.frames:
        link.deliver()
    follower.sink.tick()
    while follower.acks:
        link.acknowledge()

    assert master.source.has_all(2)
