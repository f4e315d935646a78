"""The asyncio faces on uvloop, the loop that web servers such as uvicorn choose, instead of asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, AsyncPullConsumer, AsyncPushConsumer, Message

from ..served import ServerProcess
from .test_tls import Files, secure_cluster

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: run `make dev`")

pytestmark = pytest.mark.processes


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def send_and_read(nameserver: str, topic: str, **settings: Any) -> None:
    """Send a message, and many; read all of them by each kind of consumer."""
    async with AsyncProducer(nameserver, **settings) as producer:
        await producer.send(topic, b"0", key="first")
        await producer.send_many([Message(topic, str(n).encode()) for n in range(1, 200)])

    wanted = {str(n).encode() for n in range(200)}
    polled: set[bytes] = set()
    async with AsyncPullConsumer(
        f"{topic}-pull", topic, nameserver, start="earliest", **settings
    ) as consumer:
        while polled != wanted:
            polled |= {message.body for message in await consumer.poll(timeout_ms=10_000)}

    pushed: set[bytes] = set()
    done = asyncio.Event()

    async def listener(message: Any) -> None:
        pushed.add(message.body)
        if pushed == wanted:
            done.set()

    async with AsyncPushConsumer(
        f"{topic}-push", topic, listener, nameserver, start="earliest", **settings
    ):
        await asyncio.wait_for(done.wait(), 30)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_clients_work_on_uvloop(server: ServerProcess, host: str) -> None:
    _, _, port = server.nameserver.rpartition(":")

    run(send_and_read(f"{host}:{port}", f"uvloop-{host.replace('.', '-')}"))


def test_tls_works_on_uvloop(tmp_path: Path) -> None:
    files = Files(tmp_path)

    async def work() -> None:
        async with secure_cluster(files) as nameserver:
            await send_and_read(nameserver, "secure", tls_ca=files.path("ours.pem"))

    run(work())
