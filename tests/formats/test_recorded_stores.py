"""The recorded stores unpack to what their documents say."""

import os
from pathlib import Path

import pytest

from ..recorded import expected, recorded_names, recorded_store, settings


def test_there_are_34_stores_and_each_has_a_verdict() -> None:
    names = recorded_names()

    assert len(names) == 34
    assert names[0] == "basic"
    assert all(isinstance(expected(name)["accepted"], bool) for name in names)


@pytest.mark.parametrize("name", ["rolled", "default-sizes", "damaged-short-index"])
def test_a_copy_has_the_files_that_apache_found(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    files = {str(p.relative_to(store)): p.stat().st_size for p in store.rglob("*") if p.is_file()}
    assert files == expected(name)["filesBefore"]


def test_a_copy_stays_sparse(tmp_path: Path) -> None:
    store = recorded_store("default-sizes", tmp_path / "store")

    used = sum(os.stat(p).st_blocks * 512 for p in store.rglob("*") if p.is_file())
    assert used < 8 << 20


def test_settings_name_the_sizes() -> None:
    assert settings("rolled")["mappedFileSizeCommitLog"] == "65536"
    assert settings("basic") == {}
