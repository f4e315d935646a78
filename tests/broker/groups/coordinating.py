"""A coordinator on a virtual clock, and members that talk to it without a wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import Groups
from pocketmq.broker.groups.coordinator import Coordinator
from pocketmq.broker.timing.timers import Timers
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...fake_calls import FakeStream, FakeUser

TOPIC = "T"
GROUP = "g"
SESSION_MS = 10_000
DELAY_MS = 100


class FakeMember:
    """A member: joins, says things, and keeps what it hears."""

    def __init__(
        self, coordinator: Coordinator, join: pb.Join, user: FakeUser | None = None
    ) -> None:
        self.join = join
        self.stream = FakeStream(f"127.0.0.1:{len(join.member_id)}", user=user)
        self._receiver = coordinator.stream(self.stream)
        self._heard = 0

    @property
    def name(self) -> str:
        return self.join.member_id

    def say(self, **what: Any) -> None:
        """Say one thing; what the broker raises ends the stream, as a carrier has it."""
        if self.stream.is_over:
            return
        try:
            self._receiver.on_message(pb.MemberRequest(**what))
        except PocketMQError as error:
            self.stream.fail(error)

    def begin(self) -> FakeMember:
        self.say(join=self.join)
        return self

    def plan(self, generation: int, shares: Mapping[str, Sequence[int]]) -> None:
        """Send a plan: the numbers of queues of TOPIC by member_id."""
        self.say(
            plan=pb.Plan(
                generation=generation,
                shares=[
                    pb.Share(member_id=name, queues=[held(number) for number in numbers])
                    for name, numbers in shares.items()
                ],
            )
        )

    def cut(self) -> None:
        """Lose the stream."""
        self.stream.cancel()
        self.stream.is_over = True
        self._receiver.on_close()

    def news(self) -> list[pb.MemberEvent]:
        """Return what it was told since the last time."""
        events = self.stream.sent[self._heard :]
        self._heard = len(self.stream.sent)
        return events

    @property
    def members(self) -> pb.Members | None:
        """What it was last told of a generation."""
        told = [event.members for event in self.stream.sent if event.HasField("members")]
        return told[-1] if told else None

    @property
    def assigned(self) -> tuple[int, list[int]] | None:
        """Generation and queues of what it was last assigned."""
        told = [event.assigned for event in self.stream.sent if event.HasField("assigned")]
        return (told[-1].generation, [one.queue for one in told[-1].queues]) if told else None


def held(number: int) -> pb.HeldQueue:
    return pb.HeldQueue(topic=TOPIC, broker_name="broker-a", queue=number)


class Room:
    """A coordinator, its clock, and the groups behind it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.timers = Timers(self.clock)
        self.timers.start()
        self.config = BrokerConfig(**settings)
        file = StateFile(OsDisk(), str(path), "subscriptionGroup.json")
        self.groups = Groups(file, self.config, self.clock.now_ms)
        self.coordinator = Coordinator(self.config, self.groups, self.timers)

    def join(self, member_id: str, *, user: FakeUser | None = None, **fields: Any) -> FakeMember:
        given: dict[str, Any] = {
            "group": GROUP,
            "member_id": member_id,
            "subscriptions": [pb.Subscription(topic=TOPIC)],
            "strategy": "average",
            "session_timeout_ms": SESSION_MS,
        }
        return FakeMember(self.coordinator, pb.Join(**{**given, **fields}), user).begin()

    async def settle(self) -> None:
        """Let the changes so far become a generation."""
        await self.clock.advance(DELAY_MS)

    async def close(self) -> None:
        self.coordinator.close()
        await self.timers.stop()
