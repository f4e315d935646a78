"""topics.json says which topics have batch queues; a broken table says nothing."""

from pathlib import Path

import pytest

from pocketmq.store.config import StoreConfig
from pocketmq.store.consume_queues import ConsumeQueues, batch_topics
from pocketmq.store.format.state_tables import TopicConfig, TopicTable, render_topics
from pocketmq.store.os_disk import OsDisk

from ..recorded import recorded_store

TABLE = render_topics(
    TopicTable(
        topics={
            "Plain": TopicConfig(name="Plain"),
            "Batched": TopicConfig(name="Batched", attributes={"queue.type": "BatchCQ"}),
            "Simple": TopicConfig(name="Simple", attributes={"queue.type": "SimpleCQ"}),
        }
    )
)


@pytest.mark.parametrize(
    ("main", "backup", "found"),
    [
        (TABLE, None, {"Batched"}),
        (None, TABLE, {"Batched"}),
        ("{ broken", TABLE, {"Batched"}),
        ("", TABLE, {"Batched"}),
        ("{ broken", "[]", set()),
        (None, None, set()),
    ],
)
def test_the_table_or_its_backup_is_asked(
    main: str | None, backup: str | None, found: set[str], tmp_path: Path
) -> None:
    for name, text in (("topics.json", main), ("topics.json.bak", backup)):
        if text is not None:
            (tmp_path / name).write_text(text)

    assert batch_topics(OsDisk(), str(tmp_path)) == found


def test_a_recorded_store_whose_queues_are_gone_still_has_its_kinds(tmp_path: Path) -> None:
    store = recorded_store("encodings", tmp_path / "store")
    for folder in ("consumequeue", "batchconsumequeue"):
        OsDisk().delete_folder(str(store / folder))

    queues = ConsumeQueues.load(OsDisk(), StoreConfig(path=str(store)))

    assert queues.is_batch("InnerBatched")
    assert not queues.is_batch("LongGroupTopic")
