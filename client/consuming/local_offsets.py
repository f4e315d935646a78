"""Offsets of a broadcasting consumer, in a file of Apache RocketMQ's format, `offsets.json`.

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json        and offsets.json.bak, the version before

    {
    →"offsetTable":{
    →→{
    →→→"brokerName":"broker-a",
    →→→"queueId":0,
    →→→"topic":"orders"
    →→}:12,
    →→{ … }:7
    →}
    }

The keys of the table are objects, so this is not JSON. The file is written like the Java client of RocketMQ 5.5.0 does
it (fastjson 2). The layouts of fastjson 1 and 2 can be read. If the file is missing, empty, or does not parse, its
`.bak` is read.

A write keeps the offsets that other consumers have written. The new file is flushed to disk before it replaces the old
one, and the old one becomes the `.bak`. So there is a complete file after a crash at any time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from json import JSONDecoder
from pathlib import Path
from typing import Any, Final

from ...proto.clock import Clock, held as clock_held
from ...proto.errors import CorruptState, OffsetStoreFailed
from ...proto.facts import Facts
from ..queue import Queue
from .commits import OffsetKeeper

logger = logging.getLogger(__name__)

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = JSONDecoder()
_NO_PATH: Final = re.compile(r"[/\\\x00]")


def offsets_path(folder: str, client_id: str, group: str) -> Path:
    """Return the path of the offsets of GROUP. FOLDER empty: `.rocketmq_offsets` in the user's home."""
    root = Path(folder) if folder else Path.home() / ".rocketmq_offsets"
    return root / _NO_PATH.sub("_", client_id) / group / "offsets.json"


class LocalOffsets(OffsetKeeper):
    """Stores offsets in the file whose path FIND_PATH returns. Not thread-safe: its event loop owns it."""

    keeps_metadata = False  # The file format of Apache RocketMQ has no field for it.

    def __init__(self, find_path: Callable[[], Awaitable[Path]], clock: Clock) -> None:
        super().__init__()
        self._find_path = find_path
        self._path: Path | None = None
        self._clock = clock
        self._writing = asyncio.Lock()

    async def committed_of(self, queues: Collection[Queue]) -> dict[Queue, int]:
        """Return the stored offsets of QUEUES; −1: none. Raises CorruptState if no file can be read."""
        path = await self._located()
        with clock_held(self._clock):
            stored = await asyncio.to_thread(load, path)
        return {queue: stored.get(queue, -1) for queue in queues}

    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Store OFFSETS; METADATA has to be empty. Raises OffsetStoreFailed if the file cannot be written."""
        new = {q: offset for q, offset in offsets.items() if self._committed.get(q) != offset}
        if not new:
            return
        path = await self._located()
        async with self._writing:
            with clock_held(self._clock):
                await asyncio.to_thread(save, path, new)
        self._committed |= new

    def doubt(self, broker: str) -> None:
        """Do nothing: the offsets are in the file, not on the broker."""

    def confirm(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """Do nothing: the offsets are in the file, not on the broker."""

    async def _located(self) -> Path:
        if self._path is None:
            self._path = await self._find_path()
        return self._path


def load(path: Path) -> dict[Queue, int]:
    """Return the offsets in the file at PATH, or else in its `.bak`. Empty if neither exists.

    Raises CorruptState if the existing file cannot be read.
    """
    backup = _backup(path)
    table, fault = _read(path)
    if table is not None:
        return table
    older, older_fault = _read(backup)
    if fault:
        logger.warning(
            "offsets file not readable, using its backup %s", Facts(path=path, reason=fault)
        )
    if older_fault or (fault and older is None):
        missing = "is missing or empty"
        raise CorruptState(
            f"no readable offsets file: {path} {fault or missing}, {backup} {older_fault or missing}. Repair one of the"
            " two, or move both away to start without offsets.",
            path=str(path),
            backup=str(backup),
        )
    return older or {}


def save(path: Path, new: Mapping[Queue, int]) -> None:
    """Add NEW to the offsets in the file at PATH, and flush the file to disk. Offsets of other processes are kept.

    Raises OffsetStoreFailed.
    """
    text = render({**load(path), **new})
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        _keep_backup(path)
        fresh.replace(path)
    except OSError as error:
        raise OffsetStoreFailed(
            f"cannot write the offsets file {path}: {error.strerror or error}. Make it writable, or set offsets_folder"
            " to another folder.",
            path=str(path),
        ) from error


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _keep_backup(path: Path) -> None:
    """Make the file at PATH the new `.bak`, unless it does not parse: then the older `.bak` is better."""
    if _read(path)[0] is None:
        return
    spare = path.with_name(f"{path.name}.bak.{os.getpid()}.new")
    spare.unlink(missing_ok=True)
    os.link(path, spare)
    spare.replace(_backup(path))


def _read(path: Path) -> tuple[dict[Queue, int] | None, str]:
    """Return the offsets in the file at PATH, or None and what is wrong with it ("": it is missing or empty)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, UnicodeDecodeError) as error:
        return None, f"cannot be read ({error})"
    if not text:
        return None, ""
    try:
        return parse(text), ""
    except ValueError as error:
        return None, f"does not parse ({error})"


