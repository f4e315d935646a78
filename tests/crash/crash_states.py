"""A disk that shows every state that a crash could leave: before each of its operations, in several ways.

A killed process leaves what it wrote. A power cut leaves what was synced, and of the rest any part: data, sizes and
names survive independently of each other.

    killed          everything written
    killed at N     the same, and the first N bytes of the write that is under way
    synced          only what was synced
    names           every name; new files are empty, and have no data
    sizes           every name and size; what was not synced is zeros
    data            no new name; all data of the files that were there
    last            every name and size; of the unsynced writes to a file only the last one
    any N           any part, drawn with the seed N
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from pocketmq.store.disk import Buffer, Mapping

from ..fakes import SECTOR, RecordedFile, RecordingDisk, RecordingMapping

KILLED: Final = "killed"
#: How much of the write under way a kill may leave: a byte, a sector, a page.
TORN_AT: Final = (1, 512, 4_096)
POWER_CUTS: Final = ("synced", "names", "sizes", "data", "last")

_Write: TypeAlias = tuple[int, bytes]


class LeftFile(NamedTuple):
    """A file that is left: its size, and its sectors by number. Others are zeros."""

    size: int
    sectors: dict[int, bytes]


#: Files by path relative to the store; None: a folder.
State: TypeAlias = dict[str, LeftFile | None]


def is_kill(way: str) -> bool:
    """Return whether WAY is that of a killed process: everything that it wrote is left."""
    return way.startswith(KILLED)


class WatchedDisk(RecordingDisk):
    """A recording disk that calls WATCH before each operation; `state` is what a crash at that moment could leave."""

    def __init__(self, root: str, watch: Callable[[], None], now_ms: Callable[[], int]) -> None:
        super().__init__(root, seed=0)
        self._watch = watch
        self._now_ms = now_ms
        self._written_ms: dict[str, int] = {}
        self._is_watching = True
        #: The write that is under way: its file, where, and what.
        self._coming: tuple[RecordedFile, int, bytes] | None = None

    def step(self) -> None:
        super().step()
        if self._is_watching:
            self._watch()

    def rest(self) -> None:
        """Do not call WATCH any more."""
        self._is_watching = False

    def modified_ms(self, path: str) -> int:
        return self._written_ms.get(path, 0)

    def writes(self, path: str, file: RecordedFile, at: int, data: Buffer) -> None:
        self._written_ms[path] = self._now_ms()
        self._coming = (file, at, bytes(data))

    def has_written(self) -> None:
        self._coming = None

    def open_map(
        self, path: str, *, size: int | None = None, writable: bool = True, create: bool = False
    ) -> Mapping:
        mapping = super().open_map(path, size=size, writable=writable, create=create)
        return _WatchedMapping(mapping.inner, self, self.file_of(path))  # type: ignore[attr-defined]

    def ways(self, any_seeds: Iterable[int] = ()) -> list[str]:
        """Return in which ways the present moment can be left."""
        size = len(self._coming[2]) if self._coming is not None else 0
        torn = [f"{KILLED} at {at}" for at in TORN_AT if at < size]
        return [KILLED, *torn, *POWER_CUTS, *(f"any {seed}" for seed in any_seeds)]

    def state(self, way: str) -> State:
        """Return what a crash at this moment leaves in WAY."""
        kind, _, number = way.replace(" at", "").partition(" ")
        if kind == "any":
            rng = random.Random(int(number))
            names = self.surviving_names(rng)
            return self._named(names, lambda file: _left(file.after_crash(rng)))
        names = self.names if kind in ("synced", "data") else self.files
        return self._named(names, lambda file: self._left(file, kind, int(number or 0)))

    def _left(self, file: RecordedFile, kind: str, torn_at: int) -> LeftFile:
        written: list[_Write] = list(file.pending)
        if file.mapped is not None:
            written.append((0, file.mapped.tobytes()))
        if kind in ("synced", "names"):
            return _content(file, file.size, ())
        if kind == "sizes":
            return _content(file, file.newest_size, ())
        if kind == "last":
            return _content(file, file.newest_size, written[-1:])
        if kind == KILLED and torn_at and self._coming is not None and self._coming[0] is file:
            _, at, data = self._coming
            written.append((at, data[:torn_at]))
        return _content(file, file.newest_size, written)

    def _named(
        self, names: dict[str, RecordedFile], content: Callable[[RecordedFile], LeftFile]
    ) -> State:
        state: State = {}
        for path, file in sorted(names.items()):
            name = os.path.relpath(path, self.root)
            folder = os.path.dirname(name)
            if folder and folder not in state:
                continue  # The name of a folder above it did not survive.
            state[name] = None if file.is_folder else content(file)
        return state


class _WatchedMapping(RecordingMapping):
    """A mapping that says what it is about to write."""

    disk: WatchedDisk

    def write(self, at: int, data: Buffer) -> None:
        self.disk.writes(self.path, self.file, at, data)
        try:
            super().write(at, data)
        finally:
            self.disk.has_written()


def _content(file: RecordedFile, size: int, writes: Iterable[_Write]) -> LeftFile:
    left = RecordedFile(durable=dict(file.durable), size=size)
    for at, data in writes:
        left.apply(at, data)
    return _left(left)


def _left(file: RecordedFile) -> LeftFile:
    return LeftFile(file.size, {at: data for at, data in file.durable.items() if any(data)})


def make(state: State, folder: str) -> None:
    """Write STATE to the new FOLDER; what is zero is a hole."""
    os.makedirs(folder)
    for name, left in state.items():
        path = os.path.join(folder, name)
        if left is None:
            os.mkdir(path)
            continue
        with open(path, "wb") as out:
            for sector, data in left.sectors.items():
                out.seek(sector * SECTOR)
                out.write(data)
            out.truncate(left.size)
