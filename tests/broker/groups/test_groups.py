"""Groups of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.consumer_groups import SUBSCRIPTION_CHECK, Groups, subscription_check
from pocketmq.broker.retry_policies import policy_of, retry_intervals_of
from pocketmq.proto.errors import GroupNotFound, InvalidArgument, InvalidName, Overloaded, StoreFull
from pocketmq.store.file_changes import change_table
from pocketmq.store.format.beans import Object
from pocketmq.store.format.state_tables import GROUPS, GroupConfig
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...fakes import FaultyDisk
from ...runs import Hand
from ...store.table_worlds import open_changes, opened_journal


def groups_at(path: Path, **settings: object) -> Groups:
    """Return the groups that a broker on the store at PATH has."""
    file = StateFile(OsDisk(), str(path), "subscriptionGroup.json")
    changes = open_changes(path)[1]
    return Groups(file, BrokerConfig(**settings), Hand(), changes)  # type: ignore[arg-type]


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return groups_at(tmp_path)


def test_a_group_has_apaches_defaults(groups: Groups) -> None:
    made = groups.ensure("g")

    assert (made.retry_times_max, made.retry_queues, made.consume_message_orderly) == (16, 1, False)
    assert groups.ensure("g") is groups.get("g")


def test_the_brokers_own_groups_are_nobodys_to_make_or_delete(tmp_path: Path) -> None:
    own = "CID_RMQ_SYS_TRANS"
    # Apache's brokers list theirs in the file.
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "subscriptionGroup.json").write_text(
        f'{{"subscriptionGroupTable":{{"{own}":{{"groupName":"{own}"}}}}}}'
    )
    groups = groups_at(tmp_path)
    assert groups.get(own).name == own

    with pytest.raises(InvalidName, match="the broker's own") as caught:
        groups.create(GroupConfig(name=own), update=True)
    assert caught.value.details["field"] == "group"
    with pytest.raises(InvalidName, match="the broker's own"):
        groups.delete(own)
    with pytest.raises(InvalidName, match="the broker's own"):
        groups.ensure("CID_RMQ_SYS_DEAD_LETTERS")
    assert [group.name for group in groups.all()] == [own]


def test_a_group_is_there_after_a_restart(tmp_path: Path, groups: Groups) -> None:
    group = GroupConfig(name="g", consume_message_orderly=True, retry_times_max=3)
    groups.create(group, update=False)

    assert groups_at(tmp_path).all() == [group]


def test_where_nothing_can_be_written_a_reader_gets_its_group_and_it_is_kept_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    changes = change_table(GROUPS)
    journal = opened_journal(tmp_path, changes, disk=disk)
    file = StateFile(disk, str(tmp_path), "subscriptionGroup.json")
    groups = Groups(file, BrokerConfig(), Hand(), changes)
    journal._leave_file()  # It has space.
    disk.run_full("tables")

    assert groups.ensure("g") is groups.get("g")
    assert "group not stored yet group=g" in caplog.text
    with pytest.raises(StoreFull):
        groups.create(GroupConfig(name="made-by-an-administrator"), update=False)
    disk.heal()
    groups.table.close()

    assert groups_at(tmp_path).get("g") == GroupConfig(name="g")


def test_making_a_group_that_exists_changes_only_what_can_be_given(groups: Groups) -> None:
    groups.create(GroupConfig(name="g", broker_when_slow=7), update=False)

    changed = groups.create(GroupConfig(name="g", retry_times_max=2), update=True)

    assert (changed.retry_times_max, changed.broker_when_slow) == (2, 7)


def test_what_is_not_there_is_neither_changed_nor_deleted(groups: Groups) -> None:
    with pytest.raises(GroupNotFound):
        groups.create(GroupConfig(name="g"), update=True)
    with pytest.raises(GroupNotFound):
        groups.delete("g")


@pytest.mark.parametrize(
    ("group", "error"),
    [
        (GroupConfig(name="a@b"), InvalidName),
        (GroupConfig(name="g" * 121), InvalidName),
        (GroupConfig(name="g", retry_times_max=-2), InvalidArgument),
        (GroupConfig(name="g", retry_queues=0), InvalidArgument),
    ],
    ids=["alphabet", "length", "retries", "queues"],
)
def test_what_is_out_of_range_is_refused(
    groups: Groups, group: GroupConfig, error: type[Exception]
) -> None:
    with pytest.raises(error):
        groups.create(group, update=False)
    assert groups.all() == []


def test_the_number_of_groups_is_bounded(tmp_path: Path) -> None:
    groups = groups_at(tmp_path, groups_max=1)
    groups.ensure("a")

    with pytest.raises(Overloaded, match="groups_max"):
        groups.ensure("b")
    groups.delete("a")
    groups.ensure("b")


def test_what_becomes_of_other_subscriptions_is_kept_beside_apaches_attributes(
    tmp_path: Path, groups: Groups
) -> None:
    assert subscription_check(groups.ensure("g")) == "grace"
    theirs = {"+some.attribute": "x"}
    apache = tmp_path / "apache"
    (apache / "config").mkdir(parents=True)
    (apache / "config" / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"g":{"groupName":"g","attributes":{"+some.attribute":"x"}}}}'
    )
    groups = groups_at(apache)

    warns = GroupConfig(name="g", attributes={SUBSCRIPTION_CHECK: "warn"})
    assert subscription_check(groups.create(warns, update=True)) == "warn"

    again = groups_at(apache)
    assert subscription_check(again.get("g")) == "warn"
    assert again.get("g").attributes == {**theirs, SUBSCRIPTION_CHECK: "warn"}
    default = again.create(GroupConfig(name="g"), update=True)
    assert (subscription_check(default), default.attributes) == ("grace", theirs)
    refuses = GroupConfig(name="g", attributes={SUBSCRIPTION_CHECK: "refuse"})
    assert subscription_check(again.create(refuses, update=True)) == "refuse"
    with pytest.raises(InvalidArgument, match="'grace', 'warn' or 'refuse'"):
        again.create(GroupConfig(name="g", attributes={SUBSCRIPTION_CHECK: "x"}), update=True)


COMMON = [10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000]


class TestRetryIntervals:
    """Own intervals of a group, in the place where Apache keeps its retry policies."""

    def test_they_are_there_after_a_restart_in_apaches_form(
        self, tmp_path: Path, groups: Groups
    ) -> None:
        made = groups.create(GroupConfig(name="g"), update=False, retry_intervals_ms=COMMON)

        assert made.retry_policy == {
            "customizedRetryPolicy": {"next": [10_000, 10_000, *COMMON]},
            "type": "CUSTOMIZED",
        }
        assert retry_intervals_of(groups_at(tmp_path).get("g").retry_policy) == tuple(COMMON)

    def test_without_a_word_on_them_they_stay_and_an_empty_list_ends_them(
        self, groups: Groups
    ) -> None:
        groups.create(GroupConfig(name="g"), update=False, retry_intervals_ms=[5_000])

        kept = groups.create(GroupConfig(name="g", retry_times_max=3), update=True)
        assert retry_intervals_of(kept.retry_policy) == (5_000,)
        ended = groups.create(GroupConfig(name="g"), update=True, retry_intervals_ms=[])
        assert ended.retry_policy == {"type": "CUSTOMIZED"}

    def test_a_policy_that_keeps_them_already_stays_as_it_was_written(self, groups: Groups) -> None:
        policy: Object = {
            "exponentialRetryPolicy": {"initial": 500, "max": 2_000, "multiplier": 2},
            "type": "EXPONENTIAL",
        }
        groups.create(GroupConfig(name="g", retry_policy=policy), update=False)

        changed = groups.create(
            GroupConfig(name="g"), update=True, retry_intervals_ms=[500, 1_000, 2_000]
        )

        assert changed.retry_policy == policy

    @pytest.mark.parametrize(
        ("intervals", "limit"),
        [
            ([999], "259200000"),
            ([-5_000], "259200000"),
            ([10_000, 0], "259200000"),
            ([259_200_001], "259200000"),
            ([1_000] * 65, "64"),
        ],
        ids=["short", "negative", "zero", "long", "many"],
    )
    def test_what_is_out_of_bounds_changes_nothing(
        self, groups: Groups, intervals: list[int], limit: str
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            groups.create(GroupConfig(name="g"), update=False, retry_intervals_ms=intervals)

        assert caught.value.details["field"] == "retry_intervals_ms"
        assert caught.value.details["limit"] == limit
        assert groups.all() == []
        groups.create(GroupConfig(name="g"), update=False, retry_intervals_ms=[1_000] * 64)
        groups.create(GroupConfig(name="g"), update=True, retry_intervals_ms=[259_200_000])


def java_next(policy: dict[str, Any], reconsume_times: int) -> int:
    """What Apache's CustomizedRetryPolicy and ExponentialRetryPolicy answer, by their rule."""
    if policy["type"] == "EXPONENTIAL":
        bean = policy["exponentialRetryPolicy"]
        grown = bean["initial"] * bean["multiplier"] ** min(reconsume_times, 32)
        return int(min(bean["max"], grown))
    listed = policy["customizedRetryPolicy"]["next"]
    return int(listed[min(reconsume_times + 2, len(listed) - 1)])


