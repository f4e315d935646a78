"""Queues of lite topics: numbers, files, recovery, and stores of RocketMQ's broker."""

import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import MessageTooLarge
from pocketmq.proto.lite_topics import lite_queue_name, split_lite_queue
from pocketmq.proto.properties import LITE_TOPIC, MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from pocketmq.proto.record import Record, decode_record
from pocketmq.proto.run import Run
from pocketmq.proto.topics import PROPERTIES_SIZE_MAX
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.store.format.queues import ENTRY, PRE_BLANK_SIZE
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..fakes import FaultyDisk
from ..recorded import unpacked
from ..runs import Hand, make_run, open_store, records_of

SMALL = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


def lite_run(lite_topic: str, bodies: list[bytes], *, topic: str = "Chat", queue: int = 0) -> Run:
    run = make_run(topic, queue, bodies, {LITE_TOPIC: lite_topic, "TAGS": "t"})
    run.is_lite = True
    return run


def send(store: MessageStore, lite_topic: str, *bodies: bytes, queue: int = 0) -> None:
    store.append(lite_run(lite_topic, list(bodies), queue=queue))


def bodies(store: MessageStore, lite_topic: str, topic: str = "Chat") -> list[bytes]:
    return [record.body for record in records_of(store, lite_queue_name(topic, lite_topic), 0)]


def numbers(records: list[Record]) -> list[str]:
    return [record.properties[MULTI_QUEUE_OFFSET] for record in records]


def bounds(store: MessageStore, lite_topic: str) -> tuple[int, int]:
    return store.queue_bounds(lite_queue_name("Chat", lite_topic), 0)


def kill(store: MessageStore, left: Path) -> None:
    """Leave in LEFT what a kill would leave, and close the store."""
    home = Path(store.config.path)
    shutil.copytree(home, left)
    store.close()


def entries_in(path: Path) -> list[tuple[int, int, int]]:
    data = path.read_bytes()
    found = [ENTRY.read(data, at) for at in range(0, len(data), ENTRY.size)]
    return [(log_offset, size, code) for log_offset, size, code in found if size]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("%LMQ%$Chat$bob", ("Chat", "bob")),
        ("%LMQ%$Chat$b$c", None),
        ("%LMQ%$Chat", None),
        ("%LMQ%$$bob", None),
        ("%LMQ%$Chat$", None),
        ("%LMQ%mqtt", None),
        ("Chat", None),
    ],
)
def test_the_name_of_a_lite_queue_has_two_separators(
    name: str, parts: tuple[str, str] | None
) -> None:
    assert split_lite_queue(name) == parts


def test_each_lite_topic_has_its_own_numbers_and_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    send(store, "bob", b"b0", b"b1")
    send(store, "eve", b"e0", queue=1)
    send(store, "bob", b"b2", queue=1)

    bob = records_of(store, "%LMQ%$Chat$bob", 0)

    assert [record.body for record in bob] == [b"b0", b"b1", b"b2"]
    assert numbers(bob) == ["0", "1", "2"]
    assert {record.properties[MULTI_DISPATCH] for record in bob} == {"%LMQ%$Chat$bob"}
    assert {record.topic for record in bob} == {"Chat"}
    assert bodies(store, "eve") == [b"e0"]
    assert [record.body for record in records_of(store, "Chat", 1)] == [b"e0", b"b2"]
    assert bounds(store, "nobody") == (0, 0)
    store.close()


