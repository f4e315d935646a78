"""Apache's broker opens a store that ours left amid atomic commits: an ordinary one; and ours goes on behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.topics import COMMIT_COPIES_GROUP, COMMIT_OFFSETS_GROUP, COMMIT_TOPIC

from ..broker.transactions.committing import SOURCE, TARGET, Desk
from .java_oracle import Document, dumps, require_java, verify_start

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(600)]

#: Those of the store that a Desk has.
SETTINGS: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
}
_AGO_MS: Final = 3_600_000


def desk_at(path: Path, *, by_hand: bool = False) -> Desk:
    made = Desk(path, clock=VirtualClock(SystemClock().now_ms() - _AGO_MS), by_hand=by_hand)
    made.start()
    return made


def left_amid(path: Path) -> None:
    """Leave three commits made and saved, and one that is decided and not made."""
    desk = desk_at(path, by_hand=True)
    for topic in (SOURCE, TARGET):
        desk.make_topic(topic)
    desk.send(["input"] * 20)
    for number in range(3):
        begin = 3 * number
        desk.commit(f"c{number}", {0: (begin or -1, begin + 3)}, {(TARGET, 0): [f"made {number}"]})
        desk.sync()
        desk.save()
        desk.sync()
    desk.topics.table.close()
    desk.commit("last", {0: (9, 12)}, {(TARGET, 0): ["made last"]})
    desk.kill()


def of_topic(document: Document, topic: str) -> list[Document]:
    return [record for record in document["records"] if record["topic"] == topic]


def test_java_opens_it_keeps_how_far_it_is_and_ours_makes_the_rest(tmp_path: Path) -> None:
    require_java()
    left_amid(tmp_path / "ours")

    (ours,) = dumps([(tmp_path / "ours", SETTINGS)], tmp_path / "dump-ours")
    assert ours["accepted"]
    records = of_topic(ours, COMMIT_TOPIC)
    assert [record["properties"]["UNIQ_KEY"] for record in records] == ["c0", "c1", "c2", "last"]
    assert all(record["crcOk"] for record in ours["records"])
    made = of_topic(ours, TARGET)
    assert [record["preparedTransactionOffset"] for record in made] == [
        record["physicalOffset"] for record in records[:3]
    ]

    verdict = verify_start(tmp_path / "ours", SETTINGS, keep=tmp_path / "java")
    assert verdict["healthy"], verdict["log"]
    (java,) = dumps([(tmp_path / "java", SETTINGS)], tmp_path / "dump-java")
    table = java["config"]["consumerOffsets"]
    assert table[f"{COMMIT_TOPIC}@{COMMIT_OFFSETS_GROUP}"] == {"0": 3}
    assert COMMIT_COPIES_GROUP in str(table)
    assert of_topic(java, TARGET) == made

    desk = desk_at(tmp_path / "java")
    assert desk.committed() == 12
    assert desk.bodies() == ["made 0", "made 1", "made 2", "made last"]
    desk.stop()
