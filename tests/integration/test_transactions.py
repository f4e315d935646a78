"""Transactions of real producers at a real broker, on a clock that moves: outcomes, checks, crashes, bad input."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import AsyncProducer, Message, Producer, ReceivedMessage
from pocketmq.client.producing.transaction import Verdict
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.errors import (
    InvalidArgument,
    Overloaded,
    PocketMQError,
    TransactionNotFound,
    TransactionResolved,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Host, encode_run
from pocketmq.store.os_disk import OsDisk

from ..runs import records_of
from ..served import broker_config, nameserver_config
from ..waiting import until
from .whole_broker import Peer, broker, store_config

TOPIC = "orders"


class Site:
    """A name server, and a broker on a clock that tests move."""

    def __init__(self, broker: Broker, clock: VirtualClock, address: str) -> None:
        self.broker = broker
        self.clock = clock
        self.address = address

    def bodies(self, topic: str = TOPIC) -> list[bytes]:
        store = self.broker.store
        return [
            record.body
            for name, queue in store.queue_names()
            if name == topic
            for record in records_of(store, name, queue)
        ]

    @property
    def listeners(self) -> int:
        running = self.broker._running
        assert running is not None
        return running.parts.transactions.listening


@asynccontextmanager
async def site(folder: Path, **settings: Any) -> AsyncIterator[Site]:
    clock, system = VirtualClock(), SystemClock()
    names = NameServer.build(nameserver_config(port=0), clock=system)
    await names.start()
    config = broker_config(port=0, nameservers=(names.address,), **settings)
    server = Broker.build(config, store_config(folder), disk=OsDisk(), clock=clock, wall=system)
    await server.start()
    try:
        assert await server.registered(10)
        yield Site(server, clock, names.address)
    finally:
        await server.stop()
        await names.stop()


async def test_a_message_is_visible_when_its_block_has_ended(tmp_path: Path) -> None:
    async with site(tmp_path) as at, AsyncProducer(at.address, group="G") as producer:
        async with producer.transaction(Message(TOPIC, b"good")) as transaction:
            assert at.bodies() == []
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message(TOPIC, b"bad")):
                _ = 1 // 0

        assert at.bodies() == [b"good"]
        receipt = transaction.commit_receipt
        assert receipt is not None
        record = at.broker.store.read_at(receipt.log_offset)
        assert record is not None
        assert b"good" in record


async def test_a_checker_decides_what_its_sender_did_not(tmp_path: Path) -> None:
    """Also one that a producer began which is gone."""
    asked: list[bytes] = []

    async def checker(message: ReceivedMessage) -> Verdict:
        asked.append(message.body)
        assert message.topic == TOPIC
        if message.body == b"later" and asked.count(b"later") < 3:
            return None
        return message.body != b"bad"

    async with site(tmp_path) as at:
        await leave_open(at, b"good", b"bad", b"later")
        async with AsyncProducer(at.address, group="G", checker=checker):
            await until(lambda: at.listeners == 1)
            await at.clock.advance(6_000)
            await until(lambda: at.bodies() == [b"good"] and len(asked) == 3)
            await at.clock.advance(30_000)
            await until(lambda: len(asked) == 4)
            await at.clock.advance(30_000)
            await until(lambda: len(at.bodies()) == 2)
        assert sorted(at.bodies()) == [b"good", b"later"]
        assert sorted(asked) == [b"bad", b"good", b"later", b"later", b"later"]


async def test_the_synchronous_face_and_its_checker(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def checker(message: ReceivedMessage) -> Verdict:
        asked.append(message.body)
        return True

    def work(address: str) -> None:
        with Producer(address, group="G", checker=checker) as producer:
            with producer.transaction(Message(TOPIC, b"one")) as transaction:
                pass
            assert transaction.commit_receipt is not None
            with pytest.raises(ZeroDivisionError), producer.transaction(Message(TOPIC, b"two")):
                _ = 1 // 0
            decided = producer.send_in_transaction(Message(TOPIC, b"three"), lambda message: True)
            assert decided.commit_receipt is not None
            left = producer.send_in_transaction(Message(TOPIC, b"four"), lambda message: None)
            assert left.commit_receipt is None
            ready.set()
            assert done.wait(20)

    ready, done = threading.Event(), threading.Event()
    async with site(tmp_path) as at:
        running = asyncio.get_running_loop().run_in_executor(None, work, at.address)
        await until(lambda: running.done() or (ready.is_set() and at.listeners == 1))
        await at.clock.advance(6_000)
        await until(lambda: running.done() or len(at.bodies()) == 3)
        done.set()
        await running
        assert sorted(at.bodies()) == [b"four", b"one", b"three"]
        assert asked == [b"four"]


async def leave_open(at: Site, *bodies: bytes) -> None:
    """Begin transactions, and decide nothing."""
    async with AsyncProducer(at.address, group="G") as producer:
        for body in bodies:
            async with producer.transaction(Message(TOPIC, body)) as transaction:
                transaction.leave_open()


async def test_open_transactions_survive_a_restart(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        await leave_open(at, b"one")
    async with (
        site(tmp_path) as at,
        AsyncProducer(at.address, group="G", checker=lambda message: True),
    ):
        await until(lambda: at.listeners == 1)
        await at.clock.advance(6_000)
        await until(lambda: at.bodies() == [b"one"])


# --- by bare calls


async def end(peer: Peer, **fields: Any) -> pb.EndTransactionReply:
    asked: dict[str, Any] = {"group": "G", "topic": TOPIC, "resolution": pb.COMMIT}
    request = pb.EndTransactionRequest(**(asked | fields))
    reply: pb.EndTransactionReply = await peer.ask(
        "EndTransaction", request, pb.EndTransactionReply
    )
    return reply


async def refusal(peer: Peer, **fields: Any) -> PocketMQError:
    with pytest.raises(PocketMQError) as caught:
        await end(peer, **fields)
    return caught.value


async def test_bad_outcomes_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with site(tmp_path) as at, AsyncProducer(at.address, group="G") as producer:
        async with producer.transaction(Message(TOPIC, b"one")) as transaction:
            unique = transaction.receipt.message_id
            before = at.broker.store.max_log_offset
            async with connected(at) as peer:
                assert isinstance(await refusal(peer, transaction_id="nobody"), TransactionNotFound)
                foreign = await refusal(peer, transaction_id=unique, group="Other")
                assert isinstance(foreign, TransactionNotFound)
                assert "does not belong to group" in foreign.message
                wrong = await refusal(peer, transaction_id=unique, topic="Other")
                assert isinstance(wrong, InvalidArgument)
                assert wrong.details["field"] == "topic"
            assert at.broker.store.max_log_offset == before
        async with connected(at) as peer:
            assert (await end(peer, transaction_id=unique)).repeated
            changed = await refusal(peer, transaction_id=unique, resolution=pb.ROLLBACK)
            assert isinstance(changed, TransactionResolved)
        assert at.bodies() == [b"one"]


async def test_half_messages_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    async with (
        site(tmp_path, transactions_open_max=1) as at,
        AsyncProducer(at.address, group="G", delivery_timeout_ms=1_000) as producer,
    ):
        async with producer.transaction(Message(TOPIC, b"one")) as first:
            with pytest.raises(PocketMQError) as caught:
                await producer.transaction(Message(TOPIC, b"two")).begin()
            assert isinstance(caught.value.__cause__, Overloaded)
        assert first.commit_receipt is not None
        assert at.bodies() == [b"one"]


@asynccontextmanager
async def connected(at: Site) -> AsyncIterator[Peer]:
    async with grpc.aio.insecure_channel(
        at.broker.address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        yield Peer(channel)


async def test_the_status_counts_open_transactions(tmp_path: Path) -> None:
    async with site(tmp_path) as at, connected(at) as peer:
        await leave_open(at, b"one", b"two")
        status = await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        assert status.transactions_open == 2


async def test_outcomes_are_told_once_they_are_on_the_device(tmp_path: Path) -> None:
    config = store_config(tmp_path, flush="sync")
    async with broker(config, transaction_timeout_ms=60_000) as (server, peer):
        properties = b"TRAN_MSG\x01true\x02PGROUP\x01G\x02UNIQ_KEY\x01ID\x02"
        records, sizes = encode_run(
            TOPIC,
            0,
            [(b"one", properties)],
            born_timestamp_ms=1_700_000_000_000,
            born_host=Host.parse("127.0.0.1", 1),
        )
        run = pb.ProduceRun(run_id=1, topic=TOPIC, queue=0, records=records, sizes=sizes)
        await peer.produce(run)
        reply = await end(peer, transaction_id="ID")

        assert reply.queue_offset == 0
        assert server.store.flushed_offset == server.store.max_log_offset
