"""What the files of a store tell about its settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.store.config import StoreConfig
from pocketmq.store.file_sizes import config_of
from pocketmq.store.os_disk import OsDisk


def make(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)


def test_an_empty_folder_tells_the_defaults(tmp_path: Path) -> None:
    assert config_of(OsDisk(), str(tmp_path)) == StoreConfig(path=str(tmp_path))


def test_each_row_tells_its_file_size(tmp_path: Path) -> None:
    make(tmp_path / "commitlog" / f"{0:020d}", 65536)
    make(tmp_path / "consumequeue" / "A" / "0" / "notes", 7)
    make(tmp_path / "consumequeue" / "B" / "1" / f"{0:020d}", 2000)
    make(tmp_path / "timerlog" / f"{0:020d}", 1_000_000)

    config = config_of(OsDisk(), str(tmp_path))

    assert config.log_file_size_bytes == 65536
    assert config.queue_file_size_bytes == 2000
    assert config.timer_log_file_size_bytes == 1_000_000


def test_what_is_given_wins_over_the_files(tmp_path: Path) -> None:
    make(tmp_path / "commitlog" / f"{0:020d}", 65536)

    config = config_of(OsDisk(), str(tmp_path), {"mappedFileSizeCommitLog": "4096"})

    assert config.log_file_size_bytes == 4096


def test_index_files_of_the_default_length_need_no_word(tmp_path: Path) -> None:
    make(tmp_path / "index" / "20260101000000000", 420_000_040)

    assert config_of(OsDisk(), str(tmp_path)).index_slots == 5_000_000


def test_index_files_of_another_length_ask_for_their_settings(tmp_path: Path) -> None:
    make(tmp_path / "index" / "20260101000000000", 42_040)

    with pytest.raises(ConfigError, match=r"42,040 bytes long.*--broker-conf maxHashSlotNum"):
        config_of(OsDisk(), str(tmp_path))

    config = config_of(OsDisk(), str(tmp_path), {"maxHashSlotNum": "500", "maxIndexNum": "2000"})
    assert config.index_file_size_bytes == 42_040
