"""The mark of a replica set: it finds out folders that went back, and followers keep what they know as acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pocketmq.broker.replication import effects
from pocketmq.broker.replication.log_epochs import Epochs, EpochStart
from pocketmq.broker.replication.registry import EndMark, VersionedCell, VersionedEndMark
from pocketmq.broker.replication.registry_format import parse_mark, render_mark
from pocketmq.broker.replication.replica import ReplicaCore
from pocketmq.broker.replication.replica_state import ReplicaState
from pocketmq.proto.errors import ConfigError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .log_frames import bytes_frame
from .test_replica import (
    BEGIN,
    STATE,
    ack,
    attach,
    begun,
    cell,
    come,
    follow,
    live,
    master,
    none,
    only,
)

ONE_EPOCH = Epochs([EpochStart(1, 0)])
FOUND = VersionedCell(cell(2, 2, 1, 2), 5)


def started(end: int, mark: EndMark) -> tuple[ReplicaCore, list[effects.Effect]]:
    """Return a replica whose log ends at END, and what it does when it has read MARK; its master is gone."""
    replica = begun(ReplicaState(end=end, synced=end, epochs=ONE_EPOCH, epoch_seen=2))
    return replica, replica.registry_seen(FOUND, live(1), 0, VersionedEndMark(mark, 0))


def announced(out: list[effects.Effect]) -> list[bool]:
    """Return whether the replica announced itself as unclean, each time."""
    return [one.node.unclean for one in out if isinstance(one, effects.Announce)]


@pytest.mark.parametrize(
    ("end", "mark"),
    [(7, EndMark(8, 1)), (8, EndMark(8, 2)), (0, EndMark(1, 1))],
    ids=["shorter", "of another epoch", "empty"],
)
def test_a_log_that_does_not_reach_the_mark_is_unclean_and_is_not_elected(
    end: int, mark: EndMark
) -> None:
    replica, out = started(end, mark)

    assert replica.unclean
    assert f"ends at {end}" in replica.unclean_reason
    assert f"reach {mark.end} in epoch {mark.epoch}" in replica.unclean_reason
    assert out[0] == effects.PersistState(2, True, replica.unclean_reason)
    assert set(announced(out)) == {True}
    assert none(effects.CompareAndSet, out)
    assert none(effects.CompareAndSet, replica.tick(60_000))


@pytest.mark.parametrize("mark", [EndMark(), EndMark(8, 1), EndMark(5, 1)])
def test_a_log_that_reaches_the_mark_is_elected_alone(mark: EndMark) -> None:
    replica, out = started(8, mark)

    assert not replica.unclean
    assert only(effects.CompareAndSet, out).cell.master == 1


def test_a_replica_announces_itself_only_after_it_has_read_the_mark() -> None:
    replica = ReplicaCore(begun()._settings, ReplicaState())

    assert replica.session_began(0) == [effects.ReadRegistry()]
    assert announced(replica.registry_seen(FOUND, {}, 0))
    replica.session_ended()
    assert only(effects.Announce, replica.session_began(9))


def test_a_replica_whose_folder_went_back_is_clean_once_it_has_what_its_master_confirmed() -> None:
    replica, _ = started(8, EndMark(16, 3))
    follow(replica, replace_begin(epochs=[(1, 0), (3, 8)], end=20, truncate_to=8))

    come(replica, bytes_frame(3, 8, b"a" * 8, 20))
    replica.log_synced(16, 0)
    assert replica.unclean, "it reaches the mark, and lacks what was confirmed since"

    come(replica, bytes_frame(3, 16, b"abcd", 20))
    replica.log_synced(20, 0)
    assert not replica.unclean
    assert not replica.unclean_reason


def replace_begin(epochs: list[tuple[int, int]], end: int, truncate_to: int) -> pb.FollowBegin:
    starts = [pb.EpochStart(epoch=epoch, start=start) for epoch, start in epochs]
    return pb.FollowBegin(epoch=3, epochs=starts, end=end, truncate_to=truncate_to)


def test_a_master_writes_how_far_all_have_the_log_on_disk_once_a_second() -> None:
    replica = master()  # Alone in its set.
    replica.appended(4, 0)
    assert none(effects.WriteMark, replica.tick(10)), "it is written, and not on disk"

    replica.log_synced(4, 20)
    assert only(effects.WriteMark, replica.tick(30)) == effects.WriteMark(EndMark(4, 2), None)
    replica.appended(8, 40)
    replica.log_synced(8, 40)
    assert none(effects.WriteMark, replica.tick(2_000)), "one at a time"

    replica.mark_written(VersionedEndMark(EndMark(4, 2), 0), 2_000)
    out = replica.tick(2_000)
    assert not out or only(effects.WriteMark, out) == effects.WriteMark(EndMark(8, 2), 0)
    replica.mark_written(VersionedEndMark(EndMark(8, 2), 1), 2_010)
    replica.appended(12, 2_020)
    replica.log_synced(12, 2_020)
    assert none(effects.WriteMark, replica.tick(2_900)), "once a second"
    assert only(effects.WriteMark, replica.tick(3_100)) == effects.WriteMark(EndMark(12, 2), 1)


def test_the_mark_ends_where_a_record_ends() -> None:
    replica = master()
    replica.appended(10, 0)
    replica.log_synced(7, 0)
    assert none(effects.WriteMark, replica.tick(10))

    replica.appended(30, 20)
    replica.log_synced(25, 20)
    assert only(effects.WriteMark, replica.tick(30)).mark == EndMark(10, 2)


def test_a_write_that_was_not_answered_is_made_again_on_what_is_read() -> None:
    replica = master(end=8)  # It has begun to write the mark.
    assert only(effects.ReadRegistry, replica.mark_written(None, 10))

    replica.registry_seen(replica.seen, live(1), 20, VersionedEndMark(EndMark(4, 1), 7))

    again = only(effects.WriteMark, replica.tick(2_000))
    assert again == effects.WriteMark(EndMark(8, 1), 7)


def test_the_mark_never_falls() -> None:
    replica = master(end=8)
    replica.registry_seen(replica.seen, live(1), 10, VersionedEndMark(EndMark(12, 1), 3))
    replica.mark_written(None, 10)

    assert none(effects.WriteMark, replica.tick(5_000))


def test_a_master_that_stops_or_hands_over_writes_the_mark_first() -> None:
    stopping = master()
    stopping.appended(4, 0)
    stopping.log_synced(4, 0)
    assert only(effects.WriteMark, stopping.last_mark(0)).mark == EndMark(4, 2)

    replica = master(2)
    replica.registry_seen(VersionedCell(cell(2, 1, 1, 2), 6), live(1, 2), 0)
    attach(replica, 2, 7)
    replica.appended(4, 5)
    replica.log_synced(4, 5)
    written = only(effects.WriteMark, replica.request(7, ack(4), 5))
    replica.mark_written(VersionedEndMark(written.mark, 0), 6)
    replica.appended(8, 7)
    replica.log_synced(8, 7)
    assert none(effects.WriteMark, replica.request(7, ack(8), 8)), "once a second"
    out = replica.hand_over(2, 10, leaving=True)
    kinds = [type(one) for one in out]
    assert kinds.index(effects.WriteMark) < kinds.index(effects.CompareAndSet)


def test_with_mark_each_nothing_is_acknowledged_before_the_mark_is_written() -> None:
    replica = master(mark="each")
    replica.appended(4, 0)

    out = replica.log_synced(4, 0)
    assert none(effects.AnswerAcks, out)
    assert only(effects.WriteMark, out).mark == EndMark(4, 2)
    replica.appended(8, 1)
    assert none(effects.AnswerAcks, replica.log_synced(8, 1))

    out = replica.mark_written(VersionedEndMark(EndMark(4, 2), 0), 2)
    assert only(effects.AnswerAcks, out).up_to == 4
    assert only(effects.WriteMark, out).mark == EndMark(8, 2), "with all that came meanwhile"
    out = replica.mark_written(VersionedEndMark(EndMark(8, 2), 1), 3)
    assert only(effects.AnswerAcks, out).up_to == 8


def test_a_follower_refuses_to_cut_what_it_knows_as_acknowledged() -> None:
    replica = begun(replace(STATE, confirm=12))

    out = follow(replica, BEGIN)

    assert "8 bytes in common" in only(effects.CloseLink, out).reason
    assert "reach 12 here" in replica.refuses
    assert none(effects.CutLog, out)
    assert none(effects.BeginAnew, out)
    assert replica.end == 12
    assert not replica.unclean
    assert only(effects.Follow, replica.tick(1_000)), "it tries again"


def test_a_follower_knows_from_the_mark_what_is_acknowledged() -> None:
    replica = begun(replace(STATE, confirm=4))
    there = VersionedCell(cell(3, 2, 1, 2), 5)
    replica.registry_seen(there, live(1, 2), 0, VersionedEndMark(EndMark(12, 2), 0))
    replica.connected(2, 7, 0)

    out = replica.reply(7, pb.FollowReply(begin=BEGIN), 0)

    assert "reach 12 here" in only(effects.CloseLink, out).reason


def test_an_accepted_loss_lifts_the_refusals_of_older_epochs() -> None:
    replica = begun(replace(STATE, confirm=12, confirm_epoch=2))
    there = VersionedCell(cell(3, 2, 1, 2), 5)
    replica.registry_seen(there, live(1, 2), 0, VersionedEndMark(EndMark(8, 1, accepted=3), 0))
    replica.connected(2, 7, 0)

    out = replica.reply(7, pb.FollowReply(begin=BEGIN), 0)

    assert only(effects.BeginAnew, out).begin == 0


@pytest.mark.parametrize(("end", "kept"), [(8, EndMark(8, 1, 3)), (7, EndMark(0, 0, 3))])
def test_who_accepts_a_loss_lowers_a_mark_that_the_replica_does_not_reach(
    end: int, kept: EndMark
) -> None:
    replica = begun(ReplicaState(end=end, synced=end, epochs=ONE_EPOCH, epoch_seen=2, unclean=True))
    replica.registry_seen(FOUND, live(1), 0, VersionedEndMark(EndMark(8, 1), 0))

    out = replica.accept_loss(0)

    assert only(effects.WriteMark, out) == effects.WriteMark(kept, 0)
    assert none(effects.CompareAndSet, out), "the mark first"
    stood = replica.mark_written(VersionedEndMark(kept, 1), 10)
    assert only(effects.CompareAndSet, stood).cell == cell(3, 1, 1)


def test_a_master_of_an_epoch_that_was_given_up_writes_no_mark() -> None:
    replica = master(end=8)
    replica.mark_written(None, 0)
    replica.registry_seen(replica.seen, live(1), 0, VersionedEndMark(EndMark(0, 0, accepted=9), 4))

    assert none(effects.WriteMark, replica.tick(5_000))


def test_a_mark_comes_back_and_one_that_cannot_be_is_refused() -> None:
    mark = EndMark(2**63 - 1, 2**31 - 1, 7)
    assert parse_mark(render_mark(mark), "mark") == mark
    for data in (b"{}", b"[]", b'{"format":2}', b'{"format":1,"end":-1,"epoch":1,"accepted":0}'):
        with pytest.raises(ConfigError, match=r"^mark: "):
            parse_mark(data, "mark")
    with pytest.raises(ConfigError):
        render_mark(EndMark(1, 2**31))
