"""One replica, input by input: elections, epochs, acks, fences, truncation, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from pocketmq.broker.replication import effects
from pocketmq.broker.replication.frames import FAR_BYTES
from pocketmq.broker.replication.in_sync import ReplicaSettings
from pocketmq.broker.replication.log_epochs import Epochs, EpochStart
from pocketmq.broker.replication.registry import (
    EndMark,
    LiveNode,
    ReplicaSetState,
    VersionedCell,
    VersionedEndMark,
)
from pocketmq.broker.replication.replica import SILENT_MS, ReplicaCore
from pocketmq.broker.replication.replica_state import ReplicaRole, ReplicaState
from pocketmq.proto.errors import ConfigError, MasterFenced, NotEnoughReplicas
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .log_frames import bytes_frame

E = TypeVar("E")
SETTINGS = ReplicaSettings(
    cluster="c", set_name="orders", replica_id=1, address="host:1", file_size=1024
)
ADDRESSES = {one: f"host:{one}" for one in (1, 2, 3)}


def cell(epoch: int, master: int, *in_sync: int) -> ReplicaSetState:
    return ReplicaSetState(
        epoch=epoch, master=master, in_sync=frozenset(in_sync), replicas=ADDRESSES
    )


def live(*ids: int, **other: Any) -> dict[int, LiveNode]:
    return {one: LiveNode(address=f"host:{one}", epoch=0, end=0, **other) for one in ids}


def only(kind: type[E], out: Iterable[effects.Effect]) -> E:
    """Return the one effect of KIND."""
    found = [one for one in out if isinstance(one, kind)]
    assert len(found) == 1, out
    return found[0]


def none(kind: type[object], out: Iterable[effects.Effect]) -> bool:
    return not any(isinstance(one, kind) for one in out)


def begun(
    state: ReplicaState | None = None,
    has_state: Callable[[int], bool] = lambda replica: True,
    **settings: Any,
) -> ReplicaCore:
    """Return a replica with a session, which has seen nothing."""
    replica = ReplicaCore(replace(SETTINGS, **settings), state or ReplicaState(), has_state)
    assert only(effects.ReadRegistry, replica.session_began(0))
    return replica


def master(
    *in_sync: int, end: int = 0, state: ReplicaState | None = None, **settings: Any
) -> ReplicaCore:
    """Return a master of epoch 2, at version 6 of a cell with the set IN_SYNC; a log that ends at END is synced."""
    replica = begun(
        state or ReplicaState(end=end, synced=end, epochs=Epochs([EpochStart(1, 0)])), **settings
    )
    nodes = live(1, *in_sync)
    stand = replica.registry_seen(VersionedCell(cell(1, 1, 1, *in_sync), 5), nodes, 0)
    assert only(effects.CompareAndSet, stand) == effects.CompareAndSet(cell(2, 1, 1, *in_sync), 5)
    assert replica.role is ReplicaRole.CANDIDATE
    assert only(effects.CutLog, replica.set_done(6, 0)) == effects.CutLog(None)
    out = replica.log_cut(end, end, 0)
    assert [type(one) for one in out][:3] == [
        effects.KeepEpochs,
        effects.Announce,
        effects.BecomeMaster,
    ]
    replica.registry_answered(0)
    return replica


def hello(replica_id: int = 2, **changes: Any) -> pb.FollowRequest:
    values = {"cluster": "c", "set": "orders", "replica_id": replica_id, "file_size": 1024}
    return pb.FollowRequest(hello=pb.FollowHello(**{**values, **changes}))


def attach(
    replica: ReplicaCore, follower: int, link: int, end: int = 0, now_ms: int = 0
) -> list[effects.Effect]:
    """Have FOLLOWER, whose log is the master's up to END, follow over LINK."""
    epochs = [pb.EpochStart(epoch=1, start=0)] if end else []
    asked = hello(follower, epochs=epochs, end=end, synced=end, epoch_seen=1)
    begin = only(effects.SendFrame, replica.request(link, asked, now_ms))
    assert isinstance(begin.frame, pb.FollowReply)
    cut = pb.FollowCut(end=begin.frame.begin.truncate_to, synced=end)
    return replica.request(link, pb.FollowRequest(cut=cut), now_ms)


def ack(written: int, synced: int | None = None, epoch: int = 2) -> pb.FollowRequest:
    got = pb.FollowAck(epoch=epoch, written=written, synced=written if synced is None else synced)
    return pb.FollowRequest(ack=got)


# ---------------------------------------------------------------- 1: election


