"""Call paths: the functions of the product that run during one warm call, and the files that they are in.

    make call-paths         write the files into docs/architecture.md, and draw docs/packages.svg (package_drawing.py)

Client, broker and store are in one process, on a virtual clock. `sys.setprofile` notes each function that runs. A call
is followed three times once it is warm. Only functions that all three runs have in common count: timers that happened
to be due in one of them do not.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import textwrap
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from pocketmq.broker.broker import Broker
from pocketmq.client import Message, Producer
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..integration.v2_caller import Caller
from ..integration.whole_broker import store_config
from ..served import broker_config, nameserver_config
from .source_tree import ROOT, code_files, name_of

ARCHITECTURE: Final = ROOT / "docs" / "architecture.md"
NAMES: Final = ("Producer.send", "SendMessage", "ReceiveMessage", "AckMessage", "open after a kill")
_WARM_UPS: Final = 2
_RUNS: Final = 3
_START_MS: Final = 1_700_000_000_000
_TOPIC: Final = "T"
#: Python 3.11 runs a comprehension as a function, later versions do not.
_COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Function(NamedTuple):
    """A function that ran."""

    file: str
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class CallPath:
    """What one call runs, in the order of the first call of each."""

    functions: list[Function]
    files: list[Path]


class Tracer:
    """Notes the functions that run on this thread, and on threads that start while it is `covering` them."""

    def __init__(self) -> None:
        self._running: dict[Function, None] | None = None
        self._runs: list[dict[Function, None]] = []

    @contextmanager
    def tracing(self) -> Iterator[None]:
        self._running = {}
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._runs.append(self._running)
            self._running = None

    @contextmanager
    def covering(self) -> Iterator[None]:
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._running is not None:
            code = frame.f_code
            self._running[Function(code.co_filename, code.co_qualname, code.co_firstlineno)] = None

    def path(self) -> CallPath:
        """Return the functions of the product that all runs had in common."""
        common = set.intersection(*map(set, self._runs))
        functions, files = [], dict[Path, None]()
        for function in self._runs[-1]:
            path = _product_file(function.file)
            if function in common and path is not None:
                files[path] = None
                if not function.name.endswith(_COMPREHENSIONS):
                    functions.append(function)
        return CallPath(functions, list(files))


@cache
def _product_file(name: str) -> Path | None:
    """Return the file of the product that NAME is, also through a symbolic link; None for any other file."""
    path = Path(os.path.realpath(name))
    return path if path in _product_files() else None


@cache
def _product_files() -> frozenset[Path]:
    return frozenset(code_files())


@cache
def measured() -> dict[str, CallPath]:
    """Return the call path of each of NAMES."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_call_paths(Path(folder)))
    if not all(path.files for path in found.values()):
        raise SystemExit(
            f"no call path in {ROOT}: this Python imports pocketmq from another checkout. Run `make dev` here."
        )
    return found


async def _call_paths(folder: Path) -> dict[str, CallPath]:
    wall = SystemClock()
    names = NameServer.build(nameserver_config(port=0), clock=wall)
    await names.start()
    config = broker_config(port=0, nameservers=(names.address,))
    clock = VirtualClock(_START_MS)
    broker = Broker.build(config, store_config(folder), disk=OsDisk(), clock=clock, wall=wall)
    await broker.start()
    try:
        assert await broker.registered(60)
        found = [await _path_of_send(names.address)]
        found += await _paths_of_official_client(broker.address)
        found.append(await _path_of_opening(folder, clock))
        return dict(zip(NAMES, found, strict=True))
    finally:
        await broker.stop()
        await names.stop()


async def _path_of(
    call: Callable[[], Awaitable[Any]],
    before: Callable[[], Awaitable[Any]] | None = None,
    tracer: Tracer | None = None,
) -> CallPath:
    """Return the path of CALL once it is warm. BEFORE runs before each call and is not traced."""
    tracer = tracer or Tracer()
    for run in range(_WARM_UPS + _RUNS):
        if before is not None:
            await before()
        if run < _WARM_UPS:
            await call()
        else:
            with tracer.tracing():
                await call()
    return tracer.path()


