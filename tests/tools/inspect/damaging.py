"""Damaging files of a copied store at chosen places."""

import struct
from pathlib import Path

FILE_SIZE = 65_536


def log_bytes(store: Path, offset: int, data: bytes) -> None:
    """Write DATA at log OFFSET of a store of small files."""
    path = store / "commitlog" / f"{offset // FILE_SIZE * FILE_SIZE:020d}"
    with path.open("r+b") as file:
        file.seek(offset % FILE_SIZE)
        file.write(data)


def flip(store: Path, offset: int) -> None:
    """Change the byte at log OFFSET."""
    path = store / "commitlog" / f"{offset // FILE_SIZE * FILE_SIZE:020d}"
    log_bytes(store, offset, bytes((path.read_bytes()[offset % FILE_SIZE] ^ 0x15,)))


def entry(store: Path, topic: str, queue: int, number: int) -> tuple[int, int, int]:
    """Return log offset, size and tags code of an entry."""
    path, at = _entry_place(store, topic, queue, number)
    found: tuple[int, int, int] = struct.unpack_from(">qiq", path.read_bytes(), at)
    return found


def write_entry(store: Path, topic: str, queue: int, number: int, fields: tuple[int, ...]) -> None:
    """Write log offset, size and tags code of an entry."""
    path, at = _entry_place(store, topic, queue, number)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(">qiq", *fields))


def _entry_place(store: Path, topic: str, queue: int, number: int) -> tuple[Path, int]:
    size = 2_000
    start = number * 20 // size * size
    return store / "consumequeue" / topic / str(queue) / f"{start:020d}", number * 20 - start


def index_entry(store: Path, file: int, number: int, at: int, data: bytes) -> None:
    """Write DATA at byte AT of entry NUMBER of the index file in place FILE, of 500 slots."""
    path = sorted((store / "index").iterdir())[file]
    with path.open("r+b") as opened:
        opened.seek(40 + 4 * 500 + 20 * number + at)
        opened.write(data)
