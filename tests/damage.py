"""Damage to the files of a store: at random from a seed, or one bit of one record."""

import random
from pathlib import Path

from pocketmq.store.message_store import MessageStore

#: Where the body of a record between IPv4 hosts begins.
BODY_AT = 88


def flip(store: MessageStore, log_offset: int, at: int = BODY_AT) -> None:
    """Change one bit of the record at LOG_OFFSET in its file, as the device might: STORE, which is open, sees it."""
    file = store.log.files.file_at(log_offset)
    assert file is not None
    flip_file(Path(file.path), log_offset - file.start + at)


def flip_stopped(root: Path, log_offset: int, at: int = BODY_AT) -> None:
    """Do that to the store in ROOT, which nobody has open."""
    files = {int(path.name): path for path in (root / "commitlog").iterdir()}
    start = max(start for start in files if start <= log_offset)
    flip_file(files[start], log_offset - start + at)


def log_offset_of(store: MessageStore, number: int, topic: str = "T") -> int:
    """Return where the entry of message NUMBER of queue 0 says that its record is."""
    queue = store.queues.get(topic, 0)
    found = None if queue is None else queue.log_offset(number)
    assert found is not None
    return found


def flip_file(path: Path, at: int) -> None:
    """Change one bit of the byte AT of PATH."""
    with open(path, "r+b") as raw:
        raw.seek(at)
        byte = raw.read(1)[0]
        raw.seek(at)
        raw.write(bytes((byte ^ 0x10,)))


def damage(store: Path, rng: random.Random, files_max: int = 4) -> None:
    """Damage up to FILES_MAX files of STORE: bytes overwritten, files cut, emptied or deleted."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    for path in rng.sample(files, rng.randrange(1, files_max + 1)):
        size = path.stat().st_size
        match rng.randrange(6):
            case 0 | 1 | 2 if size:
                with open(path, "r+b") as file:
                    file.seek(rng.randrange(min(size, 1 << 16)))
                    file.write(rng.randbytes(rng.choice([1, 4, 50, 3000])))
            case 3:
                path.write_bytes(b"")
            case 4:
                path.unlink()
            case _:
                with open(path, "r+b") as file:
                    file.truncate(rng.randrange(size + 1))
