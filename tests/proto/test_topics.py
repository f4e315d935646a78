"""Names of topics and groups."""

import pytest

from pocketmq.proto.errors import InvalidName
from pocketmq.proto.topics import (
    check_group,
    check_topic,
    dead_letter_topic,
    is_system_topic,
    retry_topic,
    system_topic_queues,
)


@pytest.mark.parametrize("name", ["orders", "A-1_b|c%", "t" * 127, "%RETRY%" + "g" * 120])
def test_good_topic_names(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "empty"),
        ("t" * 128, "127"),
        ("a b", "' '"),
        ("é", "'é'"),
        ("a/b", "'/'"),
        ("..", "'.'"),
    ],
)
def test_a_bad_topic_name_is_told_why(name: str, what: str) -> None:
    with pytest.raises(InvalidName, match=what):
        check_topic(name)


def test_a_group_may_have_120_characters() -> None:
    assert check_group("g" * 120)
    with pytest.raises(InvalidName, match="120"):
        check_group("g" * 121)


def test_derived_topics_of_the_longest_group_are_topics() -> None:
    assert check_topic(retry_topic("g" * 120))
    assert check_topic(dead_letter_topic("g" * 120))


def test_system_topics_are_known() -> None:
    names = [name for name, _, _ in system_topic_queues("DefaultCluster", "broker-a")]

    assert "rmq_sys_wheel_timer" in names
    assert len(names) == len(set(names)) == 15
    assert is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")
