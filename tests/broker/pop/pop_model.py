"""A plain model of what pop promises, and a driver that does the same to a broker and to it.

at least once     every message is delivered until it is acknowledged or dead
not again         what is acknowledged does not come again, but in an ordered batch behind one that is not
its own           a message is nobody else's while its lease lasts
attempts          count one after the other, over restarts; after the last one comes the dead letter, once
order             when a message of an ordered group is delivered, all before it of its message group that are not
                  finished are in the same answer, before it
the offset        that Apache's broker would go on from, in consumerOffset.json too, passes nothing unfinished
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from pocketmq.broker.pop.receives import PoppedMessage
from pocketmq.proto.errors import InvalidReceiptHandle
from pocketmq.store.format.state_tables import parse_consumer_offsets
from pocketmq.store.table_journal import JournalSizes

from .popping import GROUP, TOPIC, Popping

QUEUES = 3
ATTEMPTS_MAX = 4
CLIENTS = ("one", "two", "three")
#: How long a lease that renews outlasts its owner, the owner's end, and a restart.
RENEWED_MS: Final = 60_000
GONE_MS: Final = 1_000
RESTORED_MS: Final = 30_000


@dataclass(slots=True)
class Message:
    """One message as it should be. It is its owner's until UNTIL_MS at least; what renews may be for longer."""

    body: bytes
    queue: int
    offset: int
    label: str
    attempts: int = 0
    handle: str = ""
    until_ms: int = 0
    owner: str = ""
    renews: bool = False
    acknowledged: bool = False
    #: It was acknowledged before the last restart.
    settled: bool = False
    dead: bool = False
    #: Since its latest delivery, and since the last restart.
    suspended: bool = False

    @property
    def finished(self) -> bool:
        return self.acknowledged or self.dead


SIZES: Final = JournalSizes(file=2_048, snapshot=4_096, journal=16_384)


