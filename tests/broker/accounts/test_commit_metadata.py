"""Texts that were committed with offsets: told with these alone, kept in a file of our own, whatever is saved when."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from pocketmq.broker.accounts import FILE, Account, AccountFile, Accounts
from pocketmq.broker.offsets import Offsets
from pocketmq.proto.commit_metadata import COMMIT_METADATA_MAX, check_metadata
from pocketmq.proto.errors import InvalidArgument
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...runs import Hand
from ..pop.popping import GROUP, TOPIC, Popping

KEY = ("g", "T", 0)


class Kept:
    """Offsets and accounts as a broker on the store at PATH has them."""

    def __init__(self, path: Path, limit: int = 100) -> None:
        self.accounts = Accounts(lambda: 7, AccountFile(OsDisk(), str(path)), limit)
        file = StateFile(OsDisk(), str(path), "consumerOffset.json")
        self.offsets = Offsets(file, Hand(), self.accounts)

    def commit(self, offset: int, text: str | None = None, queue: int = 0) -> None:
        self.offsets.commit("T", "g", queue, offset, text)

    def told(self, queue: int = 0) -> tuple[int | None, str]:
        return self.offsets.committed("T", "g", queue), self.offsets.metadata("T", "g", queue)

    def save(self) -> None:
        self.offsets.save()
        self.accounts.save()


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
    assert kept.accounts.get(KEY) is None, "nothing is left to keep"


def test_texts_outlive_a_restart_and_the_offsets_file_does_not_know(tmp_path: Path) -> None:
    with_text, without = Kept(tmp_path / "a"), Kept(tmp_path / "b")
    with_text.commit(5, "größe\n\u2028")
    without.commit(5)
    with_text.save()
    without.save()

    assert Kept(tmp_path / "a").told() == (5, "größe\n\u2028")
    file = "config/consumerOffset.json"
    assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert not (tmp_path / "b" / FILE).exists()


def test_a_text_of_another_offset_goes_at_the_start_for_good(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.commit(5, "blue")
    kept.save()
    kept.commit(6)
    kept.offsets.save()  # A kill here leaves the accounts as they were.

    again = Kept(tmp_path)
    assert again.told() == (6, "")
    again.commit(5)
    assert again.told() == (5, "")
    again.save()
    assert (tmp_path / FILE).read_text() == ""


def test_what_an_account_has_besides_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.accounts.move(KEY, "me", None, 5)
    kept.commit(5, "blue")
    kept.save()

    again = Kept(tmp_path)
    again.commit(6)

    account = again.accounts.get(KEY)
    assert account is not None
    assert (len(account.moves), account.metadata) == (1, None)


def test_an_account_without_a_text_is_written_as_before() -> None:
    assert "metadata" not in Account().to_json()
    account = Account(metadata=(5, "blue"))
    assert Account.from_json(json.loads(json.dumps(account.to_json()))) == account


def test_beyond_the_bound_the_oldest_text_is_forgotten(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit=2)
    for queue in range(3):
        kept.commit(1, "t", queue)

    assert [kept.told(queue) for queue in range(3)] == [(1, ""), (1, "t"), (1, "t")]
    kept.commit(2, queue=0)  # Nothing is known of it any more.
    assert kept.accounts.annotated == {("g", "T", 1), ("g", "T", 2)}


def test_texts_go_with_their_group_and_their_topic(tmp_path: Path) -> None:
    for by_group in (True, False):
        kept = Kept(tmp_path)
        kept.commit(5, "blue")
        if by_group:
            kept.accounts.forget_group("g")
        else:
            kept.accounts.forget_topic("T")
        assert kept.told() == (5, "")
        assert not kept.accounts.annotated


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
                kept.accounts.save()
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
