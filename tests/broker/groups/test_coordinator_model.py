"""Members that join, leave, die, stall, come back, and plan well, late or badly, in any order.

Whoever is there in the end is told of the latest generation and its share; generations only grow; nothing is left.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from pocketmq.proto.errors import MemberFenced
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .coordinating import GROUP, SESSION_MS, FakeMember, Room

#: Who may come; those with an instance are static, two of them the same.
NAMES = {"a": "", "b": "", "c": "", "s": "i", "t": "i", "u": "j"}
QUEUES = 6

Step = tuple[str, str]

steps = st.one_of(
    st.tuples(
        st.sampled_from(["join", "join", "leave", "cut", "heartbeat", "replan"]),
        st.sampled_from(sorted(NAMES)),
    ),
    st.tuples(st.just("plan"), st.sampled_from(["good", "old", "twice", "stranger", "nothing"])),
    st.tuples(st.just("wait"), st.sampled_from(["1", "99", "100", "3000", "9999", "10001"])),
    st.tuples(st.just("topics"), st.just("T")),
)


class Play:
    """One play: the room, who is there, and what each has heard."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.present: dict[str, FakeMember] = {}
        self.generations: dict[str, int] = {}

    def do(self, what: str, whom: str) -> None:
        if what == "join":
            joins = self.room.join(
                whom, instance_id=NAMES[whom], generation=self.generations.get(whom, 0)
            )
            self.present[whom] = joins
        elif what == "plan":
            self.plan(whom)
        elif what == "topics":
            self.room.coordinator.topics_changed({whom})
        elif (member := self.present.get(whom)) is not None:
            if what == "cut":
                member.cut()
            elif what == "leave":
                member.say(leave=pb.Leave())
            elif what == "replan":
                generation = member.members.generation if member.members else 0
                member.say(replan=pb.Replan(generation=generation))
            else:
                member.say(heartbeat=pb.Heartbeat())
        self.hear()

    def connected(self) -> Iterator[FakeMember]:
        return (one for one in self.present.values() if not one.stream.is_over)

    def plan(self, how: str) -> None:
        """Have everybody who was told that it leads send a plan."""
        for one in list(self.connected()):
            told = one.members
            if told is None or told.leader != one.name:
                continue
            names = [member.member_id for member in told.members]
            shares: dict[str, list[int]] = {name: [] for name in names}
            for queue in range(QUEUES):
                shares[names[queue % len(names)]].append(queue)
            if how == "twice":
                shares[names[-1]] = shares[names[-1]] + [0, 0]
            if how == "stranger":
                shares["nobody"] = [3]
            one.plan(told.generation - (how == "old"), {} if how == "nothing" else shares)

    def hear(self) -> None:
        """Check what was told: generations never go back, and what is assigned is of the one that was told."""
        for name, one in self.present.items():
            for event in one.news():
                if event.HasField("members"):
                    assert event.members.generation >= self.generations.get(name, 0)
                    self.generations[name] = event.members.generation
                if event.HasField("assigned"):
                    assert event.assigned.generation == self.generations[name]
            if one.stream.error is not None:
                assert isinstance(one.stream.error, MemberFenced)

    async def pass_time(self, by_ms: int) -> None:
        await self.room.clock.advance(by_ms)
        self.hear()

    async def settle(self) -> None:
        """Let all live on until everything is said; the last plan is a good one."""
        for name in list(self.present):
            self.do("replan", name)
        for _ in range(2 * SESSION_MS // 1_000):
            await self.pass_time(1_000)
            for one in list(self.connected()):
                one.say(heartbeat=pb.Heartbeat())
            self.do("plan", "good")

    def check(self) -> None:
        membership = self.room.coordinator.get(GROUP)
        there = {one.name: one for one in self.connected()}
        if membership is None:
            assert not there
            return
        assert set(membership.members) == set(there)
        assert len(self.room.coordinator) == len(there)
        instances = [one.instance_id for one in membership.members.values() if one.instance_id]
        assert len(instances) == len(set(instances))
        given: list[int] = []
        for one in there.values():
            assert one.members is not None
            assert one.members.generation == membership.generation
            assert one.assigned is not None
            assert one.assigned[0] == membership.generation
            given += one.assigned[1]
        assert sorted(given) == (list(range(QUEUES)) if there else [])


async def play(path: Path, plan: list[Step]) -> None:
    room = Room(path)
    one = Play(room)
    for what, whom in plan:
        if what == "wait":
            await one.pass_time(int(whom))
        else:
            one.do(what, whom)
    await one.settle()
    one.check()
    for member in list(one.connected()):
        member.cut()
    await room.clock.advance(2 * SESSION_MS)
    assert len(room.coordinator) == 0
    assert len(room.timers) == 0, "nothing waits for anybody any more"
    await room.close()


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(plan=st.lists(steps, max_size=30))
@example(plan=[("join", "s"), ("wait", "100"), ("plan", "good"), ("join", "t"), ("join", "s")])
@example(plan=[("join", "a"), ("join", "b"), ("wait", "100"), ("cut", "a"), ("wait", "1")])
@example(plan=[("join", "s"), ("join", "a"), ("leave", "s"), ("wait", "9999"), ("join", "t")])
def test_everybody_who_is_there_hears_of_the_latest_generation(plan: list[Step]) -> None:
    with tempfile.TemporaryDirectory(prefix="pocketmq-groups-") as folder:
        asyncio.run(play(Path(folder), plan))
