"""Every view of stores damaged at random places: an answer, never a traceback. POCKETMQ_SEED chooses others."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pocketmq.proto.errors import PocketMQError
from pocketmq.tools.inspect.command import inspect

from ...recorded import recorded_store
from .test_every_store import WORDS

pytestmark = pytest.mark.long

SEED = int(os.environ.get("POCKETMQ_SEED", "1"))
STORES = int(os.environ.get("POCKETMQ_STORES", "5"))
BASES = ["rolled", "delays", "transactions", "consumption", "encodings", "unclean-late", "cleaned"]


def overwrite(rng: random.Random, path: Path) -> None:
    """Overwrite some bytes, most likely near the beginning, where there is something."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(rng.randrange(1, 30)):
            file.seek(rng.randrange(max(1, min(size, rng.choice([64, 4096, 1 << 20])))))
            file.write(
                rng.choice([rng.randbytes(rng.randrange(1, 9)), b"\xff" * 8, b"\x7f" + b"\xff" * 7])
            )


def cut(rng: random.Random, path: Path) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1) if rng.random() < 0.7 else 0)


def lengthen(rng: random.Random, path: Path) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 100)))


def lose(rng: random.Random, path: Path) -> None:
    path.unlink()


def misname(rng: random.Random, path: Path) -> None:
    path.rename(path.with_name(rng.choice(["x", "1", "9" * 20, "0" * 20, "00000000000000000007"])))


def make_folder(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [overwrite, overwrite, overwrite, cut, lengthen, lose, misname, make_folder]


@pytest.mark.parametrize("number", range(STORES))
def test_views_survive_any_damage(number: int, tmp_path: Path) -> None:
    rng = random.Random(SEED * 1000 + number)
    store = recorded_store(rng.choice(BASES), tmp_path / "store")
    for _ in range(rng.randrange(1, 12)):
        files = [path for path in sorted(store.rglob("*")) if path.is_file()]
        damage = rng.choice(DAMAGES)
        path = rng.choice(files)
        if not path.with_name("x").exists() or damage is not misname:
            damage(rng, path)

    for view, words in WORDS.items():
        for some in words:
            result = CliRunner().invoke(inspect, [str(store), view, *some, "--jsonl"])
            if result.exception is None or isinstance(result.exception, SystemExit | PocketMQError):
                for line in result.stdout.splitlines():
                    json.loads(line)
                continue
            raise AssertionError((view, some)) from result.exception
    shutil.rmtree(store)
