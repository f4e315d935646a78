"""A list shows the names that its reader may see, also where all names of a kind are allowed but one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from pocketmq.proto.access.listing import SeenNames, visible
from pocketmq.proto.access.policies import Need, Policies, Policy, Resource, of_topic, parse_actions

TOPICS = (
    "open",
    "secret",
    "%RETRY%reader",
    "%DLQ%reader",
    "%RETRY%hidden",
    "%DLQ%hidden",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "DefaultCluster_REPLY_TOPIC",
)


class Reader:
    """A user with policies such as "Deny All Topic:secret"."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.user = self
        rows = [text.split() for text in texts]
        self._policies = Policies(
            [
                Policy(
                    Resource.parse(resource), parse_actions(actions.split(",")), (), rule == "Allow"
                )
                for rule, actions, resource in rows
            ]
        )

    def may(self, call: object, need: Need) -> bool:
        return self._policies.decide_all(need, "10.0.0.1", "DefaultCluster").allowed


def seen(*texts: str) -> list[str]:
    return visible(partial(Reader(texts).may, None), TOPICS, str, of_topic)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Allow All *"], TOPICS),
        (["Allow List Topic:*"], TOPICS[:2]),
        (["Allow All Topic:*", "Deny All Topic:secret"], TOPICS[:1]),
        (["Allow List Topic:*", "Allow List Group:reader"], TOPICS[:4]),
        (["Allow All Topic:*", "Allow All Group:*", "Deny All Group:hidden"], TOPICS[:4]),
        (["Allow All Topic:*", "Allow All Group:*"], TOPICS[:6]),
        (["Allow All Topic:*", "Allow All Group:*", "Allow Get Cluster:*"], TOPICS),
        (["Allow All *", "Deny All Group:hidden"], TOPICS[:4]),
    ],
)
def test_topics_of_groups_and_of_the_system_are_shown_to_who_may_see_those(
    texts: list[str], expected: Sequence[str]
) -> None:
    assert seen(*texts) == list(expected)


def test_hidden_topics_are_counted_once_each() -> None:
    reader = Reader(
        [
            "Allow Sub Topic:*",
            "Allow Get Group:*",
            "Deny Sub Topic:secret*",
            "Deny All Group:hidden",
        ]
    )
    names = SeenNames(cast("Any", reader))

    topics = ("open", "secret", "secret", "secret2", "%RETRY%reader", "%RETRY%hidden")
    assert [names.has_topic(one) for one in topics] == [True, False, False, False, True, False]
    assert names.hidden_topics == 3
    assert [names.has_group(one) for one in ("reader", "hidden")] == [True, False]
