"""Promoting what followed a Java master: only once it is gone and nothing is missing; then a broker serves it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import CorruptState, StoreLocked, StoreMismatch
from pocketmq.store.format.state_tables import (
    parse_consumer_offsets,
    parse_delay_offsets,
    parse_topics,
)
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.follow.note import check_promoted, note_path, read_note, write_note
from pocketmq.tools.follow.promote import promote

from ...integration.command import Shell
from ...runs import Hand, open_store, small_config
from ...store.following import assert_equal, send
from .java_master import JavaMasterDouble
from .test_follower import follower_of, has_all, master_of, running, until


async def followed(path: Path, *, stopped: bool = True) -> MessageStore:
    """Have PATH/ours follow PATH/java, which is gone afterwards, and was seen to stop in order if STOPPED."""
    store, _, _ = master_of(path)
    master = await JavaMasterDouble(store, path).start()
    async with running(follower := follower_of(path, master)) as task:
        await until(has_all(follower, store), task)
    await master.close()
    if stopped:
        change(path, stopped_at=store.max_log_offset)
    return store


def change(path: Path, **values: Any) -> None:
    """Change what the note says."""
    disk, ours = OsDisk(), str(path / "ours")
    note = read_note(disk, ours)
    assert note is not None
    write_note(disk, ours, replace(note, **values))


async def promoted(path: Path, **told: Any) -> list[str]:
    done = await promote(OsDisk(), str(path / "ours"), SystemClock().unix_ms(), **told)
    return done.words


async def test_a_store_whose_master_stopped_in_order_is_promoted(tmp_path: Path) -> None:
    store = await followed(tmp_path)
    words = await promoted(tmp_path)

    assert "B" in " ".join(words)  # The table of the double has no topic B.
    check_promoted(OsDisk(), str(tmp_path / "ours"))
    ours = open_store(tmp_path / "ours", now_ms=Hand())
    assert ours.recovery.clean
    assert ours.max_log_offset == store.max_log_offset
    send(ours, random.Random(3), Hand(), 3)  # It takes records again.
    ours.close()
    topics = parse_topics((tmp_path / "ours/config/topics.json").read_text()).topics
    assert set(topics) == {"A", "B"}
    with pytest.raises(StoreMismatch, match="nothing to promote"):
        await promoted(tmp_path)
    store.close()


async def test_a_master_that_answers_is_stopped_first(tmp_path: Path) -> None:
    store = await followed(tmp_path)
    master = await JavaMasterDouble(store, tmp_path).start()
    for told in ({"rpc": master.rpc}, {"rpc": master.rpc, "accept_loss": True}):
        with pytest.raises(StoreMismatch, match=r"still answers.*Stop it"):
            await promoted(tmp_path, **told)
    master.is_mute = True  # It refuses what is asked, but it is there.
    with pytest.raises(StoreMismatch, match=r"is still there \(.*Stop it"):
        await promoted(tmp_path, rpc=master.rpc)
    await master.close()
    store.close()


async def test_a_store_that_is_still_followed_into_is_refused(tmp_path: Path) -> None:
    store = await followed(tmp_path)
    ours = MessageStore.open(
        small_config(tmp_path / "ours"), disk=OsDisk(), now_ms=Hand(), replica=True
    )
    with pytest.raises(StoreLocked, match="`pocketmq follow` still writes to"):
        await promoted(tmp_path)
    ours.close()
    store.close()


def shorter(store: MessageStore) -> None:
    newest = store.newest_record
    assert newest is not None
    store.truncate_to(newest[0])
    open_store(Path(store.config.path), now_ms=Hand(), replica=True).close()


def other(store: MessageStore) -> None:
    """The newest record has another body of the same length."""
    newest = store.newest_record
    assert newest is not None
    at, record = newest
    file = store.log.files.files[-1]
    file.mapping.write(at - file.start + 100, bytes(one ^ 1 for one in record[100:101]))


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (shorter, "a different record at .*the newest here"),
        (other, "a different record at .*the newest here"),
    ],
)
async def test_the_stopped_store_of_java_is_compared(
    happens: Callable[[MessageStore], None], message: str, tmp_path: Path
) -> None:
    store = await followed(tmp_path)
    happens(store)
    if not store.health.closed:
        store.close()
    with pytest.raises(StoreMismatch, match=message):
        await promoted(tmp_path, java_store=str(tmp_path / "java"))
    with pytest.raises(StoreMismatch, match="pocketmq promote"):
        check_promoted(OsDisk(), str(tmp_path / "ours"))


async def test_the_tables_of_the_stopped_store_are_newer(tmp_path: Path) -> None:
    store = await followed(tmp_path, stopped=False)
    store.close()
    with pytest.raises(StoreMismatch, match="the end of the master's log is unknown"):
        await promoted(tmp_path)
    config = tmp_path / "java" / "config"
    config.mkdir(exist_ok=True)
    offsets = (tmp_path / "ours/config/consumerOffset.json").read_text()
    (config / "consumerOffset.json").write_text(offsets.replace("1:7", "1:9"))
    words = await promoted(tmp_path, java_store=str(tmp_path / "java"))

    assert any("offsets are those of" in word for word in words)
    text = (tmp_path / "ours/config/consumerOffset.json").read_text()
    assert parse_consumer_offsets(text).offsets["A@g"] == {0: 1, 1: 9}


def with_version(text: str, counter: int) -> str:
    """Return the table TEXT with another version."""
    return re.sub(r'"dataVersion":\{[^}]*\}', f'"dataVersion":{{"counter":{counter}}}', text)


@pytest.mark.parametrize("is_newer", [False, True], ids=["older", "newer"])
async def test_of_a_killed_broker_the_newer_of_each_table_is_taken(
    is_newer: bool, tmp_path: Path
) -> None:
    store = await followed(tmp_path, stopped=False)
    store._close_files()
    (tmp_path / "java" / "abort").touch()
    own, config = tmp_path / "ours/config", tmp_path / "java/config"
    config.mkdir(exist_ok=True)
    disk = OsDisk()
    offsets = (own / "consumerOffset.json").read_text()
    moved = offsets.replace("0:1", "0:0").replace("1:7", "1:9")
    (config / "consumerOffset.json").write_text(moved)
    levels = (own / "delayOffset.json").read_text()
    (config / "delayOffset.json").write_text(levels.replace("3:2", "3:3"))
    topics = (own / "topics.json").read_text()
    counter = parse_topics(topics).version.counter
    made = topics.replace('"A"', '"Made"')
    (config / "topics.json").write_text(with_version(made, counter + (1 if is_newer else -1)))
    (config / "subscriptionGroup.json").write_text('{"broken"')
    before = {one: one.read_bytes() for one in config.iterdir()}

    words = " ".join(await promoted(tmp_path, java_store=str(tmp_path / "java")))

    assert "2 offsets taken from the stopped store" in words
    assert "not taken from the stopped store: " in words
    taken = parse_consumer_offsets((own / "consumerOffset.json").read_text())
    assert taken.offsets["A@g"] == {0: 1, 1: 9}
    assert parse_delay_offsets((own / "delayOffset.json").read_text()).offsets[3] == 3
    assert ("Made" in parse_topics((own / "topics.json").read_text()).topics) == is_newer
    assert {one: one.read_bytes() for one in config.iterdir()} == before
    assert disk.exists(str(own / "subscriptionGroup.json"))


async def test_an_end_that_is_told_decides(tmp_path: Path) -> None:
    store = await followed(tmp_path, stopped=False)
    end = store.max_log_offset
    store.close()
    with pytest.raises(StoreMismatch, match="Start the Java broker again"):
        await promoted(tmp_path, end=end + 1)
    with pytest.raises(StoreMismatch, match="It is another log"):
        await promoted(tmp_path, end=end - 1)
    await promoted(tmp_path, end=end)


async def test_loss_is_accepted_in_words_and_nobody_skips_what_comes(tmp_path: Path) -> None:
    store = await followed(tmp_path, stopped=False)
    end = store.max_log_offset
    store.close()
    change(tmp_path, master_end=end + 777)
    config = tmp_path / "ours" / "config"
    ours = open_store(tmp_path / "ours", now_ms=Hand(), replica=True)
    last = ours.queue_bounds("A", 1)[1]
    level = ours.queue_bounds("SCHEDULE_TOPIC_XXXX", 2)[1]
    ours.close()
    text = (config / "consumerOffset.json").read_text()
    (config / "consumerOffset.json").write_text(text.replace("1:7", f"1:{last + 5}"))
    text = (config / "delayOffset.json").read_text()
    (config / "delayOffset.json").write_text(text.replace("3:2", f"3:{level + 2}"))

    words = await promoted(tmp_path, accept_loss=True)

    assert f"{end + 777:,}" in words[0]
    assert "1 offset of groups" in " ".join(words)
    assert "1 delay level " in " ".join(words)
    offsets = parse_consumer_offsets((config / "consumerOffset.json").read_text()).offsets
    assert offsets["A@g"][1] == last
    assert f"3:{level}" in (config / "delayOffset.json").read_text()


def test_a_note_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = Path(note_path(str(tmp_path)))
    path.parent.mkdir()
    for text in ("{}", '{"format":2}', "[]", '{"format":1}', "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(CorruptState, match="move the whole store away"):
            check_promoted(OsDisk(), str(tmp_path))


def test_the_commands_say_what_is_wrong(tmp_path: Path) -> None:
    call = Shell("")
    words = ["follow", "--apache", "localhost", "--rpc", "h:1", str(tmp_path / "s")]
    assert "is not an address: write HOST:PORT" in call(*words).err
    store = open_store(tmp_path / "s", now_ms=Hand())
    send(store, random.Random(1), Hand(), 2)
    store.close()
    words[2] = "h:2"
    assert "a store that does not follow a Java broker" in call(*words).err
    assert "nothing to promote" in call("promote", str(tmp_path / "s")).err


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("more", [0, 1, 40])
async def test_the_rest_of_the_log_is_copied_from_the_store_of_java(
    more: int, killed: bool, tmp_path: Path
) -> None:
    store = await followed(tmp_path, stopped=False)
    send(store, random.Random(9), Hand(), more)
    end = store.max_log_offset
    if killed:
        spoil_end(store)
        (tmp_path / "java" / "abort").touch()
        store._close_files()
    else:
        store.close()

    words = await promoted(tmp_path, java_store=str(tmp_path / "java"))

    assert any("were copied" in word for word in words) == bool(more)
    ours = open_store(tmp_path / "ours", now_ms=Hand())
    assert ours.recovery.findings == []
    assert ours.max_log_offset == end
    ours.close()
    if not killed:
        assert_equal(tmp_path / "ours", tmp_path / "java", crashed=True)


def spoil_end(store: MessageStore) -> None:
    """Behind the log stands the beginning of a record that was being written when its broker was killed."""
    newest = store.newest_record
    assert newest is not None
    file = store.log.files.files[-1]
    end = store.max_log_offset
    record = bytearray(newest[1])
    record[28:36] = end.to_bytes(8, "big")
    half = len(record) // 2
    file.mapping.write(
        end - file.start, bytes(record[:half]).ljust(min(len(record), file.room), b"\0")
    )


async def test_a_java_broker_that_has_its_store_open_is_stopped_first(tmp_path: Path) -> None:
    store = await followed(tmp_path)
    with pytest.raises(StoreMismatch, match=r"still runs.*top it"):
        await promoted(tmp_path, java_store=str(tmp_path / "java"))
    with pytest.raises(StoreMismatch, match="no folder commitlog"):
        await promoted(tmp_path, java_store=str(tmp_path))
    store.close()
