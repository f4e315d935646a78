"""The small files of a store, most of them in its config folder: text with a `.bak` next to it.

To replace a file, `StateFile` writes a temporary file, makes the old file the `.bak`, and renames the new one to the
final name. A crash at any moment leaves at least one readable copy. Loading reads the file, or the `.bak` if the file
is missing, is empty, or does not parse. A file that does not parse is moved to `<root>/pocketmq/broken/`, and
`Loaded.problem` says so (Apache RocketMQ deletes it). If both are unreadable, loading raises CorruptState.

The contents are the tables of format/state_tables.py:

    topics = StateFile(disk, root, "topics.json")
    table = topics.load(parse_topics).value or TopicTable()
    topics.save(render_topics(table))

`save` writes at once. After `start`, `save_soon` writes in a thread, so that the event loop does not wait for the disk.

Thread-safe saving: threads that save one file wait for each other, because they share its temporary file.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final, Generic, Literal, TypeVar

from ..proto.errors import CorruptState, StoreError
from .disk import Disk
from .flush import CallOwner, Flusher, FlushJob, Waiter

logger = logging.getLogger(__name__)


T = TypeVar("T")

#: The folder of files that do not parse. It is PocketMQ's; RocketMQ ignores it.
BROKEN_FOLDER: Final = "pocketmq/broken"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """The result of loading a state file: VALUE is None if neither file exists."""

    value: T | None
    origin: Literal["file", "backup", "nothing"]
    #: One sentence about a file that was quarantined; None if there was none.
    problem: str | None = None


class StateFile:
    """One file of `<root>/config`, or of another FOLDER of the store ("": its root), with its `.bak`."""

    def __init__(self, disk: Disk, root: str, name: str, folder: str = "config") -> None:
        self.disk = disk
        self.root = root
        self.name = name
        self.path = posixpath.join(root, folder, name)
        self.backup_path = self.path + ".bak"
        self._main_is_sound = True
        #: Did the last save make the replaced file the backup?
        self.has_new_backup = False
        self._saving = Lock()
        self._saver = Flusher("not started: works at once")
        self._call_owner: CallOwner = lambda function: function()

    def start(self, saver: Flusher, call_owner: CallOwner) -> None:
        """From now on let SAVER write what is saved soon. CALL_OWNER runs its callbacks in the owner's thread."""
        self._saver = saver
        self._call_owner = call_owner

    def load(self, parse_text: Callable[[str], T]) -> Loaded[T]:
        """Return the result of PARSE_TEXT for the file, or for its backup.

        Raises CorruptState if the backup does not parse, and the file is missing or does not parse either.
        """
        value, fault = self._read(self.path, parse_text)
        if value is not None:
            return Loaded(value, "file")
        backup, backup_fault = self._read(self.backup_path, parse_text)
        if backup_fault is not None or (fault is not None and backup is None):
            raise self._corrupt(fault, backup_fault)
        problem = None
        if fault is not None:
            problem = f"{self.path} {fault}: moved to {self._quarantine()}, {self.backup_path} used"
        self._main_is_sound = not self.disk.exists(self.path)
        return Loaded(backup, "nothing" if backup is None else "backup", problem)

    def load_value(self, parse_text: Callable[[str], T]) -> T | None:
        """Do the same, but return only the value, None if neither file exists. A file that was damaged is logged."""
        loaded = self.load(parse_text)
        if loaded.problem:
            logger.warning("state file was damaged file=%s problem=%s", self.name, loaded.problem)
        return loaded.value

    def save(self, text: str | Iterable[str]) -> None:
        """Replace the file by TEXT, in one or several pieces, on disk when this returns. The old file is the backup."""
        data = bytearray()
        for piece in [text] if isinstance(text, str) else text:
            data += piece.encode()
        with self._saving:
            self.disk.make_folders(posixpath.dirname(self.path))
            # An empty file must not replace a backup that may be the only copy.
            sound = self._main_is_sound and self.disk.exists(self.path)
            backup = self.backup_path if sound else None
            self.disk.write_atomically(self.path, data, backup=backup)
            self._main_is_sound, self.has_new_backup = True, sound

    def save_soon(self, render: Callable[[], Iterable[str]], done: Waiter) -> None:
        """Replace the file by the result of RENDER, which the saver calls; then call DONE with None, or with the error.

        Before `start`, or when the saver has stopped, all of this happens now.
        """

        def written(error: StoreError | None) -> None:
            self._call_owner(partial(done, error))

        self._saver.submit(FlushJob([_Saving(self, render)], written))

    def _read(self, path: str, parse_text: Callable[[str], T]) -> tuple[T | None, str | None]:
        """Return the value in the file PATH, or None and its fault (None: it is missing or empty)."""
        if not self.disk.exists(path):
            return None, None
        data = self.disk.read(path)
        if not data:
            return None, None
        try:
            return parse_text(data.decode("utf-8-sig")), None
        except ValueError as error:
            return None, f"does not parse ({error})"

    def _quarantine(self) -> str:
        folder = posixpath.join(self.root, BROKEN_FOLDER)
        self.disk.make_folders(folder)
        taken = {entry.name for entry in self.disk.list(folder)}
        number = next(n for n in range(1, len(taken) + 2) if f"{self.name}.{n}" not in taken)
        target = posixpath.join(folder, f"{self.name}.{number}")
        self.disk.rename(self.path, target)
        return target

    def _corrupt(self, fault: str | None, backup_fault: str | None) -> CorruptState:
        missing = "is missing or empty"
        return CorruptState(
            f"{self.path} {fault or missing}, {self.backup_path} {backup_fault or missing}: "
            f"repair one of the two, or move both away to start with an empty {self.name}",
            path=self.path,
            backup=self.backup_path,
        )


@dataclass(frozen=True, slots=True)
class _Saving:
    file: StateFile
    render: Callable[[], Iterable[str]]

    def sync(self) -> None:
        self.file.save(self.render())