def test_a_candidate_keeps_the_epoch_and_follows_no_more_before_it_asks() -> None:
    replica = begun(ReplicaState(epoch_seen=3))
    replica.registry_seen(VersionedCell(cell(3, 2, 1, 2, 3), 5), live(1, 2, 3), 0)
    replica.connected(2, 7, 0)

    nodes = live(1, 3, epoch_seen=3)
    out = replica.registry_seen(VersionedCell(cell(3, 2, 1, 2, 3), 5), nodes, 500)

    assert [type(one) for one in out] == [
        effects.Announce,
        effects.CloseLink,
        effects.PersistState,
        effects.CompareAndSet,
    ]
    assert only(effects.PersistState, out).epoch_seen == 4
    assert only(effects.CompareAndSet, out) == effects.CompareAndSet(cell(4, 1, 1, 3), 5)
    assert replica.log_synced(0, 500) == []


@pytest.mark.parametrize(
    ("in_sync", "nodes", "state"),
    [
        ((2, 3), live(1, 3), ReplicaState()),
        ((1, 2, 3), live(3), ReplicaState()),
        ((1, 2, 3), live(1, 2, 3), ReplicaState()),
        ((1, 2, 3), live(1, 3), ReplicaState(unclean=True)),
    ],
    ids=["not in the set", "not live", "the master lives", "unclean"],
)
def test_who_may_not_stand_does_not(
    in_sync: tuple[int, ...], nodes: dict[int, LiveNode], state: ReplicaState
) -> None:
    replica = begun(state)

    out = replica.registry_seen(VersionedCell(cell(3, 2, *in_sync), 5), nodes, 0)
    out += replica.tick(60_000)

    assert none(effects.CompareAndSet, out)


def test_better_candidates_come_first_by_epoch_then_by_end() -> None:
    replica = begun(ReplicaState(end=8, epochs=Epochs([EpochStart(2, 0)])))
    nodes = {
        **live(1),
        3: LiveNode(address="host:3", epoch=2, end=12),
        4: LiveNode(address="host:4", epoch=3, end=4),
        5: LiveNode(address="host:5", epoch=1, end=99),
    }
    there = ReplicaSetState(
        epoch=3, master=2, in_sync=frozenset(range(1, 6)), replicas={n: "h:1" for n in range(1, 6)}
    )

    out = replica.registry_seen(VersionedCell(there, 5), nodes, 1_000)
    out += replica.tick(1_399)
    assert none(effects.CompareAndSet, out)

    assert only(effects.CompareAndSet, replica.tick(1_400)).cell.in_sync == {1, 3, 4, 5}


def test_after_a_loss_of_the_registry_only_who_was_named_stands_whatever_epoch_is_in_it() -> None:
    replica = begun(ReplicaState(end=8, epoch_seen=4, epochs=Epochs([EpochStart(4, 0)])))

    out = replica.registry_seen(VersionedCell(cell(0, 0, 1, 2, 3), 5), live(1, 2, 3), 0)
    assert none(effects.CompareAndSet, out + replica.tick(60_000))

    out = replica.registry_seen(VersionedCell(cell(0, 0, 1), 6), live(1, 2, 3), 60_000)

    assert only(effects.CompareAndSet, out).cell == cell(5, 1, 1)


def test_an_unclean_master_that_is_back_does_not_block_the_others() -> None:
    replica = begun()
    nodes = {**live(1), **live(2, unclean=True)}

    out = replica.registry_seen(VersionedCell(cell(3, 2, 1, 2), 5), nodes, 0)

    assert only(effects.CompareAndSet, out).cell == cell(4, 1, 1)


def test_a_restarted_master_stands_for_an_epoch_that_it_never_saw() -> None:
    replica = begun(ReplicaState(epoch_seen=7, epochs=Epochs([EpochStart(7, 0)])))

    out = replica.registry_seen(VersionedCell(cell(7, 1, 1, 2), 5), live(1, 2), 0)

    assert only(effects.CompareAndSet, out).cell == cell(8, 1, 1, 2)


def test_a_stand_without_an_answer_is_asked_again_until_the_cell_has_another_version() -> None:
    replica = begun()
    old = VersionedCell(cell(3, 2, 1, 2), 5)
    asked = only(effects.CompareAndSet, replica.registry_seen(old, live(1), 0))
    assert only(effects.ReadRegistry, replica.set_unknown(50))
    assert only(effects.CompareAndSet, replica.registry_seen(old, live(1), 100)) == asked
    assert only(effects.ReadRegistry, replica.set_refused(150))

    out = replica.registry_seen(VersionedCell(asked.cell, 6), live(1), 200)

    assert only(effects.CutLog, out) == effects.CutLog(None)
    assert replica.role is ReplicaRole.STARTING


def test_who_was_slower_follows() -> None:
    replica = begun()
    replica.registry_seen(VersionedCell(cell(3, 2, 1, 2, 3), 5), live(1, 3), 0)
    replica.set_refused(10)

    out = replica.registry_seen(VersionedCell(cell(4, 3, 1, 3), 6), live(1, 3), 20)

    assert only(effects.Follow, out) == effects.Follow(3, "host:3")
    assert replica.role is ReplicaRole.FOLLOWER
    assert replica.master == 3


