"""Leases of queues, told the time: who may have one, which token is valid, what a restart leaves of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pocketmq.broker.groups.lease_table import LeaseTable, LeasingMember, QueueKey, QueueRequest
from pocketmq.proto.errors import Overloaded

NOW_MS = 1_000_000
LEASE_MS = 60_000
Q0, Q1, Q2 = (QueueKey("T", number) for number in range(3))


def table(limit: int = 100, begin_ms: int = NOW_MS) -> LeaseTable:
    return LeaseTable(begin_ms, limit=lambda: limit)


def ask(
    leases: LeaseTable,
    member_id: str,
    key: QueueKey,
    token: int = 0,
    now_ms: int = NOW_MS,
    *,
    group: str = "g",
    instance_id: str = "",
) -> int:
    """Return the token that MEMBER_ID is granted, 0 if it is not."""
    asker = LeasingMember(
        group=group, member_id=member_id, instance_id=instance_id, lease_ms=LEASE_MS
    )
    (lease,) = leases.ask(asker, [QueueRequest(key, token)], now_ms)
    return lease.token if lease is not None else 0


def noted(leases: LeaseTable) -> list[tuple[str, str, list[Any] | None]]:
    """Return a list that gets what changes from now on, as the journal is told of it."""
    changes: list[tuple[str, str, list[Any] | None]] = []
    leases._on_change = lambda *change: changes.append(change)
    return changes


def restarted(leases: LeaseTable, now_ms: int) -> LeaseTable:
    """Return the table of the next run."""
    again = table(begin_ms=now_ms)
    again.restore(json.loads(json.dumps(list(leases.rows(now_ms)))), now_ms)
    return again


def test_a_lease_is_over_when_it_is_not_renewed() -> None:
    leases = table()
    first = ask(leases, "a", Q0)

    assert ask(leases, "a", Q0, first, NOW_MS + 50_000) == first
    assert ask(leases, "b", Q0, now_ms=NOW_MS + 109_999) == 0
    second = ask(leases, "b", Q0, now_ms=NOW_MS + 110_000)
    assert second > first
    assert ask(leases, "a", Q0, first, NOW_MS + 110_000) == 0
    assert leases.is_valid("g", Q0, second)
    assert not leases.is_valid("g", Q0, first)


def test_one_that_nobody_asked_for_since_is_renewed_though_it_is_over() -> None:
    leases = table()
    token = ask(leases, "a", Q0)

    assert leases.is_valid("g", Q0, token)
    assert ask(leases, "a", Q0, token, NOW_MS + 10 * LEASE_MS) == token


def test_an_extended_lease_lasts_for_its_whole_time_and_never_shorter() -> None:
    leases = table()
    token = ask(leases, "a", Q0)

    changes = noted(leases)

    leases.extend("g", Q0, token, 1, NOW_MS + 50_000)
    leases.extend("g", Q0, token, 1, NOW_MS + 10_000)

    assert not changes, "it is not to be written down"
    assert ask(leases, "b", Q0, now_ms=NOW_MS + 109_999) == 0
    assert ask(leases, "b", Q0, now_ms=NOW_MS + 110_000) > token


def test_an_extended_lease_that_was_over_or_not_on_record_is_to_be_written_down() -> None:
    leases = table()
    token = ask(leases, "a", Q0)

    changes = noted(leases)

    leases.extend("g", Q0, token, LEASE_MS, NOW_MS + LEASE_MS)
    assert changes == [("g", "0 T", ["a", "", token, LEASE_MS, 2])]
    leases.extend("g", Q1, NOW_MS - 1, LEASE_MS, NOW_MS)
    assert changes[1:] == [("g", "1 T", ["", "", NOW_MS - 1, LEASE_MS, 2])]
    assert ask(leases, "b", Q0, now_ms=NOW_MS + LEASE_MS) == 0
    assert ask(leases, "b", Q1) == 0
    assert not leases.is_valid("g", Q1, NOW_MS - 2)


def test_the_same_member_that_asks_anew_gets_a_new_token() -> None:
    leases = table()
    first = ask(leases, "a", Q0)

    second = ask(leases, "a", Q0)

    assert second > first
    assert ask(leases, "a", Q0, first) == 0


def test_a_released_queue_is_had_at_once_and_its_token_is_worth_nothing() -> None:
    leases = table()
    token = ask(leases, "a", Q0)

    assert not leases.release("g", Q0, "b", token)
    assert not leases.release("g", Q0, "a", token + 1)
    assert leases.release("g", Q0, "a", token)
    assert not leases.release("g", Q0, "a", token)
    assert not leases.is_valid("g", Q0, token)
    assert ask(leases, "a", Q0, token) == 0
    assert ask(leases, "b", Q0) > token


def test_groups_do_not_know_of_each_other() -> None:
    leases = table()
    token = ask(leases, "a", Q0)

    other = ask(leases, "b", Q0, group="h")

    assert other > token
    assert not leases.is_valid("h", Q0, token)
    assert [key for key, _ in leases.of_group("h")] == [Q0]


def test_tokens_are_never_below_the_present_instant() -> None:
    leases = table()
    assert ask(leases, "a", Q0, now_ms=NOW_MS + 77) == NOW_MS + 77
    assert ask(leases, "a", Q1, now_ms=NOW_MS + 77) == NOW_MS + 78


def test_an_instance_takes_its_queue_over_and_who_had_it_does_not_get_it_back() -> None:
    leases = table()
    first = ask(leases, "a", Q0, instance_id="one")
    assert ask(leases, "x", Q0, instance_id="two") == 0
    assert ask(leases, "x", Q0) == 0

    second = ask(leases, "b", Q0, instance_id="one")

    assert second > first
    assert not leases.is_valid("g", Q0, first)
    assert ask(leases, "a", Q0, instance_id="one") == 0
    assert ask(leases, "c", Q0, instance_id="one") > second


def test_who_holds_a_queue_holds_it_after_a_restart() -> None:
    leases = table()
    held, expired, released = ask(leases, "a", Q0), ask(leases, "a", Q1), ask(leases, "a", Q2)
    later_ms = NOW_MS + LEASE_MS
    ask(leases, "a", Q0, held, later_ms)
    leases.release("g", Q2, "a", released)

    again = restarted(leases, later_ms + 5)

    assert ask(again, "b", Q0, now_ms=later_ms + 5) == 0
    assert ask(again, "a", Q0, held, later_ms + 5) == held
    assert ask(again, "a", Q1, expired, later_ms + 5) == expired
    assert not again.is_valid("g", Q2, released)
    assert ask(again, "b", Q2, now_ms=0) > max(held, expired, released)


def test_without_records_a_token_of_an_earlier_run_is_believed_until_a_newer_one_comes() -> None:
    again = table(begin_ms=NOW_MS + 1_000)
    older, newer = NOW_MS + 1, NOW_MS + 2

    assert again.is_valid("g", Q0, older)
    assert ask(again, "a", Q0, older) == older
    assert again.is_valid("g", Q0, newer)
    again.accept_unrecorded("g", Q0, newer, LEASE_MS, NOW_MS)
    assert not again.is_valid("g", Q0, older)
    assert ask(again, "a", Q0, older) == 0
    assert ask(again, "c", Q0) == 0
    assert ask(again, "b", Q0, newer) == newer
    # What was not granted before this run is nobody's.
    assert not again.is_valid("g", Q1, NOW_MS + 1_001)


def test_what_is_ended_by_force_is_not_believed_even_if_it_is_not_on_record() -> None:
    again = table(begin_ms=NOW_MS + 1_000)

    assert not again.end("g", Q0)

    assert not again.is_valid("g", Q0, NOW_MS)
    assert again.is_valid("g", Q1, NOW_MS)
    assert ask(again, "a", Q0) > NOW_MS + 1_000


def test_records_are_bounded_and_those_that_nobody_holds_go_first() -> None:
    leases = table(limit=2)
    first = ask(leases, "a", Q0)
    ask(leases, "a", Q1)
    with pytest.raises(Overloaded, match="leases_max"):
        ask(leases, "a", Q2)
    assert ask(leases, "b", Q0) == 0, "what is on record needs no room"
    leases.release("g", Q0, "a", first)

    assert ask(leases, "b", Q2, now_ms=NOW_MS + 1_000)

    assert len(leases) == 2
    assert leases.get("g", Q0) is None
    assert not leases.is_valid("g", Q0, first)


def test_a_topic_and_a_group_are_forgotten_with_their_tokens() -> None:
    leases = table()
    tokens = [ask(leases, "a", Q0), ask(leases, "a", QueueKey("U", 0))]
    other = ask(leases, "a", Q0, group="h")

    assert leases.forget_topic("T") == {"g": [Q0], "h": [Q0]}
    assert leases.forget_group("g") == [QueueKey("U", 0)]

    assert len(leases) == 0
    assert not leases.is_valid("g", Q0, tokens[0])
    assert not leases.is_valid("h", Q0, other)


@pytest.mark.parametrize(
    "row",
    [
        ("g", "0 T", [1]),
        ("g", "T", ["a", "", 1, 1_000, 2]),
        ("", "tokens", ["x", 0]),
        ("", "tokens", [1 << 63, 0]),
        ("g", "0 T", ["a", "", 1 << 63, 1_000, 2]),
    ],
    ids=["short row", "no queue", "no number", "last token too high", "token too high"],
)
def test_rows_of_another_shape_change_nothing(row: tuple[str, str, list[Any]]) -> None:
    leases = table()
    with pytest.raises((LookupError, ValueError, TypeError)):
        leases.restore([("g", "1 T", ["a", "", 5, 1_000, 2]), row], NOW_MS)

    assert len(leases) == 0
    assert ask(leases, "a", Q0) == NOW_MS + 1


MEMBERS = ("a", "b", "c")
QUEUES = (Q0, Q1)


@dataclass
class Believes:
    """What a member thinks that it holds."""

    tokens: dict[QueueKey, int] = field(default_factory=dict)


class LeaseMachine(RuleBasedStateMachine):
    """Members ask, renew, release, stall; the broker stops and starts."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = NOW_MS
        self.leases = table()
        self.saved = json.dumps(list(self.leases.rows(self.now_ms)))
        self.members = {name: Believes() for name in MEMBERS}
        #: The highest token that was ever granted, by queue.
        self.highest = dict.fromkeys(QUEUES, 0)

    @rule(name=st.sampled_from(MEMBERS), key=st.sampled_from(QUEUES))
    def asks(self, name: str, key: QueueKey) -> None:
        before = self.leases.holder("g", key, self.now_ms)
        token = ask(self.leases, name, key, now_ms=self.now_ms)

        assert bool(token) == (before is None or before.member_id == name)
        if token:
            assert token > self.highest[key]
            self.members[name].tokens[key] = self.highest[key] = token

    @rule(name=st.sampled_from(MEMBERS), key=st.sampled_from(QUEUES))
    def renews(self, name: str, key: QueueKey) -> None:
        token = self.members[name].tokens.get(key)
        if token is None:
            return
        was_valid = self.leases.is_valid("g", key, token)
        granted = ask(self.leases, name, key, token, self.now_ms)

        assert granted == (token if was_valid else 0)
        if not granted:
            del self.members[name].tokens[key]

    @rule(name=st.sampled_from(MEMBERS), key=st.sampled_from(QUEUES))
    def fetches(self, name: str, key: QueueKey) -> None:
        token = self.members[name].tokens.get(key)
        if token is None or not self.leases.is_valid("g", key, token):
            return
        changes = noted(self.leases)
        self.leases.extend("g", key, token, LEASE_MS, self.now_ms)
        if changes:
            self.saves()

        holder = self.leases.holder("g", key, self.now_ms)
        assert holder is not None
        assert (holder.token, holder.expires_ms) == (token, self.now_ms + LEASE_MS)
        assert holder.member_id in ("", name)

    @rule(name=st.sampled_from(MEMBERS), key=st.sampled_from(QUEUES))
    def releases(self, name: str, key: QueueKey) -> None:
        token = self.members[name].tokens.pop(key, None)
        if token is not None:
            self.leases.release("g", key, name, token)

    @rule(by_ms=st.sampled_from([1, 10_000, 59_999, 60_001]))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule()
    def saves(self) -> None:
        self.saved = json.dumps(list(self.leases.rows(self.now_ms)))

    @rule(down_ms=st.sampled_from([0, 1, 70_000]))
    def stops_and_starts(self, down_ms: int) -> None:
        self.saves()
        self.begins_anew(down_ms, folder_is_lost=False)

    def begins_anew(self, down_ms: int, *, folder_is_lost: bool) -> None:
        self.now_ms += down_ms
        self.leases = table(begin_ms=self.now_ms)
        if not folder_is_lost:
            self.leases.restore(json.loads(self.saved), self.now_ms)

    @invariant()
    def only_the_newest_token_of_a_queue_is_valid(self) -> None:
        for key in QUEUES:
            tokens = {one.tokens[key] for one in self.members.values() if key in one.tokens}
            valid = {token for token in tokens if self.leases.is_valid("g", key, token)}
            assert valid <= {self.highest[key]}


class ForgetfulMachine(LeaseMachine):
    """The same, but that the folder may be lost, or be older than the last grants.

    Then only what members use tells which token is the newest.
    """

    @rule(folder_is_lost=st.booleans())
    def is_killed(self, folder_is_lost: bool) -> None:
        self.begins_anew(1_000, folder_is_lost=folder_is_lost)
        for key in QUEUES:
            for one in self.members.values():
                if one.tokens.get(key) == self.highest[key]:
                    self.leases.accept_unrecorded(
                        "g", key, self.highest[key], LEASE_MS, self.now_ms
                    )

    @invariant()
    def only_the_newest_token_of_a_queue_is_valid(self) -> None:
        for key in QUEUES:
            tokens = {one.tokens[key] for one in self.members.values() if key in one.tokens}
            valid = {token for token in tokens if self.leases.is_valid("g", key, token)}
            assert self.highest[key] not in valid or len(valid) == 1


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestForgetfulMachine = ForgetfulMachine.TestCase
TestForgetfulMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