class Driver:
    """Does what SEED says to a broker at PATH and to the model, and compares."""

    def __init__(self, path: Path, seed: int, *, ordered: bool) -> None:
        self.random = Random(seed)
        self.ordered = ordered
        self.path = path
        self.broker = Popping(path, queues=QUEUES, sizes=SIZES)
        self.broker.group(retry_times_max=ATTEMPTS_MAX - 1, consume_message_orderly=ordered)
        self.messages: dict[tuple[int, int], Message] = {}
        self.by_body: dict[bytes, Message] = {}
        self.stale: list[str] = []
        self.dead_seen = 0

    @property
    def now_ms(self) -> int:
        return self.broker.clock.now_ms()

    # --- steps

    async def step(self) -> None:
        """Do something, and look whether all holds."""
        steps = {
            self.send: 20,
            self.pop: 30,
            self.acknowledge: 30,
            self.change: 8,
            self.bury: 2,
            self.acknowledge_stale: 4,
            self.client_gone: 3,
            self.client_alive: 3,
            self.advance: 15,
            self.save: 4,
            self.restart: 3,
        }
        (step,) = self.random.choices(list(steps), list(steps.values()))
        if (waits := step()) is not None:
            await waits
        await self.broker.safe()
        self.check()

    def send(self, count: int | None = None) -> None:
        queue = self.random.randrange(QUEUES)
        properties = []
        sent = []
        at = self.broker.store.queue_bounds(TOPIC, queue)[1]
        for offset in range(at, at + (count or self.random.choice([1, 1, 3, 8]))):
            label = self.random.choice(["", "a", "b"])
            properties.append({"__SHARDINGKEY": label} if label else {})
            sent.append(Message(b"%d/%d" % (queue, offset), queue, offset, label))
        self.broker.send(*(one.body for one in sent), queue=queue, properties=properties)
        for one in sent:
            self.messages[queue, one.offset] = self.by_body[one.body] = one

    def pop(self) -> None:
        renews = self.random.random() < 0.15
        owner = self.random.choice(CLIENTS)
        invisible_ms = self.random.choice([1_000, 10_000, 45_000])
        batch = self.random.choice([1, 2, 5, 32])
        got = self.broker.pop(batch, invisible_ms=invisible_ms, auto_renew=renews, client_id=owner)
        dead_before = self.dead_seen
        self.note_dead()
        assert len(got) <= batch
        for place, one in enumerate(got):
            message = self.messages[one.queue, one.offset]
            self.judge(message, one, got[:place])
            if message.handle:
                self.stale.append(message.handle)
            message.attempts = one.attempt
            message.handle = one.handle
            message.owner, message.renews = owner, renews
            message.until_ms = self.now_ms + (RENEWED_MS if renews else invisible_ms)
            message.acknowledged = False
            message.suspended = False
        if not got and not self.ordered and self.dead_seen == dead_before:
            assert not [one for one in self.messages.values() if self.is_due(one)]

    def is_due(self, message: Message) -> bool:
        return (
            not message.finished
            and not message.renews
            and message.until_ms <= self.now_ms
            and message.attempts < ATTEMPTS_MAX
        )

    def judge(self, message: Message, one: PoppedMessage, before: list[PoppedMessage]) -> None:
        """Assert that MESSAGE may be delivered as ONE, in an answer behind BEFORE."""
        assert not message.settled
        assert not message.dead
        assert one.attempt == message.attempts + 1 <= ATTEMPTS_MAX
        assert message.until_ms <= self.now_ms or message.acknowledged
        if not self.ordered:
            assert not message.acknowledged
            return
        answered = {(other.queue, other.offset) for other in before}
        earlier = self.unfinished_before(message)
        assert {(other.queue, other.offset) for other in earlier} <= answered
        assert earlier or not message.acknowledged

    def unfinished_before(self, message: Message) -> list[Message]:
        """Return what is not finished and before MESSAGE in its message group."""
        return [
            other
            for other in self.messages.values()
            if (other.queue, other.label) == (message.queue, message.label)
            and other.offset < message.offset
            and not other.finished
        ]

    def held(self) -> list[Message]:
        return [one for one in self.messages.values() if one.handle and not one.finished]

    def one_held(self) -> Message | None:
        held = self.held()
        return self.random.choice(held) if held else None

    def acknowledge(self) -> None:
        held = self.held()
        self.acknowledge_all(self.random.sample(held, min(len(held), self.random.choice([1, 4]))))

    def acknowledge_all(self, messages: list[Message]) -> None:
        for message in messages:
            call = partial(self.broker.pops.acknowledge, GROUP, TOPIC, message.handle)
            if self.is_valid(call, message):
                message.acknowledged = True

    def is_valid(self, call: Callable[[], None], message: Message) -> bool:
        """CALL with the handle of MESSAGE; return whether that was taken."""
        if message.until_ms > self.now_ms:
            call()
            return True
        if message.renews:
            try:
                call()
            except InvalidReceiptHandle:
                return False
            return True
        with pytest.raises(InvalidReceiptHandle):
            call()
        return False

    def change(self) -> None:
        message = self.one_held()
        if message is None:
            return
        wait_ms = self.random.choice([0, 2_000, 20_000])
        suspend = self.random.random() < 0.3
        handles = []

        def call() -> None:
            handles.append(
                self.broker.pops.change_invisible(
                    GROUP, TOPIC, message.handle, wait_ms, suspend=suspend
                )
            )

        if self.is_valid(call, message):
            self.stale.append(message.handle)
            (message.handle,) = handles
            message.until_ms = self.now_ms + wait_ms
            message.renews = False
            if suspend and not message.suspended:
                message.attempts = max(0, message.attempts - 1)
            message.suspended |= suspend

    def bury(self) -> None:
        message = self.one_held()
        if message is None:
            return

        def call() -> None:
            self.broker.pops.forward_to_dead_letters(GROUP, TOPIC, message.handle, "asked for")

        if self.is_valid(call, message):
            self.note_dead(message)

    def acknowledge_stale(self) -> None:
        if not self.stale:
            return
        handle = self.random.choice(self.stale)
        try:
            self.broker.pops.acknowledge(GROUP, TOPIC, handle)
        except InvalidReceiptHandle:
            return
        # Taken: then its message is finished, and this does nothing.
        _, offset, _ = handle.split("-")
        message = self.messages[int(handle[1:].split("-")[0], 16), int(offset, 16)]
        assert message.finished

    def note_dead(self, asked_for: Message | None = None) -> None:
        """Note which messages have become dead letters: those that had their last attempt, or ASKED_FOR."""
        dead = self.broker.dead()
        for body, _ in dead[self.dead_seen :]:
            message = self.by_body[body]
            assert not message.dead
            assert message is asked_for or message.attempts == ATTEMPTS_MAX
            message.dead = True
        self.dead_seen = len(dead)

    def client_gone(self) -> None:
        owner = self.random.choice(CLIENTS)
        self.broker.pops.client_gone(owner)
        for one in self.messages.values():
            if one.renews and one.owner == owner:
                one.until_ms = min(one.until_ms, self.now_ms + GONE_MS)

    def client_alive(self) -> None:
        self.broker.pops.client_alive(self.random.choice(CLIENTS))

    async def advance(self) -> None:
        await self.broker.clock.advance(self.random.choice([1, 500, 5_000, 20_000, 61_000]))

    def save(self) -> None:
        """Write consumerOffset.json, and look what Apache's broker would make of it."""
        self.broker.offsets.save()
        file = self.path / "store/config/consumerOffset.json"
        if not file.exists():
            return
        offsets = parse_consumer_offsets(file.read_text()).offsets.get(f"{TOPIC}@{GROUP}", {})
        for queue, offset in offsets.items():
            self.check_offset(queue, offset)

    async def restart(self) -> None:
        """Stop, or be killed."""
        await self.broker.restart(clean=self.random.random() < 0.5)
        for one in self.messages.values():
            one.settled = one.acknowledged
            one.suspended = False
            if one.renews:
                one.until_ms = min(one.until_ms, self.now_ms + RESTORED_MS)

    # --- looks

    def check(self) -> None:
        for table in self.broker.pops._tables.values():
            table.check()
        for queue in range(QUEUES):
            self.check_offset(queue, self.broker.committed(queue) or 0)

    def check_offset(self, queue: int, offset: int) -> None:
        """Assert that OFFSET passes nothing unfinished of QUEUE."""
        unfinished = [
            one.offset for one in self.messages.values() if one.queue == queue and not one.finished
        ]
        assert offset <= min(unfinished, default=offset)

    async def finish(self) -> None:
        """Have everything delivered and finished; nothing may be missing."""
        for _ in range(200):
            await self.broker.clock.advance(200_000)
            self.pop()
            self.acknowledge_all(self.held())
            if all(one.finished for one in self.messages.values()):
                break
        assert [one for one in self.messages.values() if not one.finished] == []
        assert len({body for body, _ in self.broker.dead()}) == self.dead_seen
        await self.broker.restart()
        await self.broker.clock.advance(200_000)
        assert self.broker.pop() == []
        for queue in range(QUEUES):
            end = self.broker.store.queue_bounds(TOPIC, queue)[1]
            assert (self.broker.committed(queue) or 0) == end
        await self.broker.stop()
