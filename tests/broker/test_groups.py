"""Groups of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.groups import Groups
from pocketmq.proto.errors import GroupNotFound, InvalidArgument, InvalidName, Overloaded
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile
from pocketmq.store.state_tables import GroupConfig

from ..runs import Hand


def groups_at(path: Path, **settings: object) -> Groups:
    """Return the groups that a broker on the store at PATH has."""
    file = StateFile(OsDisk(), str(path), "subscriptionGroup.json")
    return Groups(file, BrokerConfig(**settings), Hand())  # type: ignore[arg-type]


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return groups_at(tmp_path)


def test_a_group_has_apaches_defaults(groups: Groups) -> None:
    made = groups.ensure("g")

    assert (made.retry_times_max, made.retry_queues, made.consume_message_orderly) == (16, 1, False)
    assert groups.ensure("g") is groups.get("g")


def test_a_group_is_there_after_a_restart(tmp_path: Path, groups: Groups) -> None:
    group = GroupConfig(name="g", consume_message_orderly=True, retry_times_max=3)
    groups.create(group, update=False)

    assert groups_at(tmp_path).all() == [group]


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