def test_an_unclean_replica_stands_when_a_person_accepts_the_loss() -> None:
    replica = begun(ReplicaState(unclean=True, epoch_seen=3))
    replica.registry_seen(VersionedCell(cell(3, 2, 2, 3), 5), live(1, 3), 0)

    out = replica.accept_loss(10)

    assert out == [effects.WriteMark(EndMark(0, 0, accepted=4), None)]
    out = replica.mark_written(VersionedEndMark(EndMark(0, 0, accepted=4), 0), 20)
    assert only(effects.PersistState, out) == effects.PersistState(4, False)
    assert only(effects.CompareAndSet, out).cell == cell(4, 1, 1)


# ---------------------------------------------------------------- 2: start


def test_the_epoch_is_on_the_device_before_sends_are_taken_also_without_a_new_record() -> None:
    replica = master(end=8, state=ReplicaState(end=8, synced=8, epochs=Epochs([EpochStart(1, 8)])))

    assert replica.epochs == Epochs([EpochStart(2, 8)])


def test_a_torn_record_at_the_end_goes_before_the_epoch_begins() -> None:
    replica = begun(ReplicaState(end=10, synced=6, confirm=9, epochs=Epochs([EpochStart(1, 0)])))
    replica.registry_seen(VersionedCell(cell(1, 1, 1), 5), live(1), 0)
    replica.set_done(6, 0)

    out = replica.log_cut(8, 6, 0)

    assert only(effects.BecomeMaster, out) == effects.BecomeMaster(2, 8)
    assert only(effects.KeepEpochs, out).epochs == Epochs([EpochStart(1, 0), EpochStart(2, 8)])


# ---------------------------------------------------------------- 3: acknowledge


def test_acknowledged_is_what_all_have_on_the_device_and_shown_what_all_have() -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    replica.appended(4, 0)
    replica.appended(8, 0)

    assert only(effects.Confirm, replica.request(7, ack(7, 4), 0)) == effects.Confirm(4)
    assert only(effects.AnswerAcks, replica.log_synced(8, 0)) == effects.AnswerAcks(4, 2)
    out = replica.request(7, ack(8, 8), 0)

    assert only(effects.AnswerAcks, out) == effects.AnswerAcks(8, 2)
    assert only(effects.Confirm, out) == effects.Confirm(8)


def test_what_was_stored_before_the_epoch_is_acknowledged_without_a_new_record() -> None:
    replica = master(2, end=8)

    assert replica.in_sync is not None
    assert replica.in_sync.acknowledged == 0
    attach(replica, 2, link=7, end=8)
    replica.request(7, ack(8), 0)

    assert replica.in_sync.acknowledged == 8


def test_with_written_the_device_is_not_waited_for() -> None:
    replica = master(2, replica_ack="memory")
    attach(replica, 2, link=7)
    replica.appended(4, 0)

    assert only(effects.AnswerAcks, replica.request(7, ack(4, 0), 0)) == effects.AnswerAcks(4, 2)


def test_acks_of_another_connection_or_epoch_say_nothing() -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    attach(replica, 2, link=8)
    replica.appended(4, 0)
    replica.log_synced(4, 0)

    assert none(effects.AnswerAcks, replica.request(7, ack(4), 0))
    assert none(effects.AnswerAcks, replica.request(8, ack(4, epoch=1), 0))
    assert only(effects.AnswerAcks, replica.request(8, ack(4), 0))


def test_without_replicas_enough_acks_are_refused_before_the_append() -> None:
    replica = master(min_in_sync=2)

    with pytest.raises(
        NotEnoughReplicas, match="needs min_in_sync=2 replicas, but only 1 are in sync"
    ):
        replica.check_acks()

    replica.appended(4, 0)
    assert none(effects.AnswerAcks, replica.log_synced(4, 0))


def test_what_waits_is_in_doubt_when_the_set_becomes_too_small() -> None:
    replica = master(2, min_in_sync=2)
    attach(replica, 2, link=7)
    replica.check_acks()
    replica.appended(4, 0)

    asked = only(effects.CompareAndSet, replica.registry_seen(replica.seen, live(1), 0))
    assert asked.cell == cell(2, 1, 1)
    out = replica.set_done(7, 0)

    assert only(effects.FailAcks, out) == effects.FailAcks(1)


def test_below_its_start_a_new_master_shows_no_more_than_it_knew() -> None:
    state = ReplicaState(end=8, synced=8, confirm=4, epochs=Epochs([EpochStart(1, 0)]))
    replica = master(2, end=8, state=state)

    assert none(effects.Confirm, attach(replica, 2, link=7, end=4))
    assert none(effects.Confirm, replica.request(7, ack(7), 0))
    assert only(effects.Confirm, replica.request(7, ack(8), 0)) == effects.Confirm(8)


# ---------------------------------------------------------------- 4: change of the set


