"""The device of a replica: what it knows after a kill, a power cut or damage, and stores that are set aside."""

from __future__ import annotations

import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.replication.device import ReplicaDevice
from pocketmq.broker.replication.log_epochs import Epochs, EpochStart
from pocketmq.broker.replication.replica_state import ReplicaState
from pocketmq.proto.errors import ConfigError, DiskFailure
from pocketmq.store.format.replica_files import BrokerIdentity
from pocketmq.store.os_disk import OsDisk

from ...runs import Hand, bodies_of, make_run, open_store, records_of, small_config
from ...store.following import raw
from .replica_set import producers_of_broker

ME = BrokerIdentity("c", "orders", 1)


def device(
    path: Path, *, boot: str = "boot-1", clock: Hand | None = None, **store: Any
) -> ReplicaDevice:
    config = small_config(path / "store", **store)
    return ReplicaDevice(
        config,
        ME,
        disk=OsDisk(),
        unix_ms=clock or Hand(),
        boot=boot,
        producers_of=producers_of_broker,
    )


def opened(path: Path, *, was_led: bool = True, **other: Any) -> tuple[ReplicaDevice, ReplicaState]:
    found = device(path, **other)
    return found, found.open(was_led=was_led)


def used(path: Path, *, clock: Hand | None = None, **store: Any) -> ReplicaDevice:
    """Return the open device of a replica that has led the epochs 1 and 2, with a message in each."""
    found, _ = opened(path, was_led=False, clock=clock, **store)
    found.store.lead()
    for epoch in (1, 2):
        epochs = Epochs(EpochStart(one, (one - 1) * 95) for one in range(1, epoch + 1))
        found.keep_epochs(epochs)
        found.store.append(make_run("A", 0, [b"%d" % epoch * 3]))
        assert found.store.max_log_offset == epoch * 95, (
            "the sizes below are those of these records"
        )
    found.store.flush()
    found.keep_state(2, False)
    found.keep_progress(95, 2)
    return found


def killed(found: ReplicaDevice) -> None:
    """End the process: nothing is settled."""
    found.store.health.fail(DiskFailure("the process was killed"))
    found.close()


def test_what_was_kept_is_there_after_a_stop(tmp_path: Path) -> None:
    used(tmp_path).close()

    found, state = opened(tmp_path)

    assert state == ReplicaState(
        epoch_seen=2,
        unclean=False,
        epochs=Epochs([EpochStart(1, 0), EpochStart(2, 95)]),
        end=190,
        synced=190,
        confirm=95,
        confirm_epoch=2,
        store_id=found.store_id,
    )
    found.close()


def test_a_kill_leaves_a_replica_clean_that_does_not_know_what_is_on_the_device(
    tmp_path: Path,
) -> None:
    killed(used(tmp_path))

    found, state = opened(tmp_path)

    assert not state.unclean
    assert (state.end, state.synced) == (190, 0)
    found.close()


@pytest.mark.parametrize(
    ("flush", "boot", "unclean"),
    [("async", "boot-2", True), ("async", "", True), ("sync", "boot-2", False)],
)
def test_a_power_cut_leaves_a_replica_unclean_unless_it_syncs_before_it_acknowledges(
    tmp_path: Path, flush: str, boot: str, unclean: bool
) -> None:
    killed(used(tmp_path, flush=flush))

    found, state = opened(tmp_path, boot=boot, flush=flush)
    assert state.unclean is unclean
    found.close()

    again, state = opened(tmp_path, boot=boot, flush=flush)
    assert state.unclean is unclean, "it stays so until it has caught up"
    again.keep_state(2, False)
    again.close()
    assert not opened_and_closed(tmp_path, boot=boot, flush=flush).unclean


def opened_and_closed(path: Path, **other: Any) -> ReplicaState:
    found, state = opened(path, **other)
    found.close()
    return state


def test_a_log_that_ends_below_what_was_on_the_device_is_unclean(tmp_path: Path) -> None:
    found = used(tmp_path)
    killed(found)
    log = tmp_path / "store" / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)

    state = opened_and_closed(tmp_path)

    assert (state.end, state.unclean) == (95, True)


@pytest.mark.parametrize(("was_led", "unclean"), [(True, True), (False, False)])
def test_a_replica_without_its_state_is_unclean_if_the_set_was_led(
    tmp_path: Path, was_led: bool, unclean: bool
) -> None:
    store = open_store(tmp_path / "store")
    store.append(make_run("A", 0, [b"of a broker without replicas"]))
    store.health.fail(DiskFailure("the process was killed"))
    store.close()

    assert opened_and_closed(tmp_path, was_led=was_led).unclean is unclean


def test_an_empty_replica_of_a_set_that_was_led_is_unclean_and_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert opened_and_closed(tmp_path, was_led=True).unclean
    assert opened_and_closed(tmp_path, was_led=True).unclean, "it stays so until it has caught up"

    assert [one.getMessage() for one in caplog.records if one.name.endswith("device")] == []


