"""A store with its transactions, without a network: half messages in, outcomes and checks as values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.messages.appender import Appender
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.timing.timers import Timers
from pocketmq.broker.topics import Topics
from pocketmq.broker.transactions.checks import Listener
from pocketmq.broker.transactions.records import prepare
from pocketmq.broker.transactions.transactions import Transactions
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record
from pocketmq.proto.rpc import LATER, RpcError
from pocketmq.proto.topics import HALF_TOPIC
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Disk
from pocketmq.store.log_writer import Appended
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...fake_calls import FakeCall, FakeStream, FakeUser
from ...runs import make_run, records_of, small_config

GROUP = "P"
HALF_ENTRY = f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"


class Heard(FakeStream):
    """A stream of checks, which does not fail."""

    @property
    def checks(self) -> list[pb.TransactionCheck]:
        return self.sent

    def fail(self, error: RpcError) -> None:
        raise AssertionError(error)


class Hall:
    """The parts of a broker that transactions need, on a store and a virtual clock."""

    def __init__(
        self, store_config: StoreConfig, disk: Disk, clock: VirtualClock, **settings: Any
    ) -> None:
        self.clock = clock
        self.config = BrokerConfig(**settings)
        self.store = MessageStore.open(store_config, disk=disk, now_ms=clock.unix_ms)

        def state(name: str) -> StateFile:
            return StateFile(disk, store_config.path, name)

        self.offsets = Offsets(state("consumerOffset.json"), clock.unix_ms)
        self.topics = Topics(state("topics.json"), self.config, clock.unix_ms)
        self.timers = Timers(clock)
        self.appends = Appender(self.store, lambda key: None)
        self.transactions = Transactions(
            self.config, self.store, self.topics, self.offsets, self.appends, self.timers, clock
        )

    def start(self) -> None:
        self.transactions.start()
        self.timers.start()

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.timers.stop()
        self.transactions.close()
        self.offsets.save()
        self.store.close()

    async def kill(self) -> None:
        """End without a word; what was written to files stays."""
        await self.timers.stop()
        self.store.parts.checkpoint.write()
        self.store._close_files()

    # --- what clients do

    def begin(
        self, *ids: str, topic: str = "T", queue: int = 0, group: str = GROUP, **more: str
    ) -> Appended:
        """Store half messages whose ids, and bodies, are IDS."""
        self.transactions.check_room(len(ids))
        fixed = {"TRAN_MSG": "true", "PGROUP": group}
        run = make_run(
            topic,
            queue,
            [unique.encode() for unique in ids],
            [fixed | {"UNIQ_KEY": unique} | more for unique in ids],
        )
        (outcome,) = self.appends.append([prepare(run)])
        assert isinstance(outcome, Appended)
        return outcome

    async def end(
        self,
        unique: str,
        resolution: pb.Resolution = pb.COMMIT,
        *,
        group: str = GROUP,
        topic: str = "T",
        **more: Any,
    ) -> pb.EndTransactionReply:
        """Say what becomes of a transaction; return the answer, or raise it."""
        call = self.ask(unique, resolution, group=group, topic=topic, **more)
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(call.answers) == 1
        if call.error is not None:
            raise call.error
        return call.answer  # type: ignore[no-any-return]

    def ask(
        self,
        unique: str,
        resolution: pb.Resolution = pb.COMMIT,
        *,
        group: str = GROUP,
        topic: str = "T",
        **more: Any,
    ) -> FakeCall:
        """Say what becomes of a transaction; the answer comes later."""
        call = FakeCall()
        request = pb.EndTransactionRequest(
            group=group, topic=topic, transaction_id=unique, resolution=resolution, **more
        )
        reply = self.transactions.end(request, call)
        if reply is not LATER:
            call.reply(reply)
        return call

    def listen(
        self, group: str = GROUP, *topics: str, user: FakeUser | None = None
    ) -> tuple[Heard, Listener]:
        """Listen for checks of GROUP, as USER."""
        stream = Heard(user=user)
        path = "/pocketmq.v1.Broker/TransactionChecks"
        receiver = self.transactions.methods()[path].handler(stream)
        receiver.on_message(pb.TransactionListener(group=group, topics=topics))
        return stream, receiver

    # --- what is there

    def bodies(self, topic: str = "T", queue: int = 0) -> list[str]:
        return [record.body.decode() for record in records_of(self.store, topic, queue)]

    def records(self, topic: str, queue: int = 0) -> list[Record]:
        return records_of(self.store, topic, queue)

    def progress(self) -> tuple[int | None, int | None]:
        """Return the committed offsets of the half and the op queue."""
        return (
            self.offsets.committed(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0),
            self.offsets.committed("RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0),
        )


def hall_config(path: Path, **settings: Any) -> StoreConfig:
    sizes = {"log_file_size_bytes": 1 << 20, "queue_file_size_bytes": 6_000}
    return small_config(path, **(sizes | settings))


@asynccontextmanager
async def hall(
    path: Path, *, clock: VirtualClock | None = None, disk: Disk | None = None, **settings: Any
) -> AsyncIterator[Hall]:
    """Run transactions on a new or existing store at PATH."""
    made = Hall(hall_config(path), disk or OsDisk(), clock or VirtualClock(), **settings)
    made.start()
    try:
        yield made
    finally:
        if not made.store.health.closed:
            await made.stop()
