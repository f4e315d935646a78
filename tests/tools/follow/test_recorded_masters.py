"""Stores that Java wrote, followed: the log and the queues are what Java's broker made of them, byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.store.config import APACHE_NAMES, StoreConfig, apply_apache_settings
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ...recorded import recorded_names, recorded_store, settings
from ...runs import Hand
from .java_master import JavaMasterDouble
from .test_follower import follower_of, has_all, running, until

SOUND = [name for name in recorded_names() if not name.startswith("damaged-")]


def queue_bytes(store: Path) -> dict[str, bytes]:
    """Return the entries of the queues of STORE that have any."""
    return {
        str(file.relative_to(store)): data
        for kind in ("consumequeue", "batchconsumequeue")
        for file in sorted((store / kind).rglob("*"))
        if file.is_file() and any(data := file.read_bytes())
    }


@pytest.mark.parametrize(
    ("name", "late"), [*((name, False) for name in SOUND), ("encodings", True)]
)
async def test_a_store_that_java_wrote_is_followed(name: str, late: bool, tmp_path: Path) -> None:
    recorded_store(name, tmp_path / "java")
    told = {key: value for key, value in settings(name).items() if key in APACHE_NAMES}
    config = apply_apache_settings(StoreConfig(path=str(tmp_path / "java")), told)
    store = MessageStore.open(config, disk=OsDisk(), now_ms=Hand(), replica=True)
    before = queue_bytes(tmp_path / "java")
    sizes = {
        "mappedFileSizeCommitLog": config.log_file_size_bytes,
        "mappedFileSizeConsumeQueue": config.queue_file_size_bytes,
        "mapperFileSizeBatchConsumeQueue": config.batch_queue_file_size_bytes,
        "maxHashSlotNum": config.index_slots,
        "maxIndexNum": config.index_entries,
    }
    master = JavaMasterDouble(store, tmp_path, frame=32 << 10)
    master.settings = {key: str(value) for key, value in sizes.items()} | told
    topics = (tmp_path / "java" / "config" / "topics.json").read_text()
    if late:  # The topics with batch queues are known a moment after their messages have come.
        master.tables[21] = topics.replace("BatchCQ", "SimpleCQ")
    else:
        master.tables[21] = topics
    await master.start()
    async with running(follower := follower_of(tmp_path, master)) as task:
        await until(has_all(follower, store), task)
        if late:
            master.tables[21] = topics
            is_made = (tmp_path / "ours" / "batchconsumequeue").exists
            await until(is_made, task)
            await until(has_all(follower, store), task)
    await master.close()
    for file in [file for file in store.log.files.files if file.position]:
        with (tmp_path / "ours" / "commitlog" / Path(file.path).name).open("rb") as ours:
            assert ours.read(file.position) == file.read(0, file.position)
    if not store.min_log_offset:  # Else Java's queues know of what the log has no more.
        assert queue_bytes(tmp_path / "ours") == before
    store.close()