async def _path_of_send(address: str) -> CallPath:
    """Return the path of a send: from the user's thread to the client's, to the broker's and back."""
    loop = asyncio.get_running_loop()
    tracer = Tracer()
    with tracer.covering(), ThreadPoolExecutor(1) as user:
        producer = await loop.run_in_executor(user, Producer, address)
        try:

            async def send() -> None:
                await loop.run_in_executor(user, producer.send, Message(_TOPIC, b"body"))

            return await _path_of(send, tracer=tracer)
        finally:
            await loop.run_in_executor(user, producer.close)


async def _paths_of_official_client(address: str) -> list[CallPath]:
    """Return the paths of SendMessage, ReceiveMessage and AckMessage on the broker's thread."""
    client = Caller(address)
    received: list[v2.Message] = []

    async def send() -> None:
        await asyncio.to_thread(client.send, b"body")

    async def receive() -> None:
        received.extend(await asyncio.to_thread(client.receive))

    async def acknowledge() -> None:
        await asyncio.to_thread(client.acknowledge, received.pop())

    async def send_and_receive() -> None:
        await send()
        await receive()

    try:
        await receive()  # Also the messages of `Producer.send`.
        return [
            await _path_of(send),
            await _path_of(receive, send),
            await _path_of(acknowledge, send_and_receive),
        ]
    finally:
        client.channel.close()


async def _path_of_opening(folder: Path, clock: VirtualClock) -> CallPath:
    """Return the path of opening a copy of the running broker's store, as a kill leaves it."""
    copies = iter(range(_WARM_UPS + _RUNS))
    opened = iter(range(_WARM_UPS + _RUNS))

    async def copy() -> None:
        # Another thread writes this file within a second; a start that finds it runs more functions.
        while not (folder / "store" / "config" / "topics.json").exists():  # noqa: ASYNC110  (another thread writes the file)
            await asyncio.sleep(0.01)
        # Files that are written right now vanish under the copy.
        unfinished = shutil.ignore_patterns("*.tmp")
        target = folder / f"killed-{next(copies)}" / "store"
        shutil.copytree(folder / "store", target, ignore=unfinished)

    async def reopen() -> None:
        killed = store_config(folder / f"killed-{next(opened)}")
        MessageStore.open(killed, disk=OsDisk(), now_ms=clock.now_ms).close()

    return await _path_of(reopen, copy)


# In the document.


def block_of(name: str, text: str) -> str:
    """Return what TEXT has between the marks of the path NAME."""
    begin, end = _marks(name)
    return text.split(begin)[1].split(end)[0]


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- call path: {name} -->\n", f"<!-- end of {name} -->\n"


def files_in(block: str) -> list[Path]:
    """Return the files that BLOCK names. Each line is a folder and files in it."""
    found = []
    for line in block.splitlines():
        folder, *names = line.replace(",", " ").split()
        if folder.endswith("/"):
            found += [ROOT / folder / f"{name}.py" for name in names]
    return found


def rendered(files: list[Path]) -> str:
    """Return the block that names FILES by folder, in the order of the path."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in files:
        folders[f"{name_of(path.parent)}/"].append(path.stem)
    width = max(map(len, folders)) + 1
    lines = ["```"]
    for folder, names in folders.items():
        lines += textwrap.wrap(
            ", ".join(names),
            width=118,
            initial_indent=folder.ljust(width),
            subsequent_indent=folder.ljust(width),
            break_on_hyphens=False,
        )
    return "\n".join([*lines, "```", ""])


def updated(text: str) -> str:
    """Return TEXT with the measured paths. A block that names the right files stays as it is."""
    for name, path in measured().items():
        if set(files_in(block_of(name, text))) != set(path.files):
            begin, end = _marks(name)
            head, rest = text.split(begin)
            text = f"{head}{begin}{rendered(path.files)}{end}{rest.split(end)[1]}"
    return text
