"""PocketMQ's server with a topic for benchmarks, and the CPU time of both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...client import Admin, Message
from ...client.message import UNIQUE_KEY_SIZE
from ...proto.record import FIXED_SIZE_V4
from ..server_process import ServerProcess
from .measure import Figure, own_cpu_seconds

TOPIC: Final = "bench"

QUEUES: Final = 8


@contextmanager
def server_with_topic(
    folder: Path, *, queues: int = QUEUES, options: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Run a server with OPTIONS over a new store below FOLDER, with the topic TOPIC."""
    with ServerProcess(folder / "store", *options) as server:
        with Admin(server.nameserver) as admin:
            admin.create_topic(TOPIC, queues=queues)
        yield server


@contextmanager
def cpu_of_both(figure: Figure, server: ServerProcess) -> Iterator[None]:
    """Note what CPU time SERVER and this process use meanwhile, and the server's memory at the end."""
    server_before, own_before = server.cpu_seconds(), own_cpu_seconds()
    yield
    figure.server_cpu_seconds = server.cpu_seconds() - server_before
    figure.client_cpu_seconds = own_cpu_seconds() - own_before
    figure.server_rss_bytes = server.rss_bytes()


def record_bytes(body_bytes: int) -> int:
    """Return the size of the record of a message that `batch` makes: fixed fields, body, topic, message id."""
    return FIXED_SIZE_V4 + body_bytes + len(TOPIC) + UNIQUE_KEY_SIZE


def batch(count: int, body_bytes: int) -> list[Message]:
    """Return COUNT messages with bodies of BODY_BYTES."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    return [Message(TOPIC, body[:body_bytes]) for _ in range(count)]
