"""The files in which pops keep what is in flight."""

from __future__ import annotations

from pathlib import Path

from pocketmq.store.table_journal import JournalSizes

FILES = "store/pocketmq/tables"
SMALL = JournalSizes(file=4_096, snapshot=8_192)


def files(path: Path, prefix: str = "") -> list[Path]:
    return sorted((path / FILES).glob(f"{prefix}*"))


def newest(path: Path) -> Path:
    return files(path, "journal-")[-1]


def end_of(file: Path) -> int:
    return len(file.read_bytes().rstrip(b"\0"))
