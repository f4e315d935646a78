"""An index file is cut back to an earlier header, whatever of the keys put since is there: byte for byte."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pocketmq.proto.errors import CorruptIndex
from pocketmq.store.format.index import IndexHeader
from pocketmq.store.index_file import IndexFile
from pocketmq.store.os_disk import OsDisk

from ..fakes import SECTOR

_SLOTS, _ENTRIES = 300, 400


def put(file: IndexFile, rng: random.Random, count: int) -> None:
    """Enter COUNT keys; some share a hash, some only its slot."""
    if count == 0:
        return
    begin = file.header.end_log_offset
    hashes = np.array([rng.choice([7, 307, rng.getrandbits(31)]) for _ in range(count)], np.int32)
    steps = np.array([rng.choice([0, 100, 300]) for _ in range(count)])
    offsets = begin + np.cumsum(steps).astype(np.int64)
    file.put(hashes, offsets, 1_700_000_000_000 + offsets)


def two_versions(
    path: Path, seed: int, before: int, since: int
) -> tuple[bytes, bytes, IndexHeader]:
    """Return the file with BEFORE keys, with SINCE more of them, and the header that it had between."""
    path.unlink(missing_ok=True)
    rng = random.Random(seed)
    file = IndexFile.create(OsDisk(), str(path), _SLOTS, _ENTRIES, end_log_offset=50, end_ms=1)
    put(file, rng, before)
    old, then = path.read_bytes(), replace(file.header)
    put(file, rng, since)
    new = path.read_bytes()
    file.close()
    return old, new, then


def torn(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Return a file with each sector as it was before or after."""
    return b"".join(rng.choice([old, new])[at : at + SECTOR] for at in range(0, len(old), SECTOR))


@settings(max_examples=150)
@given(st.integers(0, 1 << 32), st.integers(0, 200), st.integers(0, 199))
def test_whatever_is_there_of_later_keys_goes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, before: int, since: int
) -> None:
    path = tmp_path_factory.mktemp("index") / "1"
    old, new, then = two_versions(path, seed, before, since)
    path.write_bytes(torn(old, new, random.Random(seed)))
    file = IndexFile(OsDisk(), str(path), _SLOTS, _ENTRIES, create=False)

    file.restore(then)

    assert path.read_bytes() == old
    assert file.header == then
    put(file, random.Random(seed), 5)
    file.close()


def test_a_file_that_is_as_it_was_stays_so(tmp_path: Path) -> None:
    old, _, then = two_versions(tmp_path / "1", 1, 100, 0)
    file = IndexFile(OsDisk(), str(tmp_path / "1"), _SLOTS, _ENTRIES, create=False)

    assert file.restore(then) == 0

    file.close()
    assert (tmp_path / "1").read_bytes() == old


def test_damage_to_earlier_keys_is_told_and_nothing_changed(tmp_path: Path) -> None:
    _, new, then = two_versions(tmp_path / "1", 1, 100, 20)
    damaged = bytearray(new)
    entries_at = 40 + _SLOTS * 4
    damaged[entries_at + 20 * 50 : entries_at + 20 * 60] = bytes(200)
    (tmp_path / "1").write_bytes(damaged)
    file = IndexFile(OsDisk(), str(tmp_path / "1"), _SLOTS, _ENTRIES, create=False)

    with pytest.raises(CorruptIndex):
        file.restore(then)

    file.close()
    assert (tmp_path / "1").read_bytes() == damaged