@given(st.lists(st.integers(1_000, 259_200_000), min_size=1, max_size=64))
def test_a_java_broker_keeps_the_intervals_that_are_set_here(intervals: list[int]) -> None:
    policy: Any = policy_of(intervals)

    for times in range(70):
        assert java_next(policy, times) == intervals[min(times, len(intervals) - 1)]
    # Who is handed the bare list, and begins with its first entry, never comes early.
    assert policy["customizedRetryPolicy"]["next"][:3] == [intervals[0]] * 3
    assert retry_intervals_of(policy) == tuple(intervals)


@given(
    st.one_of(
        st.builds(
            lambda listed: {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": listed}},
            st.lists(st.integers(0, 10**12), min_size=1, max_size=80),
        ),
        st.builds(
            lambda initial, most, by: {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": initial, "max": most, "multiplier": by},
            },
            st.integers(0, 10**7),
            st.integers(0, 10**9),
            st.integers(0, 10),
        ),
    )
)
def test_a_policy_that_java_wrote_means_the_same_here(policy: Any) -> None:
    intervals = retry_intervals_of(policy)

    for times in range(90):
        assert intervals[min(times, len(intervals) - 1)] == java_next(policy, times)


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"type": "CUSTOMIZED"},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": None},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, "2s"]}},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [-1]}},
        {"type": "EXPONENTIAL"},
        {"type": "ANOTHER", "customizedRetryPolicy": {"next": [1_000]}},
    ],
)
def test_a_policy_that_says_nothing_leaves_it_to_the_delay_levels(policy: Object) -> None:
    assert retry_intervals_of(policy) == ()


def test_an_exponential_policy_has_apaches_defaults() -> None:
    policy: Object = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {}}

    assert retry_intervals_of(policy)[:3] == (5_000, 10_000, 20_000)
    assert retry_intervals_of(policy)[-1] == 7_200_000
