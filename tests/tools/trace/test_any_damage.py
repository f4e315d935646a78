"""Stores that were damaged at random places: finding and telling end in an answer, never in a traceback."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from pocketmq.tools import cli

from ...recorded import recorded_store

_STORES = {
    "consumption": ("Failing", "Failing-0"),
    "delays": ("Timed", "hour-0"),
    "transactions": ("Transacted", "trans-3"),
    "encodings": ("LongGroupTopic", "k"),
    "cleaned": ("Fill0", "same"),
}
_REACH_BYTES = 300_000  # what lies beyond is empty in these stores


def damage(root: Path, random: Random) -> None:
    """Change some files under ROOT."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for path in random.sample(files, random.randint(1, 6)):
        size = min(path.stat().st_size, _REACH_BYTES)
        kind = random.choice(["flip", "flip", "zero", "garbage", "head", "cut", "delete", "folder"])
        if kind in ("delete", "folder"):
            path.unlink()
            if kind == "folder":
                path.mkdir()
        elif kind == "cut":
            os.truncate(path, random.randint(0, size))
        elif size:
            _overwrite(path, kind, size, random)


def _overwrite(path: Path, kind: str, size: int, random: Random) -> None:
    with path.open("r+b") as file:
        if kind == "head":
            file.write(random.randbytes(min(48, size)))
        elif kind == "flip":
            for _ in range(random.randint(1, 200)):
                file.seek(random.randrange(size))
                file.write(random.randbytes(1))
        else:
            at = random.randrange(size)
            length = min(random.randint(1, 5000), size - at)
            file.seek(at)
            file.write(bytes(length) if kind == "zero" else random.randbytes(length))


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_damaged_there_is_an_answer(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Random(seed)
    name = list(_STORES)[seed % len(_STORES)]
    topic, key = _STORES[name]
    store = recorded_store(name, tmp_path / "store")
    shutil.rmtree(store / "rocksdbstore", ignore_errors=True)
    damage(store, random)

    for words in (
        ["trace", key, "--topic", topic],
        ["trace", f"{topic}/0/1"],
        ["find", "--key", key, "--scan"],
        ["find", "--topic", topic, "--since", "2020-01-01", "--limit", "500", "--json"],
        ["find", "--log-offset", str(random.randrange(50_000))],
    ):
        code = cli.run([*words, "--store", str(store)])

        err = capsys.readouterr().err
        assert code in (0, 3), err
        assert "Traceback" not in err