def test_a_proposal_counts_until_the_cell_has_a_greater_version() -> None:
    replica = master(2, 3)
    for follower in (2, 3):
        attach(replica, follower, link=follower)
    replica.appended(4, 0)
    replica.log_synced(4, 0)
    replica.request(2, ack(4), 0)
    # 3 is gone: the smaller set is proposed, but does not count.
    out = replica.registry_seen(replica.seen, live(1, 2), 0)
    assert only(effects.CompareAndSet, out).cell == cell(2, 1, 1, 2)
    assert none(effects.AnswerAcks, out)
    assert none(effects.AnswerAcks, replica.set_unknown(10))
    assert none(effects.AnswerAcks, replica.registry_seen(replica.seen, live(1, 2), 20))

    out = replica.registry_seen(VersionedCell(cell(2, 1, 1, 2), 7), live(1, 2), 30)

    assert only(effects.AnswerAcks, out) == effects.AnswerAcks(4, 2)


def test_a_proposal_is_given_up_by_taking_its_version() -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    there = replica.seen
    replica.registry_seen(there, live(1), 0)
    replica.set_unknown(10)

    out = replica.registry_seen(there, live(1, 2), 200)

    assert only(effects.CompareAndSet, out) == effects.CompareAndSet(cell(2, 1, 1, 2), 6)
    assert replica.in_sync is not None
    assert replica.in_sync.maximal_set == {1, 2}
    assert replica.in_sync.proposed_set == frozenset({1})
    replica.set_done(7, 210)
    assert replica.in_sync.proposed_set is None


def test_one_proposal_at_a_time() -> None:
    replica = master(2, 3)
    assert only(effects.CompareAndSet, replica.registry_seen(replica.seen, live(1, 2), 0))

    assert none(effects.CompareAndSet, replica.registry_seen(replica.seen, live(1), 10))
    assert none(effects.CompareAndSet, replica.tick(5_000))


# ---------------------------------------------------------------- 5: who leaves, who enters


def test_who_does_not_catch_up_leaves_and_a_lost_connection_alone_is_no_reason() -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    replica.link_closed(7)
    assert none(effects.CompareAndSet, replica.tick(60_000)), "there is nothing that it lacks"
    replica.appended(4, 60_000)
    replica.registry_seen(replica.seen, live(1, 2), 60_000)
    attach(replica, 2, link=8, now_ms=61_000)
    assert none(effects.CompareAndSet, replica.tick(70_000))
    out = replica.tick(70_001)

    assert only(effects.CompareAndSet, out).cell == cell(2, 1, 1)


def test_who_left_because_it_lags_does_not_enter_until_it_has_caught_up() -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    replica.registry_seen(replica.seen, live(1, 2), 0)
    replica.appended(4, 0)
    assert only(effects.CompareAndSet, replica.tick(10_001)).cell == cell(2, 1, 1)

    assert none(effects.CompareAndSet, replica.set_done(7, 10_010)), (
        "nothing is confirmed that it lacks"
    )
    out = replica.request(7, ack(4), 10_020)

    assert only(effects.CompareAndSet, out).cell == cell(2, 1, 1, 2)


def test_a_follower_under_steady_load_is_caught_up() -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    for turn in range(1, 100):
        replica.appended(4 * turn, 1_000 * turn)
        replica.request(7, ack(4 * (turn - 1)), 1_000 * turn)

        assert none(effects.CompareAndSet, replica.tick(1_000 * turn))


@pytest.mark.parametrize(
    ("written", "synced", "enters"), [(7, 7, False), (8, 7, False), (8, 8, True), (12, 12, True)]
)
def test_a_follower_enters_with_all_from_before_the_epoch_on_its_device(
    written: int, synced: int, enters: bool
) -> None:
    replica = master(3, end=8)
    replica.registry_seen(replica.seen, live(1, 2, 3), 0)
    attach(replica, 2, link=7)
    replica.appended(12, 0)

    out = replica.request(7, ack(written, synced), 0)

    assert none(effects.CompareAndSet, out) is not enters
    if enters:
        assert only(effects.CompareAndSet, out).cell == cell(2, 1, 1, 2, 3)


def test_a_follower_enters_once_it_has_the_state_beside_the_log() -> None:
    having: set[int] = set()
    replica = master(3, has_state=having.__contains__)
    replica.registry_seen(replica.seen, live(1, 2, 3), 0)
    assert none(effects.CompareAndSet, attach(replica, 2, link=7))

    having.add(2)
    assert only(effects.CompareAndSet, replica.tick(100)).cell == cell(2, 1, 1, 2, 3)


