"""Names of topics and groups."""

import pytest

from pocketmq.proto.errors import InvalidName
from pocketmq.proto.topics import (
    check_group,
    check_new_group,
    check_new_topic,
    check_topic,
    dead_letter_topic,
    is_system_topic,
    retry_topic,
    system_topic_queues,
)


@pytest.mark.parametrize("name", ["orders", "A-1_b|c%", "t" * 127, "%RETRY%" + "g" * 120])
def test_good_topic_names(name: str) -> None:
    assert check_new_topic(name) == check_topic(name) == name


@pytest.mark.parametrize("name", ["localhost.localdomain", "a b", "é", "t" * 255, "日" * 85, "..."])
def test_what_a_store_can_hold_may_exist_but_not_be_created(name: str) -> None:
    assert check_topic(name) == check_group(name) == name
    with pytest.raises(InvalidName):
        check_new_topic(name)
    with pytest.raises(InvalidName):
        check_new_group(name)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "empty"),
        ("t" * 256, "255"),
        ("日" * 86, "258 bytes"),
        ("a/b", "'/'"),
        ("/etc", "'/'"),
        ("a\0b", "x00"),
        ("a\nb", r"\\n"),
        ("a\ud800", "ud800"),
        (".", "'.'"),
        ("..", r"'\.\.'"),
        ("a@b", "'@'"),
    ],
)
def test_what_a_store_cannot_hold_is_no_topic(name: str, what: str) -> None:
    for check in (check_topic, check_new_topic):
        with pytest.raises(InvalidName, match=what):
            check(name)


@pytest.mark.parametrize(
    ("name", "what"), [("t" * 128, "127"), ("a b", "' '"), ("é", "'é'"), ("a.b", "'.'")]
)
def test_a_bad_new_name_is_told_why(name: str, what: str) -> None:
    with pytest.raises(InvalidName, match=what):
        check_new_topic(name)


def test_a_new_group_may_have_120_characters() -> None:
    assert check_new_group("g" * 120)
    with pytest.raises(InvalidName, match="120"):
        check_new_group("g" * 121)


def test_a_group_may_be_javas_proxys() -> None:
    assert check_group("group@broadcast")
    with pytest.raises(InvalidName):
        check_new_group("group@broadcast")


def test_derived_topics_of_the_longest_group_are_topics() -> None:
    assert check_new_topic(retry_topic("g" * 120))
    assert check_new_topic(dead_letter_topic("g" * 120))


def test_system_topics_are_known() -> None:
    names = [name for name, _, _ in system_topic_queues("DefaultCluster", "broker-a")]

    assert "rmq_sys_wheel_timer" in names
    assert len(names) == len(set(names)) == 15
    assert is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")
