"""Compression: what is compressed, how it is marked, and that consumers have the body back."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, AsyncPullConsumer, Message
from pocketmq.client.compression import Compression, Compressor
from pocketmq.client.config import ProducerConfig
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConfigError, MessageTooLarge
from pocketmq.proto.record import decode_record, decompress_body

from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections

LARGE = b"a line of a log, and another line of a log\n" * 200
NOISE = Random(5).randbytes(8_000)


@pytest.mark.parametrize(("kind", "bits"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_a_large_body_is_compressed_and_says_how(kind: Compression, bits: int) -> None:
    message = Compressor(kind, 4_096).compressed(Message("T", LARGE, key="k"))

    assert message.sys_flag == bits
    assert len(message.body) < len(LARGE) // 4
    assert decompress_body(message.body, bits) == LARGE
    assert message.keys == ("k",)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("zlib", LARGE[:4_096]),
        ("zlib", NOISE),
        ("lz4", NOISE),
        ("zstd", NOISE),
        (None, LARGE),
    ],
)
def test_what_is_small_or_does_not_shrink_stays(kind: Compression | None, body: bytes) -> None:
    message = Message("T", body)

    assert Compressor(kind, 4_096).compressed(message) is message


def test_nothing_is_compressed_twice() -> None:
    compressor = Compressor("zlib", 10)
    once = compressor.compressed(Message("T", LARGE))

    assert compressor.compressed(once) is once


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compression is 'gzip'.*zlib, lz4, zstd or None"):
        ProducerConfig(compression="gzip")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_a_kind_without_its_library_names_the_extra(
    kind: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setattr("pocketmq.client.compression.find_spec", nowhere)

    with pytest.raises(ConfigError, match=r"pip install .*\[compression\]'"):
        ProducerConfig(compression=kind)
    assert importlib.util.find_spec("zlib") is not None
    assert ProducerConfig(compression="zlib").compression == "zlib"


def beside(cluster: FakeCluster) -> dict[str, Any]:
    return {"clock": VirtualClock(), "connections": FakeConnections(cluster)}


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd", None])
async def test_a_consumer_has_the_body_back(kind: Compression | None) -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    sent = [b"small", LARGE, NOISE, b"end"]

    async with AsyncProducer(compression=kind, **beside(cluster)) as sending:
        await sending.send(Message("orders", sent[0]))
        await sending.send_many([Message("orders", body) for body in sent[1:]])
    async with AsyncPullConsumer("billing", "orders", **beside(cluster)) as consumer:
        received: list[bytes] = []
        while len(received) < 4:
            received += [message.body for message in await consumer.poll()]

    assert received == sent
    stored = [decode_record(record) for record in cluster.broker.queues["orders", 0]]
    assert [bool(record.sys_flag & 1) for record in stored] == [
        False,
        kind is not None,
        False,
        False,
    ]
    assert all(record.crc_ok for record in stored)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_a_consumer_bounds_what_a_body_is_decompressed_to(kind: Compression) -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    async with AsyncProducer(compression=kind, **beside(cluster)) as sending:
        await sending.send(Message("orders", bytes(100_000)))
        await sending.send(Message("orders", bytes(99_999)))
    async with AsyncPullConsumer(
        "billing", "orders", body_max_bytes=99_999, **beside(cluster)
    ) as consumer:
        bomb, large = await consumer.poll()
        with pytest.raises(MessageTooLarge, match=r"limit of 99999 .*body_max_bytes"):
            _ = bomb.body
        assert large.body == bytes(99_999)