def test_an_unclean_replica_leaves_and_is_clean_with_all_that_was_confirmed() -> None:
    leader = master(2)
    asked = leader.registry_seen(leader.seen, {**live(1), **live(2, unclean=True)}, 0)
    assert only(effects.CompareAndSet, asked).cell == cell(2, 1, 1)

    follower = begun(ReplicaState(unclean=True, epoch_seen=2))
    follow(follower, pb.FollowBegin(epoch=2, epochs=[pb.EpochStart(epoch=2, start=4)], end=12))
    assert none(effects.PersistState, follower.log_synced(0, 0))
    for offset, confirm in ((0, 8), (4, 8)):
        bytes_ = bytes_frame(2, offset, b"abcd", confirm)
        assert none(effects.PersistState, follower.reply(7, pb.FollowReply(bytes=bytes_), 0))

    out = follower.log_synced(8, 0)

    assert only(effects.PersistState, out) == effects.PersistState(2, False)
    assert not only(effects.Announce, out).node.unclean


# ---------------------------------------------------------------- 6: fences


@pytest.mark.parametrize("how", ["hello", "cell"])
def test_a_higher_epoch_that_the_registry_knows_ends_a_master_and_is_kept_first(how: str) -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    if how == "hello":
        replica.registry_seen(replica.seen, {**live(1, 2), **live(3, epoch_seen=9)}, 0)
        out = replica.request(8, hello(3, epoch_seen=9), 0)
    else:
        out = replica.registry_seen(VersionedCell(cell(9, 2, 2), 9), live(1, 2), 0)

    assert out[0] == effects.PersistState(9, False)
    assert isinstance(out[1], effects.StepDown)
    assert effects.CloseLink(7, only(effects.StepDown, out).reason) in out
    with pytest.raises(MasterFenced):
        replica.check_master(0)


@pytest.mark.parametrize("epoch", [3, 9, 2**31 - 1])
@pytest.mark.parametrize("how", ["hello", "hello of a replica that is not live", "ack"])
def test_a_higher_epoch_that_the_registry_does_not_know_ends_only_its_link(
    how: str, epoch: int
) -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    link = 7 if how == "ack" else 8
    asked = ack(0, epoch=epoch) if how == "ack" else hello(2, epoch_seen=epoch)
    if how == "hello of a replica that is not live":
        asked = hello(3, epoch_seen=epoch)

    out = replica.request(link, asked, 0)

    assert only(effects.CloseLink, out).link == link
    assert none(effects.PersistState, out)
    assert (replica.role, replica.epoch_seen) == (ReplicaRole.MASTER, 2)
    replica.check_master(0)


def test_a_live_node_with_an_epoch_that_cannot_be_ends_no_master() -> None:
    replica = master(2)
    last = 2**31 - 1
    replica.registry_seen(replica.seen, {**live(1, 2), **live(3, epoch_seen=last)}, 0)

    out = replica.request(8, hello(3, epoch_seen=last), 0)

    assert "repair" in only(effects.CloseLink, out).reason
    assert (replica.role, replica.epoch_seen) == (ReplicaRole.MASTER, 2)


def test_a_follower_keeps_no_epoch_that_the_registry_does_not_know() -> None:
    follower = begun(ReplicaState(epoch_seen=2))
    follower.registry_seen(VersionedCell(cell(3, 2, 1, 2), 5), live(1, 2), 0)
    follower.connected(2, 7, 0)
    begin = pb.FollowBegin(epoch=4, epochs=[pb.EpochStart(epoch=4, start=0)], truncate_to=0)

    out = follower.reply(7, pb.FollowReply(begin=begin), 0)

    assert (
        only(effects.CloseLink, out).reason
        == "epoch is 4, but the metadata of the set has 3: read it again"
    )
    assert none(effects.PersistState, out)
    assert follower.epoch_seen == 3


def test_a_candidate_that_failed_announces_its_epoch_and_is_heard_with_it() -> None:
    candidate = begun(ReplicaState(epoch_seen=3))
    candidate.registry_seen(VersionedCell(cell(3, 2, 1, 2, 3), 5), live(1, 3), 0)
    candidate.set_refused(0)

    out = candidate.registry_seen(VersionedCell(cell(3, 2, 1, 2), 6), live(1, 2), 0)

    assert only(effects.Announce, out).node.epoch_seen == 4


def test_no_replica_stands_for_an_epoch_that_cannot_be_kept() -> None:
    replica = begun(ReplicaState(epoch_seen=2**31 - 1))

    out = replica.registry_seen(VersionedCell(cell(3, 2, 1, 2), 5), live(1), 0)
    out += replica.tick(60_000)

    assert none(effects.PersistState, out)
    assert none(effects.CompareAndSet, out)


def test_a_set_that_is_refused_ends_a_master() -> None:
    replica = master(2)
    replica.registry_seen(replica.seen, live(1), 0)

    assert only(effects.StepDown, replica.set_refused(0))


def test_the_end_of_its_session_ends_a_master() -> None:
    assert only(effects.StepDown, master(2).session_ended())


