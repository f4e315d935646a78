"""Measures how a broker persists the state next to its log: which modules write which files.

A broker is used in this process: topics, groups, offsets, leases, delays, pop, idempotent producers. Its disk notes
each file that is written below `config/` and `pocketmq/`, and the module that writes it. Each module that writes state
is one way to persist state.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pocketmq.broker.broker import Broker
from pocketmq.client import Message, Producer, PullConsumer
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.store.disk import Buffer, Mapping
from pocketmq.store.state_files import StateFile

from ..fakes import ForwardingDisk
from ..integration.v2_caller import Caller
from ..integration.whole_broker import store_config
from ..served import broker_config, nameserver_config
from .source_tree import code_files, name_of

#: The modules that write state, and the files that each writes. `N` is any number.
DECLARED: Final = {
    "store/file_table.py": {
        "config/subscriptionGroup.json",
        "config/topics.json",
    },
    "broker/delay/progress.py": {"config/delayOffset.json"},
    "broker/offsets.py": {"config/consumerOffset.json"},
    "broker/producers/producers.py": {"pocketmq/producers.json"},
    "store/table_journal.py": {"pocketmq/tables/journal-N"},
}
#: Files that hold no state of topics, groups, messages or producers.
OTHER_FILES: Final = {
    "config/timercheck": "Apache's checkpoint of the timer files: part of the store",
    "config/timermetrics": "Apache's count of timers: part of the store",
    "pocketmq/broken": "damaged files and records, as they were",
    "pocketmq/clock.json": "the virtual clock of a broker in a test",
    "pocketmq/cut-off": "records that a replica removed from the end of its log",
    "pocketmq/damaged.json": "the damaged places in the log of a replica",
    "pocketmq/replica.json": "the epoch of a replica",
    "pocketmq/scrubbed.json": "when each log file was verified",
    "pocketmq/set-aside": "state that a replica had and its master did not",
    "pocketmq/tls": "the certificate for development",
    "pocketmq/verified.json": "the position up to which the last start verified the store",
}
#: It writes files for others.
_SAVER: Final = "store/state_files.py"
#: Delayed messages are delivered in this time. Offsets are not saved yet, so that the stop saves them on this thread.
_SECONDS: Final = 4


@dataclass(frozen=True, slots=True)
class Persistence:
    """What was written while the broker was used."""

    ways: dict[str, set[str]]
    """The files of each module that writes state."""
    other: set[str]
    """The files in OTHER_FILES."""


class _NotingDisk(ForwardingDisk):
    """A disk that notes which module writes which file."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root
        self.writers: dict[str, set[str]] = defaultdict(set)

    def write_file(self, path: str, data: Buffer) -> None:
        self._note(path)
        super().write_file(path, data)

    def write_atomically(self, path: str, data: Buffer, *, backup: str | None = None) -> None:
        self._note(path)
        super().write_atomically(path, data, backup=backup)

    def write_private(self, path: str, data: Buffer) -> None:
        self._note(path)
        super().write_private(path, data)

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        if writable:
            self._note(path)
        return super().open_map(path, size=size, writable=writable, create=create)

    def _note(self, path: str) -> None:
        name = os.path.relpath(path, self._root).removesuffix(".tmp")
        if name.startswith(("config/", "pocketmq/")):
            file = re.sub(r"\d+", "N", name)
            self.writers[_writer(file)].add(file)


def _writer(file: str) -> str:
    """Return the module of the product that writes FILE. A `StateFile` writes for the module that calls it.

    On the thread of a flusher no caller is seen: there the module that FILE is declared for counts.
    """
    frame = sys._getframe(3)  # From _note, and the method of the disk, to its caller.
    while frame.f_back and (
        isinstance(frame.f_locals.get("self"), StateFile) or not _module(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    module = _module(frame.f_code.co_filename)
    if module == _SAVER:
        return next((owner for owner, files in DECLARED.items() if file in files), module)
    return module


@cache
def _module(file: str) -> str:
    path = Path(os.path.realpath(file))
    return name_of(path) if path in code_files() else ""


@cache
def measured() -> Persistence:
    """Return what a broker wrote while it was used."""
    with tempfile.TemporaryDirectory() as folder:
        writers = asyncio.run(_used(Path(folder)))
    ways: dict[str, set[str]] = {}
    other = set[str]()
    for module, files in writers.items():
        state = {file for file in files if not _is_other(file)}
        other |= files - state
        if state:
            ways[module] = state
    return Persistence(ways, other)


def _is_other(file: str) -> bool:
    return any(file == name or file.startswith(f"{name}/") for name in OTHER_FILES)


async def _used(folder: Path) -> dict[str, set[str]]:
    """Use a broker with its store in FOLDER; return the files that each module wrote."""
    names = NameServer.build(nameserver_config(port=0), clock=SystemClock())
    await names.start()
    store = store_config(folder)
    disk, clock = _NotingDisk(store.path), VirtualClock()
    config = broker_config(port=0, nameservers=(names.address,))
    broker = Broker.build(config, store, disk=disk, clock=clock, wall=SystemClock())
    await broker.start()
    try:
        assert await broker.registered(60)
        with ThreadPoolExecutor(1) as user:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(user, _use, names.address, broker.address)
        for _ in range(_SECONDS):
            await clock.advance(1_000)
    finally:
        await broker.stop()
        await names.stop()
    return disk.writers


def _use(nameserver: str, broker: str) -> None:
    with Producer(nameserver) as producer:
        producer.send(Message("T", b"wanted", tag="a"))
        producer.send(Message("T", b"filtered out", tag="b"))
        producer.send(Message("T", b"of a delay level", delay_level=1))
        producer.send(Message("T", b"scheduled", delay="3s"))
    with PullConsumer("G", {"T": "a"}, nameserver) as consumer:
        assert consumer.poll()
        consumer.commit()
    client = Caller(broker)
    assert client.receive()
    client.channel.close()


def names_in_code() -> set[str]:
    """Return the files and folders below `pocketmq/` that the code of broker and store names."""
    named = re.compile(r"(?<![\w/.])(?:<(?:root|store)>/)?pocketmq/([a-z][a-z-]*(?:\.jsonl?)?)")
    return {
        f"pocketmq/{name}"
        for path in code_files()
        if name_of(path).startswith(("broker/", "store/"))
        for name in named.findall(path.read_text(encoding="utf-8"))
    }


def declared_names() -> set[str]:
    """Return the declared files and folders directly below `pocketmq/`."""
    files = {file for written in DECLARED.values() for file in written} | OTHER_FILES.keys()
    return {"/".join(file.split("/")[:2]) for file in files if file.startswith("pocketmq/")}
