"""Bad input for everything that happens later than it was asked for: odd calls, and sends with odd properties.

Each is answered, well or with an error that says what was wrong; every message that was acknowledged comes at its time,
once; what is good works afterwards; and the store opens cleanly. From seeds. A longer run by hand:
POCKETMQ_SEED=7 POCKETMQ_ROUNDS=5000 pytest tests/integration/test_later_bad_input.py
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.properties import DELAY_NAMES
from pocketmq.proto.recall_handle import encode_handle
from pocketmq.proto.record import Host, Record, encode_record
from pocketmq.proto.topics import CHECK_MAX_TIME_TOPIC

from ..runs import bodies_of, records_of
from ..wire_fuzz import EDGE_TEXTS, SERVERS_FAULT, Fuzzer
from .whole_broker import TOPIC, Peer, broker, store_config

SEEDS = [int(os.environ["POCKETMQ_SEED"])] if "POCKETMQ_SEED" in os.environ else [1, 2]
ROUNDS = int(os.environ.get("POCKETMQ_ROUNDS", "60"))
START_MS = 1_700_000_000_250
DAY_MS = 86_400_000

LATER = (
    "Recall",
    "SendBack",
    "DeadLetters",
    "ResendDeadLetters",
    "PurgeDeadLetters",
    "EndTransaction",
    "TransactionChecks",
    "AdvanceClock",
    "Now",
)
GOOD = (
    pb.RecallRequest(
        topic=TOPIC, handle=encode_handle(TOPIC, "broker-a", START_MS + 9 * 3_600_000, "nobody")
    ),
    pb.SendBackRequest(group="g", topic=TOPIC, queue=0, queue_offset=0, log_offset=0),
    pb.SendBackRequest(
        group="g", topic=TOPIC, queue=0, queue_offset=0, log_offset=0, delay_level=-1, reason="bad"
    ),
    pb.SendBackRequest(group="own", topic=TOPIC, queue=0, queue_offset=0, log_offset=0),
    pb.DeadLettersRequest(group="g", from_offset=0, max_letters=10),
    pb.ResendDeadLettersRequest(group="g", queue_offsets=[0, 1], topic="Again"),
    pb.ResendDeadLettersRequest(group="g", queue_offsets=[0], topic="%RETRY%g"),
    pb.PurgeDeadLettersRequest(group="g", below_offset=1),
    pb.EndTransactionRequest(
        group="P", topic=TOPIC, transaction_id="half", resolution=pb.RESOLUTION_UNSPECIFIED
    ),
    pb.EndTransactionRequest(
        group="P", topic=TOPIC, transaction_id="ended", resolution=pb.COMMIT, half_log_offset=0
    ),
    pb.TransactionListener(group="P", client_id="c", topics=[TOPIC]),
    pb.AdvanceClockRequest(by_ms=1_500),
)

ODD_NAMES = (
    *DELAY_NAMES,
    "TRAN_MSG",
    "PGROUP",
    "__transactionId__",
    "TRANSACTION_CHECK_TIMES",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "UNIQ_KEY",
    "KEYS",
    "WAIT",
    "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "POP_CK",
    "__CRC32#",
)
ODD_VALUES = (
    *EDGE_TEXTS,
    *("0", "1", "3", "18", "19", "-1", "+5", "-0", " 5", "1e3", "0x10", "٣", "1_000", "5.0"),
    *("9" * 18, "9" * 19, "-" + "9" * 18, str(1 << 63), str(-1 << 63)),
    *("true", "TRUE", "false", "d", "P", "%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC", "T+x"),
)


def odd_properties(chooser: random.Random, now_ms: int, message: str) -> bytes:
    """Return a property string with odd values of names that mean something, and sometimes not even well formed.

    Ids are odd too, but each MESSAGE has its own: half messages of one id are one transaction.
    """
    times = [str(now_ms + by) for by in (-DAY_MS, -60_001, -1, 0, 1, 999, 1_000, 3 * DAY_MS)]
    times.append(str(now_ms + 3 * DAY_MS + 1))
    pairs = []
    if chooser.random() < 0.5:  # What is good mostly gets through, and has odd company.
        soon = chooser.choice(times[4:])
        good = ("DELAY", "4"), ("TIMER_DELAY_MS", "1500"), ("TIMER_DELIVER_MS", soon)
        name, value = chooser.choice((*good, ("TIMER_DELAY_SEC", "7"), ("TRAN_MSG", "true")))
        pairs.append(f"{name}\x01{value}\x02PGROUP\x01P\x02".encode())
    for _ in range(chooser.randint(0, 4)):
        value = chooser.choice((*ODD_VALUES, *times, "5", "1000"))
        name = chooser.choice(ODD_NAMES)
        own = message if name == "UNIQ_KEY" else ""
        pairs.append(f"{name}\x01{value}{own}\x02".encode())
    if chooser.random() < 0.2:
        pairs.append(
            chooser.choice((b"\x02", b"\x01", b"DELAY", b"DELAY\x01", b"\xff\xfe\x01\xff"))
        )
    if chooser.random() < 0.05:
        pairs.append(b"long\x01" + b"x" * chooser.choice((32_000, 32_500, 32_700)) + b"\x02")
    return b"".join(pairs)[:32_767]


def odd_run(chooser: random.Random, now_ms: int, number: int) -> tuple[pb.ProduceRun, list[str]]:
    """Return a run of messages with odd properties, flags and hosts, and their bodies."""
    names = [f"odd {number}.{index}" for index in range(chooser.choice((1, 1, 2, 5)))]
    encoded = []
    for name in names:
        host = Host.parse(chooser.choice(("127.0.0.1", "::1", "2001:db8::7")), 4_000)
        store_host = Host.parse(chooser.choice(("127.0.0.1", "127.0.0.1", "::1")), 1)
        record = Record(
            topic=TOPIC,
            queue_id=1,
            body=name.encode(),
            sys_flag=chooser.choice((0,) * 9 + (1, 2, 4, 8, 12)),
            born_timestamp_ms=chooser.choice((START_MS, now_ms, 0, -1, 1 << 62)),
            born_host=host,
            store_host=store_host,
            reconsume_times=chooser.choice((0, 0, 1, -1, 2**31 - 1)),
        )
        encoded.append(encode_record(record, property_string=odd_properties(chooser, now_ms, name)))
    sizes = [len(record) for record in encoded]
    run = pb.ProduceRun(run_id=1, topic=TOPIC, queue=1, records=b"".join(encoded), sizes=sizes)
    return run, names


def good_run(name: str, **properties: str) -> pb.ProduceRun:
    """Return a run of one message for queue 0, whose id and body are NAME."""
    pairs = {"UNIQ_KEY": name, **properties}
    record = encode_record(
        Record(topic=TOPIC, body=name.encode(), born_timestamp_ms=START_MS, properties=pairs)
    )
    return pb.ProduceRun(run_id=1, topic=TOPIC, records=record, sizes=[len(record)])


async def end(peer: Peer, unique: str) -> None:
    request = pb.EndTransactionRequest(
        group="P", topic=TOPIC, transaction_id=unique, resolution=pb.COMMIT
    )
    await peer.ask("EndTransaction", request, pb.EndTransactionReply)


@asynccontextmanager
async def fortress(folder: Path) -> AsyncIterator[tuple[Broker, Peer, VirtualClock]]:
    """Run a broker on a virtual clock."""
    clock = VirtualClock(START_MS)
    # Retention is not what is shown here, and moves of weeks would have much of it.
    config = store_config(folder, clean_interval_ms=DAY_MS)
    async with broker(config, clock=clock, wall=SystemClock()) as (server, peer):
        yield server, peer, clock


async def prepare(peer: Peer) -> None:
    """Make topics, groups and messages that calls may be about."""
    await peer.create_topic()
    for group in (
        pb.GroupConfig(name="g", retry_max_times=3, retry_queues=2, consume_enable=True),
        pb.GroupConfig(
            name="own",
            retry_max_times=16,
            retry_queues=1,
            consume_enable=True,
            retry_intervals_ms=[1_234, 90_000],
        ),
    ):
        await peer.ask("CreateGroup", pb.CreateGroupRequest(group=group), pb.GroupReply)
    again = pb.TopicConfig(name="Again", read_queues=2, write_queues=2, permission=6)
    await peer.ask("CreateTopic", pb.CreateTopicRequest(topic=again), pb.TopicReply)
    await peer.produce(good_run("prompt"))
    for name in ("half", "ended"):
        await peer.produce(good_run(name, TRAN_MSG="true", PGROUP="P"))
    await peer.produce(good_run("level", DELAY="3"))
    await peer.produce(good_run("timed", TIMER_DELAY_MS="4321"))


async def check_that_it_works(server: Broker, peer: Peer) -> None:
    """A delayed message, a retry and a transaction go their ways."""
    await peer.produce(good_run("level at last", DELAY="1"))
    await peer.produce(good_run("timed at last", TIMER_DELAY_MS="777"))
    await peer.produce(good_run("half at last", TRAN_MSG="true", PGROUP="P"))
    prompt = await peer.produce(good_run("prompt at last"))
    retries = server.store.queue_bounds("%RETRY%own", 0)[1]
    request = pb.SendBackRequest(
        group="own",
        topic=TOPIC,
        queue=0,
        queue_offset=prompt.first_queue_offset,
        log_offset=prompt.first_log_offset,
    )
    reply = await peer.ask("SendBack", request, pb.SendBackReply)
    assert not reply.dead
    await server.advance(776)
    assert "timed at last" not in texts(server)
    await server.advance(1_000)
    await end(peer, "half at last")
    found = texts(server)
    assert found[-4:] == ["prompt at last", "timed at last", "level at last", "half at last"]
    assert records_of(server.store, "%RETRY%own", 0)[retries].body == b"prompt at last"


def texts(server: Broker, topic: str = TOPIC, queue: int = 0) -> list[str]:
    return [body.decode() for body in bodies_of(server.store, topic, queue)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_bad_call_is_answered_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    service = pb.DESCRIPTOR.services_by_name["Broker"]
    async with fortress(tmp_path) as (server, peer, clock):
        await prepare(peer)
        fuzzer = Fuzzer(seed, peer.channel, GOOD)
        complaints = [
            complaint
            for _ in range(ROUNDS)
            for name in LATER
            if (complaint := await fuzzer.assault(service.methods_by_name[name]))
        ]
        assert complaints == [], f"seed {seed}"
        await server.advance("1m")
        found = Counter(texts(server))
        assert found.keys() <= {"prompt", "level", "timed", "ended", "half"}
        # A dead letter may have been sent again to its own topic, and a transaction committed.
        assert found["prompt"] >= 1
        assert found["level"] == found["timed"] == 1
        assert max(found["ended"], found["half"]) <= 1
        await check_that_it_works(server, peer)
        before = {name: texts(server, *name) for name in server.store.queue_names()}
        now_ms = clock.now_ms()

    async with fortress(tmp_path) as (server, peer, clock):
        assert server.recovery.clean
        assert clock.now_ms() == now_ms
        after = {name: texts(server, *name) for name in server.store.queue_names()}
        assert {name: after[name][: len(found)] for name, found in before.items()} == before


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_was_acknowledged_with_odd_properties_comes_once(
    tmp_path: Path, seed: int
) -> None:
    chooser = random.Random(seed)
    prompt: list[str] = []
    late: list[str] = []
    refused = 0
    async with fortress(tmp_path) as (server, peer, clock):
        await prepare(peer)
        for number in range(10 * ROUNDS):
            run, names = odd_run(chooser, clock.now_ms(), number)
            try:
                reply = await peer.produce(run)
            except PocketMQError as error:
                assert error.status not in SERVERS_FAULT, (seed, error)
                assert error.status != "INVALID_ARGUMENT" or error.details.get("field"), error
                refused += 1
                continue
            due_ms = list(reply.due_ms) or [0] * len(names)
            late += [name for name, due in zip(names, due_ms, strict=True) if due]
            prompt += [name for name, due in zip(names, due_ms, strict=True) if not due]
            if chooser.random() < 0.2:
                await server.advance(chooser.choice((1, 999, 1_000, 60_000)))
        assert refused > len(prompt) + len(late) > ROUNDS
        assert len(late) > ROUNDS // 2
        assert server.store.health.state == "open"
        await server.advance("3h")
        await check_that_it_works(server, peer)

    async with fortress(tmp_path) as (server, peer, clock):
        assert server.recovery.clean
        await server.advance("5d")
        found = Counter(texts(server, queue=1))
        given_up = Counter(texts(server, CHECK_MAX_TIME_TOPIC))
        assert all(found[name] == 1 for name in late), f"seed {seed}"
        assert all(found[name] + given_up[name] == 1 for name in prompt), f"seed {seed}"
        assert sum(found.values()) == len(late) + sum(name in found for name in prompt)
        status = await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        assert status.delayed_waiting == 0
        assert status.transactions_open == 0