def test_a_master_of_an_epoch_that_is_over_is_not_followed() -> None:
    replica = begun(ReplicaState(epoch_seen=5))
    replica.registry_seen(VersionedCell(cell(3, 2, 1, 2), 5), live(1, 2), 0)
    greeting = only(effects.SendFrame, replica.connected(2, 7, 0)).frame
    assert isinstance(greeting, pb.FollowRequest)
    assert greeting.hello.epoch_seen == 5
    begin = pb.FollowBegin(epoch=3, epochs=[pb.EpochStart(epoch=3, start=0)])

    out = replica.reply(7, pb.FollowReply(begin=begin), 0)

    assert only(effects.CloseLink, out).reason == "epoch is 3, but 5 was seen"


# ---------------------------------------------------------------- 7: truncation


def follow(replica: ReplicaCore, begin: pb.FollowBegin) -> list[effects.Effect]:
    """Have REPLICA follow replica 2 over link 7; return what BEGIN brings about."""
    there = VersionedCell(cell(begin.epoch, 2, 1, 2), 5)
    assert only(effects.Follow, replica.registry_seen(there, live(1, 2), 0))
    assert only(effects.SendFrame, replica.connected(2, 7, 0))
    return replica.reply(7, pb.FollowReply(begin=begin), 0)


BEGIN = pb.FollowBegin(
    epoch=3,
    epochs=[pb.EpochStart(epoch=1, start=0), pb.EpochStart(epoch=3, start=8)],
    end=20,
    truncate_to=8,
)
STATE = ReplicaState(
    end=12, synced=12, confirm=4, epoch_seen=2, epochs=Epochs([EpochStart(1, 0), EpochStart(2, 8)])
)


def test_a_follower_cuts_its_log_then_takes_the_masters_epochs_then_bytes() -> None:
    replica = begun(STATE)
    out = follow(replica, BEGIN)
    assert only(effects.CutLog, out) == effects.CutLog(8)

    out = replica.log_cut(8, 8, 0)

    assert [type(one) for one in out] == [effects.KeepEpochs, effects.SendFrame]
    assert only(effects.KeepEpochs, out).epochs == Epochs([EpochStart(1, 0), EpochStart(3, 8)])
    got = pb.FollowReply(bytes=bytes_frame(3, 8, b"abcd", 100))
    assert replica.reply(7, got, 0) == [
        effects.AppendRaw(8, b"abcd"),
        effects.Confirm(12),
        effects.SendFrame(7, ack(12, 8, epoch=3)),
    ]
    assert replica.log_synced(12, 0) == [effects.SendFrame(7, ack(12, 12, epoch=3))]


def following(end: int = 8) -> ReplicaCore:
    """Return a replica whose log ends at END, and which bytes of epoch 3 may come to over link 7."""
    replica = begun(ReplicaState(end=end, synced=end, epochs=Epochs([EpochStart(3, 0)])))
    epochs = [pb.EpochStart(epoch=3, start=0)]
    follow(replica, pb.FollowBegin(epoch=3, epochs=epochs, end=1 << 40, truncate_to=end))
    return replica


def come(replica: ReplicaCore, *sent: pb.FollowBytes) -> list[effects.Effect]:
    first, *more = (pb.FollowReply(bytes=one) for one in sent)
    return replica.reply(7, first, 0, more)


def test_bytes_that_come_together_are_appended_and_acknowledged_together() -> None:
    replica = following()
    some = [bytes_frame(3, at, b"abcd", confirm) for at, confirm in ((8, 8), (12, 12), (16, 12))]

    assert come(replica, *some) == [
        effects.AppendRaw(8, b"abcd" * 3),
        effects.Confirm(12),
        effects.SendFrame(7, ack(20, 8, epoch=3)),
    ]


def test_bytes_that_come_together_are_appended_file_by_file() -> None:
    replica = following(end=1020)

    out = come(replica, bytes_frame(3, 1020, b"abcd", 0), bytes_frame(3, 1024, b"efgh", 0))

    assert out == [
        effects.AppendRaw(1020, b"abcd"),
        effects.AppendRaw(1024, b"efgh"),
        effects.SendFrame(7, ack(1028, 1020, epoch=3)),
    ]


def test_of_bytes_that_come_together_those_before_damaged_ones_are_appended_and_the_link_ends() -> (
    None
):
    replica = following()
    damaged = bytes_frame(3, 12, b"abcd", 0)
    damaged.data = b"abce"

    out = come(replica, bytes_frame(3, 8, b"abcd", 0), damaged, bytes_frame(3, 16, b"abcd", 0))

    assert out[0] == effects.AppendRaw(8, b"abcd")
    assert only(effects.CloseLink, out).reason.startswith("data of offset 12 has the CRC-32")
    assert replica.end == 12
    replica.link_closed(7)
    replica.tick(1_000)
    asked = only(effects.SendFrame, replica.connected(2, 8, 1_000)).frame
    assert isinstance(asked, pb.FollowRequest)
    assert asked.hello.end == 12


