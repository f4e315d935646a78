"""Stores that are damaged at random places: a scan goes on behind the damage and counts it, or says what is wrong."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import PocketMQError
from pocketmq.tools.stores.locations import locate
from pocketmq.tools.stores.scan.bad_records import BadRecords
from pocketmq.tools.stores.scan.conditions import Conditions
from pocketmq.tools.stores.scan.scan import Scan, ScanOptions

from ....recorded import expected, recorded_store, settings

pytestmark = pytest.mark.long

NAMES = ("rolled", "encodings", "unclean", "cleaned")
FOLDERS = ("commitlog", "consumequeue", "batchconsumequeue", "index")
#: The files are sparse: most of their bytes are zeros behind the end.
USED_BYTES = 70_000


def damage(store: Path, rng: random.Random) -> None:
    """Change some files below STORE: bits, stretches of bytes, lengths; or take one away."""
    files = [path for folder in FOLDERS for path in sorted((store / folder).rglob("*"))]
    files = [path for path in files if path.is_file()]
    for path in rng.choices(files, k=rng.randrange(1, 6)):
        if not path.exists():
            continue
        size = min(path.stat().st_size, USED_BYTES)
        kind = rng.randrange(6)
        if kind == 0:
            path.unlink()
        elif kind == 1:
            os.truncate(path, rng.randrange(size + 1))
        else:
            with open(path, "r+b") as file:
                for _ in range(rng.randrange(1, 8)):
                    at = rng.randrange(max(1, size))
                    file.seek(at)
                    if kind == 2:
                        old = file.read(1) or b"\0"
                        file.seek(at)
                        file.write(bytes([old[0] ^ 1 << rng.randrange(8)]))
                    elif kind == 3:
                        file.write(rng.randbytes(rng.randrange(1, 200)))
                    elif kind == 4:
                        file.write(
                            rng.choice([b"\xff", b"\x7f", b"\x80", b"\0"]) * rng.randrange(1, 9)
                        )
                    else:
                        file.write(bytes(rng.randrange(1, 4_000)))


def scanned(store: Path, conditions: Conditions, **options: Any) -> tuple[int, BadRecords]:
    scan = Scan(ScanOptions(**options), conditions)
    bad = BadRecords(scan.options.bad_records)
    rows = 0
    for task in scan.plan(locate([str(store)])):
        for batch in scan.read(task, bad):
            batch.validate(full=True)
            rows += batch.num_rows
    return rows, bad


@pytest.mark.parametrize("seed", range(int(os.environ.get("DAMAGE_SEEDS", "12"))))
def test_a_scan_of_a_damaged_store_ends(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    name = rng.choice(NAMES)
    store = recorded_store(name, tmp_path / "store")
    damage(store, rng)
    topics = frozenset(record["topic"] for record in expected(name)["records"])
    common: dict[str, Any] = {
        "settings": settings(name),
        "split_bytes": rng.choice([5_000, 1 << 26]),
    }

    rows, bad = scanned(
        store, Conditions(), bad_records="skip", fail_on_data_loss=False, check_crc=True, **common
    )
    assert rows <= len(expected(name)["records"])
    assert bad.bytes >= bad.count
    for dataset in ("consumequeue", "index", "files"):
        scanned(
            store,
            Conditions(),
            dataset=dataset,
            bad_records="skip",
            fail_on_data_loss=False,
            **common,
        )
    named = Conditions(topics=topics)
    scanned(store, named, bad_records="skip", fail_on_data_loss=False, check_crc=True, **common)
    for conditions in (Conditions(), named):
        try:
            scanned(store, conditions, **common)
        except PocketMQError as error:
            assert len(error.message) > 20
