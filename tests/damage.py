"""Random damage to the files of a store, from a seed."""

import random
from pathlib import Path


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