@pytest.mark.parametrize(("lacks", "is_far"), [(FAR_BYTES, False), (FAR_BYTES + 1, True)])
def test_no_sync_is_due_while_far_more_is_confirmed_than_is_here(lacks: int, is_far: bool) -> None:
    replica = following()

    out = come(replica, bytes_frame(3, 8, b"abcd", 12 + lacks))

    assert only(effects.AppendRaw, out) == effects.AppendRaw(8, b"abcd", is_far)


@pytest.mark.parametrize(
    ("state", "begin"),
    [
        (STATE, pb.FollowBegin(epoch=3, epochs=BEGIN.epochs, end=20, min_offset=12, truncate_to=8)),
        (replace(STATE, epochs=Epochs()), pb.FollowBegin(epoch=3, epochs=BEGIN.epochs, end=20, truncate_to=-1)),
    ],
    ids=["below the oldest file", "nothing in common"],
)  # fmt: skip
def test_a_log_that_cannot_be_cut_is_set_aside_and_its_replica_is_unclean(
    state: ReplicaState, begin: pb.FollowBegin
) -> None:
    replica = begun(state)

    out = follow(replica, begin)

    assert only(effects.BeginAnew, out).begin == begin.min_offset
    assert out.index(effects.PersistState(3, True)) < out.index(only(effects.BeginAnew, out))
    cut = only(effects.SendFrame, replica.log_cut(begin.min_offset, begin.min_offset, 0)).frame
    assert isinstance(cut, pb.FollowRequest)
    assert cut.cut.end == begin.min_offset


def test_a_master_says_where_to_cut_and_streams_from_there() -> None:
    replica = master(2, end=8)
    epochs = [pb.EpochStart(epoch=1, start=0)]

    begin = only(
        effects.SendFrame, replica.request(7, hello(epochs=epochs, end=12, epoch_seen=1), 0)
    ).frame
    assert isinstance(begin, pb.FollowReply)
    assert begin.begin.truncate_to == 8
    assert [(one.epoch, one.start) for one in begin.begin.epochs] == [(1, 0), (2, 8)]

    out = replica.request(7, pb.FollowRequest(cut=pb.FollowCut(end=4, synced=4)), 0)

    assert only(effects.SendLogFrom, out) == effects.SendLogFrom(7, 4)


# ---------------------------------------------------------------- 8: the lease


def test_past_two_thirds_of_a_session_without_an_answer_a_master_refuses() -> None:
    replica = master(session_ms=3_000)
    replica.registry_answered(1_000)
    replica.check_master(2_999)

    with pytest.raises(MasterFenced, match="got no answer from ZooKeeper for 2000 ms"):
        replica.check_master(3_000)

    assert replica.role is ReplicaRole.MASTER


def test_a_follower_names_the_master_and_its_epoch() -> None:
    replica = begun()
    replica.registry_seen(VersionedCell(cell(3, 2, 1, 2), 5), live(1, 2), 0)

    with pytest.raises(MasterFenced, match="the master is at host:2") as refused:
        replica.check_master(0)

    assert refused.value.details == {"address": "host:2", "epoch": "3"}


# ---------------------------------------------------------------- links that are of no use


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (hello(cluster="d"), "cluster is 'd', and this replica's is 'c'"),
        (hello(set="other"), "set is 'other', and this replica's is 'orders'"),
        (hello(file_size=2048), "file_size is 2048, and this replica's is 1024"),
        (hello(1), "replica_id 1 is taken by the replica that was dialled"),
        (hello(9), "replica_id 9 is not in the set: add it first"),
        (hello(0), "replica_id is 0, not from 1 to"),
        (pb.FollowRequest(cut=pb.FollowCut()), "a cut was sent without a hello"),
    ],
)
def test_who_does_not_belong_here_is_told_why(frame: pb.FollowRequest, reason: str) -> None:
    replica = master(2)

    assert only(effects.CloseLink, replica.request(9, frame, 0)).reason.startswith(reason)
    assert replica.role is ReplicaRole.MASTER


def test_an_ack_beyond_the_end_of_the_log_is_not_believed() -> None:
    replica = master(2)
    attach(replica, 2, link=7)
    replica.appended(4, 0)
    replica.log_synced(4, 0)

    out = replica.request(7, ack(2**62), 0)

    assert only(effects.CloseLink, out).reason == f"written is {2**62}, but the log ends at 4"
    assert none(effects.AnswerAcks, out)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (bytes_frame(3, 4, b"abcd", 0), "offset is 4, and the log ends at 8"),
        (bytes_frame(4, 8, b"abcd", 0), "epoch is 4, and 3 is followed"),
        (pb.FollowBytes(epoch=3, offset=8, data=b"abcd"), "data of offset 8 has the CRC-32"),
    ],
)
def test_bytes_that_do_not_continue_the_log_end_the_link(
    frame: pb.FollowBytes, reason: str
) -> None:
    replica = begun(STATE)
    follow(replica, BEGIN)
    replica.log_cut(8, 8, 0)

    out = replica.reply(7, pb.FollowReply(bytes=frame), 0)

    assert only(effects.CloseLink, out).reason.startswith(reason)
    assert none(effects.AppendRaw, out)
    assert only(effects.Follow, replica.tick(1_000)) == effects.Follow(2, "host:2")


