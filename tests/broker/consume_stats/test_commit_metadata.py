"""Texts that were committed with offsets: told with these alone, kept in their table, whatever is saved when."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pocketmq.broker.commit_texts import CommitText, CommitTexts, commit_text_table
from pocketmq.broker.offsets import Offsets
from pocketmq.proto.commit_metadata import COMMIT_METADATA_MAX, check_metadata
from pocketmq.proto.errors import InvalidArgument
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.table_files import read_tables

from ...runs import Hand
from ...store.table_worlds import opened_journal
from ..pop.popping import GROUP, TOPIC, Popping

KEY = ("g", "T", 0)


class Kept:
    """Offsets and texts as a broker on the store at PATH has them."""

    def __init__(self, path: Path, limit: int = 100) -> None:
        table = commit_text_table()
        self.journal = opened_journal(path, table)
        self.journal.start(lambda function: function())
        self.texts = CommitTexts(table, limit)
        file = StateFile(OsDisk(), str(path), "consumerOffset.json")
        self.offsets = Offsets(file, Hand(), self.texts)

    def commit(self, offset: int, text: str | None = None, queue: int = 0) -> None:
        self.offsets.commit("T", "g", queue, offset, text)

    def told(self, queue: int = 0) -> tuple[int | None, str]:
        return self.offsets.committed("T", "g", queue), self.offsets.metadata("T", "g", queue)

    def save(self) -> None:
        self.offsets.save()


def texts_in(store: Path) -> CommitTexts:
    table = commit_text_table()
    read_tables(OsDisk(), str(store / "pocketmq/tables"), [table])
    return CommitTexts(table)


def test_a_text_is_told_with_the_offset_it_came_with(tmp_path: Path) -> None:
    kept = Kept(tmp_path)

    kept.commit(5, "blue")
    assert kept.told() == (5, "blue")
    kept.commit(5)
    assert kept.told() == (5, "blue"), "the same offset once more says nothing of its text"
    kept.commit(5, "red")
    assert kept.told() == (5, "red")
    kept.commit(5, "")
    assert kept.told() == (5, "")


def test_a_text_that_was_left_behind_does_not_come_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.commit(5, "blue")

    kept.commit(6)
    kept.commit(5)

    assert kept.told() == (5, "")
    assert kept.texts.get(KEY) is None, "nothing is left to keep"


def test_texts_outlive_a_restart_and_the_offsets_file_does_not_know(tmp_path: Path) -> None:
    with_text, without = Kept(tmp_path / "a"), Kept(tmp_path / "b")
    with_text.commit(5, "größe\n\u2028")
    without.commit(5)
    with_text.save()
    without.save()

    assert Kept(tmp_path / "a").told() == (5, "größe\n\u2028")
    file = "config/consumerOffset.json"
    assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert [len(texts_in(tmp_path / name)) for name in "ab"] == [1, 0]


def test_a_text_of_another_offset_goes_at_the_start_for_good(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.commit(5, "blue")
    kept.save()
    kept.commit(6)
    kept.texts.write = lambda: None  # type: ignore[method-assign]
    kept.offsets.save()  # A kill here leaves the texts as they were.

    again = Kept(tmp_path)
    assert again.told() == (6, "")
    again.commit(5)
    assert again.told() == (5, "")
    again.save()
    assert len(texts_in(tmp_path)) == 0


def test_what_is_no_text_is_as_none(tmp_path: Path) -> None:
    table = commit_text_table()
    journal = opened_journal(tmp_path, table)
    table.put("", KEY, CommitText(1 << 63, "blue"))
    table.put("", ("h", "T", 0), CommitText(5, "red"))
    journal.close()

    assert texts_in(tmp_path).known() == [("h", "T", 0)]


def test_beyond_the_bound_the_oldest_text_is_forgotten(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit=2)
    for queue in range(3):
        kept.commit(1, "t", queue)

    assert [kept.told(queue) for queue in range(3)] == [(1, ""), (1, "t"), (1, "t")]
    kept.commit(2, queue=0)  # Nothing is known of it any more.
    assert kept.texts.known() == [("g", "T", 1), ("g", "T", 2)]


def test_texts_go_with_their_group_and_their_topic(tmp_path: Path) -> None:
    for by_group in (True, False):
        kept = Kept(tmp_path)
        kept.commit(5, "blue")
        if by_group:
            kept.offsets.forget_group("g")
        else:
            kept.offsets.forget_topic("T")
        assert kept.told() == (None, "")
        assert not kept.texts


async def test_what_an_official_client_acknowledges_leaves_a_text_behind(tmp_path: Path) -> None:
    broker = Popping(tmp_path)
    broker.send(b"1", b"2")
    broker.offsets.commit(TOPIC, GROUP, 0, 0, "blue")
    first, _ = broker.pop()
    assert broker.offsets.metadata(TOPIC, GROUP, 0) == "blue"

    broker.ack(first)

    assert broker.committed() == 1
    assert broker.offsets.metadata(TOPIC, GROUP, 0) == ""
    await broker.stop()


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_saves_and_kills_tells_a_text_of_another_offset(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    kept = Kept(tmp_path)
    now: tuple[int | None, str] = (None, "")
    ever: set[tuple[int | None, str]] = set()
    for step in range(300):
        match random.randrange(8):
            case 0:
                kept.offsets.save()
            case 1:
                kept.texts.write()
            case 2:
                kept = Kept(tmp_path)
                offset, text = kept.told()
                assert not text or (offset, text) in ever
                now = (offset, text)
            case _:
                offset = random.randrange(3)
                given = random.choice([None, None, "", f"text {step}"])
                kept.commit(offset, given)
                same = now[1] if now[0] == offset else ""
                now = (offset, same if given is None else given)
                ever.add(now)
        assert kept.told() == now


def test_what_is_too_long_is_refused() -> None:
    assert check_metadata("ü" * (COMMIT_METADATA_MAX // 2))
    for wrong in ("ü" * (COMMIT_METADATA_MAX // 2) + "a", "\udc80", 5):
        with pytest.raises(InvalidArgument, match="metadata of a commit"):
            check_metadata(wrong)  # type: ignore[arg-type]
