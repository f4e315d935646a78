"""A broker that starts on a store takes the sizes of its files, where they are sure."""

import os
from pathlib import Path

import pytest

from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.config import StoreConfig
from pocketmq.store.file_sizes import config_of_files
from pocketmq.store.os_disk import OsDisk
from tests.recorded import recorded_names, recorded_store, settings

SIZES = (
    "log_file_size_bytes",
    "queue_file_size_bytes",
    "batch_queue_file_size_bytes",
    "timer_log_file_size_bytes",
    "index_slots",
    "index_entries",
)


def sizes(config: StoreConfig) -> list[int]:
    return [getattr(config, name) for name in SIZES]


@pytest.mark.parametrize(
    "name", [name for name in recorded_names() if not name.startswith("damaged-")]
)
def test_a_sound_store_tells_its_sizes(name: str, tmp_path: Path) -> None:
    root = str(recorded_store(name, tmp_path / "store"))

    found = config_of_files(OsDisk(), StoreConfig(path=root))

    assert sizes(found) == sizes(ApacheSettings.of(settings(name)).store_config(root))


def test_what_is_set_stays(tmp_path: Path) -> None:
    root = str(recorded_store("rolled", tmp_path / "store"))

    found = config_of_files(OsDisk(), StoreConfig(path=root, log_file_size_bytes=1 << 20))

    assert found.log_file_size_bytes == 1 << 20


def test_a_cut_file_tells_nothing(tmp_path: Path) -> None:
    log = tmp_path / "commitlog" / ("0" * 20)
    log.parent.mkdir()
    log.write_bytes(b"")
    os.truncate(log, 3 * 4096)

    found = config_of_files(OsDisk(), StoreConfig(path=str(tmp_path)))

    assert found == StoreConfig(path=str(tmp_path))


def test_a_store_that_is_not_there_yet_has_the_default(tmp_path: Path) -> None:
    config = StoreConfig(path=str(tmp_path / "none"))

    assert config_of_files(OsDisk(), config) == config
