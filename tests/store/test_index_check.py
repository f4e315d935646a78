"""The check of an index file: a sound one passes, any number changed in its slots or entries is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from pocketmq.proto.errors import CorruptIndex
from pocketmq.store.format.index import index_file_size
from pocketmq.store.index_check import LogPlaces, check_index_file
from pocketmq.store.index_file import IndexFile
from pocketmq.store.os_disk import OsDisk

from ..runs import make_run, open_store

_SLOTS, _ENTRIES, _KEYS = 50, 200, 60
_ENTRIES_AT = 40 + _SLOTS * 4


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """Return an index file as a store wrote it, and where the records are."""
    home = tmp_path_factory.mktemp("index")
    store = open_store(home, index_slots=_SLOTS, index_entries=_ENTRIES)
    offsets: list[int] = []
    for number in range(_KEYS):
        run = make_run("T", 0, [b"x" * (number % 7 + 1)], {"KEYS": f"key-{number}"})
        offsets += store.append(run).log_offsets.tolist()
    store.close()
    (path,) = (home / "index").iterdir()
    return path.read_bytes(), offsets


def check(data: bytes, offsets: list[int], folder: Path) -> None:
    path = folder / "1"
    path.write_bytes(data)
    file = IndexFile(OsDisk(), str(path), _SLOTS, _ENTRIES, create=False)
    try:
        check_index_file(file, LogPlaces(0, np.array(offsets, np.int64), lambda _: False))
    finally:
        file.close()


def test_what_a_store_wrote_is_sound(sound: tuple[bytes, list[int]], tmp_path: Path) -> None:
    check(*sound, tmp_path)


@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data())
def test_a_changed_byte_of_a_slot_or_of_an_entry_is_found(
    sound: tuple[bytes, list[int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content, offsets = bytearray(sound[0]), sound[1]
    first_entry = _ENTRIES_AT + 20
    at = data.draw(st.integers(40, first_entry + _KEYS * 20 - 1).filter(lambda at: not _untold(at)))
    content[at] ^= data.draw(st.integers(1, 255))
    of_entry = (at - _ENTRIES_AT) % 20
    if at >= _ENTRIES_AT and 4 <= of_entry < 12:
        log_offset = at - of_entry + 4
        # Another record's offset is as good: nobody looks here whether that has the key.
        assume(int.from_bytes(content[log_offset : log_offset + 8]) not in offsets)

    with pytest.raises(CorruptIndex) as raised:
        check(bytes(content), offsets, tmp_path_factory.mktemp("changed"))

    assert 0 <= int(raised.value.details["offset"]) < index_file_size(_SLOTS, _ENTRIES)


def _untold(at: int) -> bool:
    """Is AT in entry 0, which is never used, or where a change may be as good: a hash, or the seconds?"""
    if at < _ENTRIES_AT:
        return False
    of_entry = (at - _ENTRIES_AT) % 20
    return at < _ENTRIES_AT + 20 or of_entry < 4 or 12 <= of_entry < 16


def test_an_entry_of_no_record_is_found(sound: tuple[bytes, list[int]], tmp_path: Path) -> None:
    content, offsets = sound

    with pytest.raises(CorruptIndex, match="log offset"):
        check(content, offsets[:30] + offsets[31:], tmp_path)