def test_runs_of_one_append_continue_each_other(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    store.append_many([lite_run("bob", [b"0"]), lite_run("eve", [b"0"]), lite_run("bob", [b"1"])])
    store.append_together([lite_run("bob", [b"%d" % n]) for n in range(2, 5)])

    assert bodies(store, "bob") == [b"0", b"1", b"2", b"3", b"4"]
    store.close()


def test_large_runs_are_numbered_as_well(tmp_path: Path) -> None:
    store = open_store(tmp_path, log_file_size_bytes=1 << 20)

    send(store, "bob", *(b"%d" % n for n in range(300)))

    assert numbers(records_of(store, "%LMQ%$Chat$bob", 0)) == [str(n) for n in range(300)]
    store.close()


def test_a_run_without_the_mark_is_stored_unchanged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(make_run("Chat", 0, [b"x"], {LITE_TOPIC: "bob"}))

    (record,) = records_of(store, "Chat", 0)

    assert MULTI_DISPATCH not in record.properties
    assert bounds(store, "bob") == (0, 0)
    store.close()


@pytest.mark.parametrize("name", ["a/b", "a\0b", "x" * 245, "\u00fc" * 123])
def test_a_name_that_no_folder_can_have_makes_no_lite_queue(name: str, tmp_path: Path) -> None:
    store = open_store(tmp_path)

    send(store, name, b"x")
    store.flush()

    assert [record.body for record in records_of(store, "Chat", 0)] == [b"x"]
    assert bounds(store, name) == (0, 0)
    send(store, "x" * 244, b"longest")
    store.flush()
    assert bodies(store, "x" * 244) == [b"longest"]
    store.close()


def test_numbers_that_a_message_brings_along_are_replaced(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    brought = {LITE_TOPIC: "bob", MULTI_DISPATCH: "%LMQ%$Chat$eve", MULTI_QUEUE_OFFSET: "77"}
    run = make_run("Chat", 0, [b"x"], brought)
    run.is_lite = True

    store.append(run)

    (record,) = records_of(store, "%LMQ%$Chat$bob", 0)
    assert record.properties == {
        LITE_TOPIC: "bob",
        MULTI_DISPATCH: "%LMQ%$Chat$bob",
        MULTI_QUEUE_OFFSET: "0",
    }
    store.close()


def test_numbers_in_a_batch_without_the_mark_are_entered_as_recovery_enters_them(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "store", log_file_size_bytes=65_536)
    sent = [b"%d" % number for number in range(40)]
    numbered = [
        {MULTI_DISPATCH: lite_queue_name("Chat", "bob"), MULTI_QUEUE_OFFSET: f"{number}"}
        for number in range(40)
    ]
    store.append(make_run("Chat", 0, sent, numbered))
    found = bodies(store, "bob")
    kill(store, tmp_path / "left")

    again = open_store(tmp_path / "left", log_file_size_bytes=65_536)

    assert found == bodies(again, "bob") == sent
    again.close()


def test_copies_in_other_topics_are_not_entered(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    send(store, "bob", b"b0")
    copied = {LITE_TOPIC: "bob", MULTI_DISPATCH: "%LMQ%$Chat$bob", MULTI_QUEUE_OFFSET: "0"}
    for topic in ("%DLQ%G", "%RETRY%G", "rmq_sys_wheel_timer"):
        store.append(make_run(topic, 0, [b"copy"], copied))
    store.close()

    store = open_store(tmp_path)
    assert bodies(store, "bob") == [b"b0"]
    store.close()


def test_properties_that_become_too_large_are_refused_and_nothing_else(tmp_path: Path) -> None:
    store = open_store(tmp_path, log_file_size_bytes=1 << 20)
    room = PROPERTIES_SIZE_MAX - len(f"{LITE_TOPIC}\1bob\2x\1\2")
    run = make_run("Chat", 0, [b"x"], {LITE_TOPIC: "bob", "x": "y" * room})
    run.is_lite = True

    first, second, third = store.append_many(
        [lite_run("bob", [b"0"]), run, lite_run("bob", [b"1"])]
    )

    assert isinstance(second, MessageTooLarge)
    assert second.details["field"] == "properties"
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert numbers(records_of(store, "%LMQ%$Chat$bob", 0)) == ["0", "1"]
    store.close()


def test_files_have_the_bytes_of_plain_queues(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    send(store, "bob", *(b"%d" % n for n in range(25)))
    log_offsets = store.queues.lite.get("%LMQ%$Chat$bob").entries(0, 25)[0].tolist()  # type: ignore[union-attr]
    store.close()

    folder = tmp_path / "consumequeue" / "%LMQ%$Chat$bob" / "0"
    first, second = sorted(folder.iterdir())
    assert (first.stat().st_size, second.stat().st_size) == (400, 400)
    found = entries_in(first) + entries_in(second)
    assert [entry[0] for entry in found] == log_offsets
    assert {entry[2] for entry in found} == {ord("t")}


def test_a_flush_writes_what_is_new(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    path = tmp_path / "consumequeue" / "%LMQ%$Chat$bob" / "0" / f"{0:020d}"
    send(store, "bob", b"0")
    store.flush()
    assert len(entries_in(path)) == 1
    send(store, "bob", b"1")
    assert bodies(store, "bob") == [b"0", b"1"]
    store.flush()
    assert len(entries_in(path)) == 2
    queue = store.queues.lite.get("%LMQ%$Chat$bob")
    assert queue is not None
    assert (queue.written, len(queue.tail)) == (1, 1)  # The next flush notes the second.
    store.flush()
    assert bodies(store, "bob") == [b"0", b"1"]
    store.close()


def test_numbers_continue_after_a_clean_stop(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    send(store, "bob", *(b"%d" % n for n in range(25)))
    store.close()

    store = open_store(tmp_path)
    assert store.recovery.findings == []
    send(store, "bob", b"25")
    assert bodies(store, "bob") == [b"%d" % n for n in range(26)]
    assert numbers(records_of(store, "%LMQ%$Chat$bob", 0))[-1] == "25"
    store.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_what_a_kill_leaves_is_derived_from_the_log(flushed: bool, tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    send(store, "bob", b"0", b"1")
    store.close()
    store = open_store(tmp_path / "a")
    send(store, "bob", b"2")
    send(store, "eve", b"0")
    if flushed:
        store.flush()
    kill(store, tmp_path / "b")

    store = open_store(tmp_path / "b")
    assert not store.recovery.clean
    assert bodies(store, "bob") == [b"0", b"1", b"2"]
    assert bodies(store, "eve") == [b"0"]
    send(store, "bob", b"3")
    store.close()
    store = open_store(tmp_path / "b")
    assert numbers(records_of(store, "%LMQ%$Chat$bob", 0)) == ["0", "1", "2", "3"]
    store.close()


@pytest.mark.parametrize("lost", ["all", "one", "short", "foreign size"])
def test_lost_files_are_derived_from_the_log(lost: str, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    send(store, "bob", b"0", b"1")
    send(store, "eve", b"0")
    store.close()
    queues = tmp_path / "consumequeue"
    if lost == "all":
        shutil.rmtree(queues)
    elif lost == "one":
        shutil.rmtree(queues / "%LMQ%$Chat$bob")
    else:
        path = queues / "%LMQ%$Chat$bob" / "0" / f"{0:020d}"
        path.write_bytes(bytes(400) if lost == "short" else path.read_bytes()[:100])

    store = open_store(tmp_path)
    assert bodies(store, "bob") == [b"0", b"1"]
    assert bodies(store, "eve") == [b"0"]
    store.close()
    store = open_store(tmp_path)
    assert store.recovery.findings == []
    assert bodies(store, "bob") == [b"0", b"1"]
    store.close()


def test_a_full_disk_delays_the_files_and_loses_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path / "a", disk=disk)
    disk.run_full("%LMQ%")
    send(store, "bob", b"0", b"1")
    store.flush()
    assert store.queues.lacks_lite_entries
    assert not (tmp_path / "a" / "consumequeue" / "%LMQ%$Chat$bob" / "0").exists() or not list(
        (tmp_path / "a" / "consumequeue" / "%LMQ%$Chat$bob" / "0").iterdir()
    )
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    disk.heal()
    store.flush()
    assert not store.queues.lacks_lite_entries
    store.close()

    for name in ("a", "b"):
        store = open_store(tmp_path / name)
        assert bodies(store, "bob") == [b"0", b"1"]
        store.close()


def test_a_stop_on_a_full_disk_is_followed_by_a_derivation(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk=disk)
    send(store, "bob", b"0")
    store.flush()
    disk.run_full("%LMQ%")
    send(store, "bob", b"1")
    store.close()

    store = open_store(tmp_path)
    assert bodies(store, "bob") == [b"0", b"1"]
    store.close()


def test_retention_moves_the_first_number(tmp_path: Path) -> None:
    clock = Hand()
    store = open_store(tmp_path, now_ms=clock)
    for number in range(60):
        send(store, "bob", b"%d" % number * 50)
    store.flush()
    store.flush()
    files = tmp_path / "consumequeue" / "%LMQ%$Chat$bob" / "0"
    assert len(list(files.iterdir())) == 3
    deleted_to = store.log.files.files[-2].start
    store.delete_before(deleted_to)

    low, end = bounds(store, "bob")
    assert 40 <= low < end == 60
    assert len(bodies(store, "bob")) == 60 - low
    assert len(list(files.iterdir())) == 1
    store.close()
    store = open_store(tmp_path)
    assert bounds(store, "bob") == (low, 60)
    store.close()
    (tmp_path / "pocketmq" / "verified.json").unlink()
    shutil.rmtree(files)
    store = open_store(tmp_path)
    assert bounds(store, "bob") == (low, 60)
    send(store, "bob", b"60")
    store.close()
    path = min(files.iterdir())
    assert [size for _, size, _ in entries_in(path)][: low - 40] == [PRE_BLANK_SIZE] * (low - 40)
    store = open_store(tmp_path)
    assert bounds(store, "bob") == (low, 61)
    store.close()


def test_a_deleted_parent_takes_its_lite_queues_along(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    send(store, "bob", b"0")
    store.append(lite_run("bob", [b"other"], topic="Talk"))
    store.flush()

    store.delete_topic("Chat")

    assert bounds(store, "bob") == (0, 0)
    assert bodies(store, "bob", "Talk") == [b"other"]
    assert not (tmp_path / "consumequeue" / "%LMQ%$Chat$bob").exists()
    send(store, "bob", b"new")
    assert bodies(store, "bob") == [b"new"]
    store.close()


def test_a_follower_derives_the_queues_of_its_master(tmp_path: Path) -> None:
    master = open_store(tmp_path / "master")
    follower = open_store(tmp_path / "follower", replica=True)
    follower.follow()
    for number in range(8):
        send(master, "bob", b"%d" % number)
        send(master, "eve", *(b"%d" % each for each in range(number)), b"x")
        at = follower.raw_end
        file = master.log.files.file_at(at)
        assert file is not None
        end = min(master.max_log_offset, file.end)
        follower.append_raw(bytes(file.view[at - file.start : end - file.start]), at)

    assert bodies(follower, "bob")[:7] == [b"%d" % number for number in range(7)]
    assert bodies(follower, "eve") == bodies(master, "eve")[: len(bodies(follower, "eve"))]
    follower.close()
    master.close()


def test_an_unconfirmed_message_is_not_shown(tmp_path: Path) -> None:
    store = open_store(tmp_path, replica=True)
    send(store, "bob", b"0")
    store.confirm(store.max_log_offset)
    send(store, "bob", b"1")

    assert bodies(store, "bob") == [b"0"]
    store.confirm(store.max_log_offset)
    assert bodies(store, "bob") == [b"0", b"1"]
    store.close()


def test_messages_are_chosen_by_their_tags(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(6):
        run = make_run("Chat", 0, [b"%d" % number], {LITE_TOPIC: "bob", "TAGS": "ab"[number % 2]})
        run.is_lite = True
        store.append(run)

    read = store.read_queue("%LMQ%$Chat$bob", 0, 0, 2, 1 << 20, lambda codes: codes == ord("b"))

    assert read.queue_offsets.tolist() == [1, 3]
    assert (read.next_offset, read.turned_down, read.lost) == (5, 3, 0)
    store.close()


def recorded(name: str, folder: Path) -> Path:
    target = folder / name
    shutil.copytree(unpacked(name) / name, target)
    return target


def open_recorded(path: Path, now_ms: int = 1_796_000_000_000) -> MessageStore:
    config = ApacheSettings.of(SMALL).store_config(str(path))
    return MessageStore.open(config, disk=OsDisk(), now_ms=Hand(now_ms))


def test_a_store_of_apaches_broker_continues(tmp_path: Path) -> None:
    path = recorded("lite-topics", tmp_path)
    files = sorted(path.glob("consumequeue/%LMQ%*/0/*"))
    before = {file: file.read_bytes() for file in files}
    store = open_recorded(path)

    assert [bounds_of(store, name) for name in ("alice", "bob", "carol")] == [
        (0, 12),
        (0, 12),
        (0, 120),
    ]
    assert numbers(records_of(store, "%LMQ%$LiteChat$carol", 0)) == [str(n) for n in range(120)]
    assert {file: file.read_bytes() for file in files} == before
    store.append(lite_run("carol", [b"ours"], topic="LiteChat"))
    store.close()

    store = open_recorded(path)
    (last,) = records_of(store, "%LMQ%$LiteChat$carol", 0)[120:]
    assert (last.body, last.properties[MULTI_QUEUE_OFFSET]) == (b"ours", "120")
    store.close()


def bounds_of(store: MessageStore, lite_topic: str) -> tuple[int, int]:
    return store.queue_bounds(lite_queue_name("LiteChat", lite_topic), 0)


def test_expired_lite_topics_do_not_come_back(tmp_path: Path) -> None:
    path = recorded("lite-topics", tmp_path)
    shutil.rmtree(path / "consumequeue")
    store = open_recorded(path)

    for queue in store.queues.lite:
        if queue.topic.startswith("%LMQ%$LiteTtl$"):
            low, end = store.queue_bounds(queue.topic, 0)
            assert low == end > 0
    assert bounds_of(store, "carol") == (0, 120)
    store.close()


def test_a_queue_that_apaches_broker_poisoned_is_rebuilt_and_reported(tmp_path: Path) -> None:
    store = open_recorded(recorded("lite-poisoned", tmp_path))

    rebuilt = [one.path.rsplit("/", 2)[1] for one in store.recovery.findings]
    assert "%LMQ%$LiteChat$eve" in rebuilt
    for queue in store.queues.lite:
        read = store.read_queue(queue.topic, 0, 0, 100, 1 << 20)
        at = 0
        for number, size in zip(read.queue_offsets.tolist(), read.sizes.tolist(), strict=True):
            record = decode_record(read.records, at)
            assert record.topic == "LiteChat"
            assert record.properties[MULTI_QUEUE_OFFSET] == str(number)
            at += size
        assert read.lost == 0
    store.close()


@pytest.mark.parametrize("name", ["n" * 300, "n" * 245, "a\0b", "a\nb", "..", "a/b", "\ufffd", "é"])
def test_a_forged_name_never_becomes_a_folder(tmp_path: Path, name: str) -> None:
    queue = lite_queue_name("Chat", name)
    store = open_store(tmp_path / "a")
    forged = {MULTI_DISPATCH: queue, MULTI_QUEUE_OFFSET: "0"}
    store.append(make_run("Chat", 0, [b"forged"], forged))
    store.flush()
    store.append(make_run("Chat", 0, [b"next"]))
    kill(store, tmp_path / "left")
    store = open_store(tmp_path / "left")
    store.flush()

    assert [record.body for record in records_of(store, "Chat", 0)] == [b"forged", b"next"]
    assert not list((tmp_path / "left").glob("consumequeue/*LMQ*"))
    store.close()
