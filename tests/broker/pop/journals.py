"""Pops with a journal on disk, and a look at its files."""

from __future__ import annotations

from pathlib import Path

from pocketmq.broker.pop.journal import Journal
from pocketmq.broker.timing.timers import Timers
from pocketmq.store.message_store import MessageStore

from .popping import Popping

FILES = "store/pocketmq/pop"


def journal(store: MessageStore, timers: Timers) -> Journal:
    return Journal(store, timers, timers)


def make(path: Path, **fields: object) -> Popping:
    return Popping(path, **{"make_journal": journal, **fields})  # type: ignore[arg-type]


def files(path: Path, prefix: str = "") -> list[Path]:
    return sorted((path / FILES).glob(f"{prefix}*"))


def newest(path: Path) -> Path:
    return files(path, "journal-")[-1]


def end_of(file: Path) -> int:
    return len(file.read_bytes().rstrip(b"\0"))