def starting() -> ReplicaCore:
    """Return a replica that is elected, and has yet to begin its epoch."""
    state = ReplicaState(end=8, synced=8, epochs=Epochs([EpochStart(1, 0)]))
    replica = begun(state)
    replica.registry_seen(VersionedCell(cell(1, 1, 1, 2), 5), live(1, 2), 0)
    assert only(effects.CutLog, replica.set_done(6, 0)) == effects.CutLog(None)
    return replica


def test_who_wants_to_follow_before_the_epoch_has_begun_is_answered_when_it_has() -> None:
    """It has read the cell, which names the master already; were it sent away, it would come back much later."""
    replica = starting()
    early = hello(2, epochs=[pb.EpochStart(epoch=1, start=0)], end=8, synced=8, epoch_seen=2)

    assert replica.request(7, early, 0) == []
    assert replica.request(8, early, 0) == []
    assert replica.link_closed(8) == []
    out = replica.log_cut(8, 8, 0)

    begin = only(effects.SendFrame, out)
    assert isinstance(begin.frame, pb.FollowReply)
    assert (begin.link, begin.frame.begin.epoch, begin.frame.begin.truncate_to) == (7, 2, 8)
    kinds = [type(one) for one in out]
    assert kinds.index(effects.BecomeMaster) < kinds.index(effects.SendFrame)


def test_who_came_early_is_sent_away_if_the_epoch_does_not_begin() -> None:
    replica = starting()
    replica.request(7, hello(2, epoch_seen=2), 0)

    out = replica.registry_seen(VersionedCell(cell(3, 2, 1, 2), 7), live(1, 2), 0)

    assert only(effects.CloseLink, out).link == 7
    assert replica.role is ReplicaRole.FOLLOWER


def test_a_silent_master_is_dialled_anew() -> None:
    replica = begun(STATE)
    follow(replica, BEGIN)
    replica.log_cut(8, 8, 0)
    assert none(effects.CloseLink, replica.tick(SILENT_MS))

    out = replica.tick(SILENT_MS + 1)

    assert only(effects.CloseLink, out).link == 7
    assert only(effects.Follow, out) == effects.Follow(2, "host:2")


@pytest.mark.parametrize(
    "bad", [{"min_in_sync": 0}, {"file_size": 0}, {"session_ms": 0}, {"replica_ack": "luck"}]
)
def test_settings_without_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        replace(SETTINGS, **bad)


# ---------------------------------------------------------------- handing over


def test_a_master_hands_over_to_who_has_all_and_goes_on_until_the_cell_says_so() -> None:
    replica = master(2, 3)
    replica.registry_seen(VersionedCell(cell(2, 1, 1, 2, 3), 6), live(1, 2, 3), 0)
    attach(replica, 2, 7)
    replica.appended(80, 0)
    with pytest.raises(NotEnoughReplicas, match="replica 2 is not in sync, has not all"):
        replica.hand_over(2, 0, leaving=False)
    with pytest.raises(NotEnoughReplicas, match="replica 3"):
        replica.hand_over(3, 0, leaving=False)
    replica.request(7, ack(80), 0)

    asked = only(effects.CompareAndSet, replica.hand_over(2, 0, leaving=False))

    assert asked == effects.CompareAndSet(cell(3, 2, 1, 2, 3), 6)
    with pytest.raises(NotEnoughReplicas, match="about to change"):
        replica.hand_over(2, 0, leaving=False)
    assert replica.in_sync is not None
    out = replica.set_done(7, 0)
    assert only(effects.StepDown, out).epoch == 3
    assert replica.role is ReplicaRole.FOLLOWER


def test_a_master_that_leaves_is_not_in_the_set_of_the_next() -> None:
    replica = master(2)
    replica.registry_seen(VersionedCell(cell(2, 1, 1, 2), 6), live(1, 2), 0)
    attach(replica, 2, 7)
    assert only(effects.CompareAndSet, replica.hand_over(2, 0, leaving=True)).cell == cell(3, 2, 2)


def test_who_is_named_by_a_hand_over_stands_at_once_in_a_later_epoch() -> None:
    replica = begun(ReplicaState(epoch_seen=2))
    replica.registry_seen(VersionedCell(cell(2, 2, 1, 2, 3), 5), live(1, 2, 3), 0)

    out = replica.registry_seen(VersionedCell(cell(3, 1, 1, 2, 3), 6), live(1, 2, 3), 0)

    assert only(effects.CompareAndSet, out) == effects.CompareAndSet(cell(4, 1, 1, 2, 3), 6)
