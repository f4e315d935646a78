"""Sizes are told by the lengths of most files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.stores.sizes import settings_of

from ...recorded import recorded_store


@pytest.mark.parametrize("which", [0, 1])
def test_of_two_index_files_the_whole_one_tells_and_not_the_one_that_was_cut_short(
    which: int, tmp_path: Path
) -> None:
    store = recorded_store("rolled", tmp_path / "store")
    files = sorted((store / "index").iterdir())
    for file in files[2:]:
        file.unlink()
    os.truncate(files[which], 1_000)

    found = settings_of(OsDisk(), str(store), {})

    assert (found.index_slots, found.index_entries) == (500, 2000)
