"""The scrubber's notes: when each log file was verified last.

`<root>/pocketmq/scrubbed.json`; without it all files are verified again:

    {"version": 1, "files": {"<name in commitlog/>": {"verified_ms": …, "size_bytes": …, "damaged": …}}}

`damaged` counts the damaged records that this verification found.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Container
from dataclasses import asdict, dataclass, field
from typing import Final

from ..proto.errors import StoreError
from ..proto.facts import Facts
from .disk import Disk

logger = logging.getLogger(__name__)
_NAME: Final = "scrubbed.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """When a log file was verified last, up to which size, and how much of it was damaged."""

    verified_ms: int
    size_bytes: int
    damaged: int


@dataclass(slots=True)
class ScrubNotes:
    """The last verification of each log file, by file name."""

    files: dict[str, Scrubbed] = field(default_factory=dict)

    @classmethod
    def load(cls, disk: Disk, folder: str) -> ScrubNotes:
        """Return the notes in FOLDER; none if the file is missing or invalid."""
        path = os.path.join(folder, _NAME)
        try:
            document = json.loads(disk.read(path)) if disk.exists(path) else {}
            if document.get("version") != _VERSION:
                return cls()
            rows = {str(name): Scrubbed(**row) for name, row in document["files"].items()}
            if not all(isinstance(one.verified_ms, int) for one in rows.values()):
                return cls()
            return cls(rows)
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            logger.warning(
                "scrub notes not readable, all log files are verified again %s",
                Facts(path=path, reason=str(error)),
            )
            return cls()

    def forget_all_but(self, names: Container[str]) -> None:
        """Drop the notes of all files except NAMES."""
        self.files = {name: row for name, row in self.files.items() if name in names}

    def text(self) -> bytes:
        """Return the content of the file."""
        rows = {name: asdict(row) for name, row in sorted(self.files.items())}
        return json.dumps({"version": _VERSION, "files": rows}, indent=1).encode()


class NotesWrite:
    """Writes the notes, as a part of a flush job."""

    def __init__(self, disk: Disk, folder: str, text: bytes) -> None:
        self._disk, self._folder, self._text = disk, folder, text

    def sync(self) -> None:
        try:
            self._disk.make_folders(self._folder)
            self._disk.write_atomically(os.path.join(self._folder, _NAME), self._text)
        except StoreError as error:  # Files are verified again earlier; nothing is lost.
            logger.warning("scrub notes not written %s", Facts(reason=error.message))
