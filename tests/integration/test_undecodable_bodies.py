"""A record that claims a compression that its body does not have costs nobody the messages around it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from pocketmq.client import Admin, PullConsumer, PushConsumer, ReceivedMessage
from pocketmq.proto.errors import CorruptRecord, MessageTooLarge, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import BODY_BYTES_MAX, Host, encode_run

from ..served import ServerProcess
from .command import Shell
from .whole_broker import Peer

pytestmark = pytest.mark.processes

TOPIC = "bodies"
COMPRESSED = 1
#: Bits 8 to 10: no such type of compression.
UNKNOWN_TYPE = COMPRESSED | 7 << 8
BOMB = zlib.compress(bytes(BODY_BYTES_MAX + 1))
BODIES = ((b"first", 0), (b"no zlib at all", COMPRESSED), (BOMB, COMPRESSED), (b"?", UNKNOWN_TYPE))
PROPERTIES = (b"KEYS\x01k\x02", b"KEYS\x01k\x02odd\x01\xff\xfe\x02")


async def fill(address: str) -> None:
    """Send BODIES, and a last message behind them, with properties that are no UTF-8."""
    bodies = [*BODIES, (b"last", 0)]
    records, sizes = encode_run(
        TOPIC,
        0,
        [(body, PROPERTIES[row % 2]) for row, (body, _) in enumerate(bodies)],
        born_timestamp_ms=1_700_000_000_000,
        born_host=Host.parse("127.0.0.1", 1),
        sys_flag=[flag for _, flag in bodies],
    )
    async with grpc.aio.insecure_channel(address) as channel:
        run = pb.ProduceRun(run_id=1, topic=TOPIC, queue=0, records=records, sizes=sizes)
        await Peer(channel).produce(run)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("bodies") / "store"
    with ServerProcess(store, "--clock", "virtual") as running:
        with Admin(running.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        asyncio.run(fill(running.ready["broker"]))
        yield running


def test_consume_reports_it_and_goes_on(call: Shell) -> None:
    done = call("consume", TOPIC, "--group", "plain", "--limit", "5", "--timeout", "20")

    assert (done.code, done.out) == (0, "first\nlast\n")
    reports = done.err.splitlines()
    assert len(reports) == 3
    assert f"{TOPIC}, queue 0, offset 1" in reports[0]
    assert "no zlib at all" in reports[0]
    again = call("consume", TOPIC, "--group", "plain", "--timeout", "0.2")
    assert (again.code, again.out, again.err) == (0, "", "")


def test_documents_have_the_stored_bytes_and_why(call: Shell) -> None:
    done = call("consume", TOPIC, "--group", "json", "--limit", "5", "--timeout", "20", "--json")

    found = done.documents
    assert (done.code, len(found)) == (0, 5)
    assert (found[0]["body"], found[4]["body"]) == ("first", "last")
    for document, (body, _) in zip(found[1:4], BODIES[1:], strict=True):
        assert document["body"] is None
        assert base64.b64decode(document["body_base64"]) == body
    assert "cannot be decompressed" in found[1]["body_fault"]
    assert "limit" in found[2]["body_fault"]
    assert "type 7" in found[3]["body_fault"]


def test_look_ups_the_console_and_its_api_show_all(call: Shell, server: ServerProcess) -> None:
    assert len(call.done("find", "--topic", TOPIC, "--key", "k")) == 5
    shown = call("find", "--topic", TOPIC, "--key", "k")
    assert (shown.code, shown.out.count("cannot be decoded")) == (0, 3)
    address = f"http://{server.ready['broker']}"
    place = f"/api/topics/{TOPIC}/messages?queue=0&offset=0&limit=5"
    with urllib.request.urlopen(address + place) as answer:
        assert len(json.load(answer)["messages"]) == 5
    for offset in range(5):
        place = f"/messages?topic={TOPIC}&queue=0&offset={offset}"
        with urllib.request.urlopen(address + place) as page:
            assert page.status == 200
        assert ("cannot be decoded" in page_text(address + place)) == (offset in (1, 2, 3))


def page_text(address: str) -> str:
    with urllib.request.urlopen(address) as page:
        return str(page.read().decode())


def test_a_record_of_the_topic_has_all(call: Shell, tmp_path: Path) -> None:
    file = tmp_path / "topic.jsonl"

    done = call("record", TOPIC, str(file))

    assert done.code == 0, done
    assert len(file.read_text().splitlines()) == 5


def test_a_pull_consumer_is_told_at_that_message_alone(server: ServerProcess) -> None:
    with PullConsumer("pulling", TOPIC, server.nameserver) as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < 5:
            found += consumer.poll(20_000)
        consumer.commit()

    assert [found[0].body, found[4].body] == [b"first", b"last"]
    assert [one.stored_body for one in found[1:4]] == [body for body, _ in BODIES[1:]]
    assert found[1].properties["odd"] == "\ufffd\ufffd"
    for message, error in zip(
        found[1:4], (CorruptRecord, MessageTooLarge, CorruptRecord), strict=True
    ):
        with pytest.raises(error):
            _ = message.body


def test_a_push_consumer_retries_it_and_goes_on(server: ServerProcess) -> None:
    bodies: list[bytes] = []
    failed: list[int] = []
    all_came = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        try:
            bodies.append(message.body)
        except PocketMQError:
            failed.append(message.queue_offset)
            raise
        finally:
            if len(bodies) + len(failed) == len(BODIES) + 1:
                all_came.set()

    with PushConsumer("pushing", TOPIC, listen, nameservers=server.nameserver):
        assert all_came.wait(60)

    assert (sorted(bodies), sorted(failed)) == ([b"first", b"last"], [1, 2, 3])
    with Admin(server.nameserver) as admin:
        offsets = admin.group_offsets("pushing")
    assert [one.offset for one in offsets if one.queue.topic == TOPIC] == [5]
