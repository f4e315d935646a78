"""The note in a store that it follows a Java broker, `pocketmq/following.json`.

    {"format":1,"address":"10.0.0.1:10912","rpc":"10.0.0.1:10911","cluster":"DefaultCluster","broker":"broker-a",
     "autoSwitch":false,"settings":{"mappedFileSizeCommitLog":"1073741824",…},"masterEnd":4096,"tablesEnd":4096,
     "stoppedAt":null,"timerCheckpoint":"0000…"}

While it exists, no broker serves the store; `pocketmq promote` removes it.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, field, fields
from typing import Final

from ...proto import errors
from ...store.disk import Disk

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowNote:
    """Whom a store follows, and how far they were."""

    #: Where the master sends its log, and where it answers requests: host:port.
    address: str
    rpc: str
    cluster: str
    broker: str
    auto_switch: bool
    #: The master's settings that decide about files and delays, by RocketMQ's names.
    settings: dict[str, str] = field(default_factory=dict)
    #: Where the master's log ended when it was last asked.
    master_end: int = 0
    #: The tables of the store were the master's when its log ended here.
    tables_end: int = 0
    #: Where the log ended when the master was seen to stop in order, and nothing was missing.
    stopped_at: int | None = None
    #: The master's timer checkpoint, hexadecimal; "": none came.
    timer_checkpoint: str = ""


_NAMES: Final = {
    "auto_switch": "autoSwitch",
    "master_end": "masterEnd",
    "tables_end": "tablesEnd",
    "stopped_at": "stoppedAt",
    "timer_checkpoint": "timerCheckpoint",
}
#: By our names.
_KEYS: Final = {one.name: _NAMES.get(one.name, one.name) for one in fields(FollowNote)}


def note_path(store: str) -> str:
    """Return the path of the note of STORE."""
    return posixpath.join(store, "pocketmq", "following.json")


def read_note(disk: Disk, store: str) -> FollowNote | None:
    """Return the note in STORE; None: it follows no broker. Raises CorruptState."""
    path = note_path(store)
    if not disk.exists(path):
        return None
    try:
        document = json.loads(disk.read(path))
        if document.pop("format") != _FORMAT:
            raise ValueError("it is of another format")
        values = {name: document[key] for name, key in _KEYS.items()}
        for name in ("master_end", "tables_end"):
            if type(values[name]) is not int:
                raise ValueError(f"{name} is no number")
        return FollowNote(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.CorruptState(
            f"{path} cannot be read ({error}): move the whole store away, and follow into a new folder",
            path=path,
        ) from None


def write_note(disk: Disk, store: str, note: FollowNote) -> None:
    """Replace the note in STORE; it is on disk when this returns."""
    document = {"format": _FORMAT} | {key: getattr(note, name) for name, key in _KEYS.items()}
    path = note_path(store)
    disk.make_folders(posixpath.dirname(path))
    disk.write_atomically(path, json.dumps(document, separators=(",", ":")).encode())


def check_promoted(disk: Disk, store: str) -> None:
    """Raise StoreMismatch if STORE follows a Java broker: only `pocketmq follow` may write to it."""
    note = read_note(disk, store)
    if note is not None:
        raise errors.StoreMismatch(
            f"{store} follows the Java broker {note.broker} at {note.rpc}: stop that, then `pocketmq promote {store}`",
            path=store,
        )