def render(offsets: Mapping[Queue, int]) -> str:
    """Return OFFSETS as text for the file, sorted by topic, broker and number."""
    entries = [
        "\t\t{\n"
        f'\t\t\t"brokerName":{_quoted(queue.broker)},\n'
        f'\t\t\t"queueId":{queue.number},\n'
        f'\t\t\t"topic":{_quoted(queue.topic)}\n'
        f"\t\t}}:{offset}"
        for queue, offset in sorted(offsets.items())
    ]
    table = "{\n" + ",\n".join(entries) + "\n\t}" if entries else "{}"
    return f'{{\n\t"offsetTable":{table}\n}}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parse(text: str) -> dict[Queue, int]:
    """Return the offsets in TEXT. Raises ValueError if it does not parse."""
    scanner = _Scanner(text)
    table: dict[Queue, int] = {}
    for key in scanner.object():
        if key != "offsetTable":
            scanner.value()
            continue
        for name in scanner.object():
            queue, offset = _queue_of(name), scanner.value()
            if not isinstance(offset, int) or isinstance(offset, bool):
                raise ValueError(f"offset {offset!r} of {queue} is not a number")
            table[queue] = offset
    scanner.end()
    return table


def _queue_of(key: Any) -> Queue:
    try:
        topic, broker, number = key["topic"], key["brokerName"], key["queueId"]
    except (KeyError, TypeError):
        raise ValueError(f"{key!r} is not a queue") from None
    if not (isinstance(topic, str) and isinstance(broker, str) and isinstance(number, int)):
        raise ValueError(f"{key!r} is not a queue")
    return Queue(topic, broker, number)


class _Scanner:
    """Reads JSON whose objects may have objects as keys."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _next(self) -> str:
        """Skip white space and return the next character, "" at the end."""
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _expect(self, wanted: str) -> str:
        found = self._next()
        if not found or found not in wanted:
            raise ValueError(f"{found!r} at {self._at}, expected one of {wanted!r}")
        self._at += 1
        return found

    def object(self) -> Iterator[Any]:
        """Yield the keys of an object; the caller takes each value before the next key."""
        self._expect("{")
        if self._next() == "}":
            self._at += 1
            return
        while True:
            key = self.value()
            self._expect(":")
            yield key
            if self._expect(",}") == "}":
                return

    def value(self) -> Any:
        """Return the next value, which has to be plain JSON."""
        self._next()
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        return value

    def end(self) -> None:
        """Raise ValueError unless the text ends here."""
        if self._next():
            raise ValueError(
                f"{self._text[self._at : self._at + 10]!r} at {self._at}, expected the end"
            )