def test_a_cut_takes_records_and_epochs_and_is_no_loss(tmp_path: Path) -> None:
    found = used(tmp_path)
    found.cut(95)
    assert found.store.health.following
    assert (found.store.max_log_offset, bodies_of(found.store, "A", 0)) == (95, [b"111"])
    killed(found)

    state = opened_and_closed(tmp_path)

    assert state.epochs == Epochs([EpochStart(1, 0), EpochStart(2, 95)])
    assert (state.end, state.unclean) == (95, False)


def test_what_is_cut_off_is_kept_as_a_store_of_its_own(tmp_path: Path) -> None:
    found = used(tmp_path, clock=Hand(1_000))
    found.cut(95)
    found.close()

    kept = tmp_path / "store" / "pocketmq" / "cut-off"
    (folder,) = kept.iterdir()
    assert folder.name == "1000-95"
    with closing(open_store(folder)) as store:
        (record,) = records_of(store, "A", 0)
    assert (record.body, record.queue_offset, record.log_offset) == (b"222", 1, 95)


def test_a_record_that_is_not_whole_is_forgotten(tmp_path: Path) -> None:
    master = used(tmp_path / "master").store
    found, _ = opened(tmp_path, was_led=False)
    data = raw(master, 0, 100)
    found.store.append_raw(data, 0, zlib.crc32(data))
    assert (found.store.raw_end, found.store.max_log_offset) == (100, 95)

    found.cut(None)

    assert found.store.raw_end == 95
    found.close()
    master.close()


def test_a_store_that_is_set_aside_keeps_all_and_the_next_one_who_it_is(tmp_path: Path) -> None:
    found = used(tmp_path, clock=Hand(77))
    before = (tmp_path / "store" / "commitlog" / f"{0:020}").read_bytes()

    found.open_empty_store()

    aside = tmp_path / "store.set-aside-77"
    assert (aside / "commitlog" / f"{0:020}").read_bytes() == before
    assert not list((tmp_path / "store" / "commitlog").glob("*"))
    assert found.store.health.following
    found.open_empty_store()  # Of an empty log nothing has to be kept.
    found.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", aside.name]
    state = opened_and_closed(tmp_path)
    assert (state.epoch_seen, state.unclean, state.end) == (2, True, 0)


def test_a_crash_between_the_renames_is_made_good_at_the_next_start(tmp_path: Path) -> None:
    found = used(tmp_path)
    found.open_empty_store()
    found.close()
    prepared = tmp_path / "store.begins-anew"
    (tmp_path / "store").rename(prepared)

    state = opened_and_closed(tmp_path)

    assert (state.epoch_seen, state.unclean, state.end) == (2, True, 0)
    assert not prepared.exists()


def test_a_store_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    used(tmp_path).close()
    other = ReplicaDevice(
        small_config(tmp_path / "store"),
        BrokerIdentity("c", "payments", 1),
        disk=OsDisk(),
        unix_ms=Hand(),
        boot="",
        producers_of=producers_of_broker,
    )
    with pytest.raises(
        ConfigError, match="is the store of set 'orders', but this broker is set 'payments'"
    ):
        other.open(was_led=True)
    with pytest.raises(ConfigError, match=r"store\.log_path is /elsewhere"):
        device(tmp_path, log_path="/elsewhere")


def test_progress_is_noted_at_any_time_and_never_undoes_what_is_kept(tmp_path: Path) -> None:
    found = used(tmp_path)
    found.keep_state(9, True)
    found.keep_progress(190, 2)
    killed(found)
    found.keep_progress(7, 2)  # After the end: nothing.

    state = opened_and_closed(tmp_path)

    assert (state.epoch_seen, state.unclean) == (9, True)
    assert (state.confirm, state.confirm_epoch) == (190, 2)


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**31, 2**63])
def test_an_epoch_that_cannot_be_is_replaced_by_that_of_the_log_and_said(
    tmp_path: Path, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    used(tmp_path).close()
    note = tmp_path / "store" / "pocketmq" / "replica.json"
    text = note.read_text().replace('"epochSeen":2', f'"epochSeen":{epoch}')
    for path in (note, note.with_name("replica.json.bak")):
        path.write_text(text)

    found, state = opened(tmp_path)

    assert (state.epoch_seen, state.unclean, state.end, state.confirm) == (2, False, 190, 95)
    (line,) = [one for one in caplog.messages if "epoch" in one]
    for word in (str(note), f"epoch={epoch}", "limit=2147483646", "used=2"):
        assert word in line
    assert '"epochSeen":2,' in note.read_text(), "the next start has nothing to say"
    found.close()


def test_an_epoch_that_cannot_be_does_not_hide_that_the_replica_is_unclean(tmp_path: Path) -> None:
    killed(used(tmp_path))
    note = tmp_path / "store" / "pocketmq" / "replica.json"
    note.write_text(note.read_text().replace('"epochSeen":2', f'"epochSeen":{2**31}'))

    assert opened_and_closed(tmp_path, boot="boot-2").unclean, "its power was cut"
