"""Policies: what covers what, and which one decides."""

from __future__ import annotations

from itertools import permutations

import pytest

from pocketmq.proto.access.policies import (
    ALL,
    CREATE,
    DELETE,
    GET,
    PUB,
    SUB,
    UPDATE,
    Judgement,
    Need,
    Policies,
    Policy,
    Resource,
    action_names,
    expanded,
    merged,
    of_cluster,
    of_group,
    of_topic,
    parse_actions,
    parse_source,
    to_see_topic,
)
from pocketmq.proto.errors import ConfigError

HERE = "127.0.0.1"


def policy(resource: str, actions: str, *, allow: bool = True, sources: str = "") -> Policy:
    places = tuple(parse_source(one) for one in sources.split(",") if one)
    return Policy(Resource.parse(resource), parse_actions(actions.split(",")), places, allow)


def decided(policies: list[Policy], need: Need, host: str = HERE) -> Judgement:
    return Policies(policies).decide(need, host)


@pytest.mark.parametrize(
    ("text", "covered", "not_covered"),
    [
        ("*", ["Topic:a", "Group:b", "Cluster:c"], []),
        ("Topic:*", ["Topic:a", "Topic:*"], ["Group:a"]),
        ("topic:orders*", ["Topic:orders", "Topic:orders-eu"], ["Topic:order", "Group:orders"]),
        ("Topic:orders*eu", ["Topic:orders-us"], ["Topic:order"]),
        ("Topic:orders", ["Topic:orders"], ["Topic:orders-eu", "Topic:Orders", "Topic:*"]),
        ("GROUP:billing", ["Group:billing"], ["Topic:billing"]),
    ],
)
def test_a_resource_covers(text: str, covered: list[str], not_covered: list[str]) -> None:
    resource = Resource.parse(text)

    def covers(one: str) -> bool:
        kind, _, name = one.partition(":")
        return resource.covers(Need(kind, name, PUB))

    assert [one for one in covered if not covers(one)] == []
    assert [one for one in not_covered if covers(one)] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "Topic:",
        "Cluster:",
        "Namespace: ",
        "Queue:a",
        "Topic",
        ":a",
        f"Topic:{'a' * 600}",
    ],
)
def test_what_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a resource"):
        Resource.parse(text)


def test_a_resource_is_written_as_it_is_read() -> None:
    for text in ("*", "Topic:*", "Group:a*", "Cluster:c", "Namespace:n"):
        assert str(Resource.parse(text)) == text


def test_the_measured_user_of_apache_is_decided_about_alike() -> None:
    alice = [
        policy("Topic:orders", "Pub,Sub"),
        policy("Topic:orders*", "Pub", allow=False),
        policy("Group:billing", "Sub"),
    ]
    any_way = PUB | SUB
    assert decided(alice, of_topic("orders", any_way)).allowed
    denied = decided(alice, of_topic("orders-eu", any_way))
    assert (denied.allowed, denied.reason) == (False, "the decision is deny")
    unknown = decided(alice, of_topic("secret", any_way))
    assert (unknown.allowed, unknown.reason) == (False, "no matched policies")
    assert decided(alice, of_topic("%RETRY%billing", SUB)).allowed
    assert decided(alice, of_topic("%DLQ%billing", SUB)).allowed
    assert not decided(alice, of_group("other")).allowed


@pytest.mark.parametrize("denied", ["Pub", "Sub", "Get"])
def test_a_deny_of_one_action_leaves_the_others_to_see_a_topic(denied: str) -> None:
    allow = policy("Topic:orders*", "Pub,Sub,Get")
    policies = [allow, policy("Topic:orders-audit", denied, allow=False)]

    found = decided(policies, to_see_topic("orders-audit"))

    assert (found.allowed, found.policy) == (True, allow)
    assert not decided(policies, of_topic("orders-audit", PUB | SUB | GET)).allowed


def test_a_topic_of_which_no_action_is_allowed_is_not_seen() -> None:
    deny = policy("Topic:orders-audit", "Sub", allow=False)
    found = decided([policy("Topic:orders*", "Sub"), deny], to_see_topic("orders-audit"))
    assert (found.allowed, found.policy) == (False, deny)
    assert decided([policy("Topic:orders*", "Sub")], to_see_topic("bills")).policy is None


def test_the_first_in_order_decides_however_they_are_listed() -> None:
    in_order = [
        policy("Topic:orders", "Pub", allow=False),
        policy("Topic:orders", "Pub"),
        policy("Topic:ord*", "Pub"),
        policy("Topic:o*", "All", allow=False),
        policy("Topic:*", "Pub"),
        policy("*", "Pub", allow=False),
    ]
    need = of_topic("orders", PUB)
    for first in range(len(in_order)):
        rest = in_order[first:]
        for listed in permutations(rest):
            assert decided(list(listed), need).policy is rest[0]


@pytest.mark.parametrize("denied", ["Topic:secret", "Topic:secret*", "Topic:*"])
def test_all_of_a_type_is_denied_where_some_of_it_is(denied: str) -> None:
    deny = policy(denied, "Sub", allow=False)
    policies = [policy("Topic:*", "All"), deny]
    found = decided(policies, of_topic("*", SUB | GET))
    assert (found.allowed, found.policy) == (False, deny)
    assert decided(policies, of_topic("*", PUB)).allowed
    elsewhere = policy(denied, "Sub", allow=False, sources="11.0.0.0/8")
    others = [policy("Group:secret", "Sub", allow=False), policy("Topic:secret", "Sub"), elsewhere]
    assert decided([policy("Topic:*", "All"), *others], of_topic("*", SUB)).allowed
    assert not decided([policy("Topic:secret*", "All")], of_topic("*", SUB)).allowed


def test_default_policies_are_asked_only_where_no_other_matches() -> None:
    policies = Policies([policy("Topic:a", "Pub", allow=False)], [policy("*", "All")])
    assert not policies.decide(of_topic("a", PUB), HERE).allowed
    found = policies.decide(of_topic("a", SUB), HERE)
    assert (found.allowed, found.is_default) == (True, True)


@pytest.mark.parametrize(
    ("host", "sources", "matches"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "192.168.0.1,10.1.2.3", True),
        ("::ffff:10.1.2.3", "10.0.0.0/8", True),
        ("fe80::1%eth0", "fe80::/16", True),
        ("::1", "127.0.0.0/8", False),
        ("not an address", "0.0.0.0/0", False),
        ("not an address", "", True),
    ],
)
def test_sources_are_compared_with_the_callers_address(
    host: str, sources: str, *, matches: bool
) -> None:
    found = decided([policy("*", "All", sources=sources)], of_group("g"), host)
    assert found.allowed is matches


def test_actions_are_named_and_read() -> None:
    assert parse_actions(["pub", "SUB"]) == PUB | SUB
    assert parse_actions(["All", "Pub"]) == ALL
    assert action_names(ALL) == ["All"]
    assert action_names(GET | PUB) == ["Pub", "Get"]
    for bad in (["Any"], ["Pubb"], []):
        with pytest.raises(ConfigError):
            parse_actions(bad)


def test_a_policy_takes_the_place_of_one_of_the_same_resource() -> None:
    old = [policy("Topic:a", "Pub"), policy("Topic:b", "Pub")]
    new = policy("Topic:a", "Sub", allow=False)
    assert merged(old, [new]) == (new, old[1])


@pytest.mark.parametrize(
    ("topic", "actions", "on_cluster", "on_groups"),
    [
        ("SCHEDULE_TOPIC_XXXX", SUB, GET, SUB),
        ("RMQ_SYS_TRANS_HALF_TOPIC", SUB | GET, GET, SUB | GET),
        ("rmq_sys_wheel_timer", PUB | SUB | GET, GET | UPDATE, SUB | GET),
        ("c_REPLY_TOPIC", DELETE, UPDATE, DELETE),
    ],
)
def test_a_system_topic_needs_the_cluster_and_every_topic_and_group(
    topic: str, actions: int, on_cluster: int, on_groups: int
) -> None:
    assert expanded(of_topic(topic, actions), "c") == (
        of_cluster("c", on_cluster),
        of_topic("*", actions),
        of_group("*", on_groups),
    )


def test_other_topics_need_what_they_are() -> None:
    for need in (of_topic("orders", SUB), of_topic("x_REPLY_TOPIC", SUB), of_group("g")):
        assert expanded(need, "c") == (need,)


def test_neither_all_topics_nor_a_deny_elsewhere_opens_a_system_topic() -> None:
    need = of_topic("SCHEDULE_TOPIC_XXXX", SUB)

    def may(*policies: Policy) -> bool:
        return Policies(policies).decide_all(need, HERE, "c").allowed

    named = policy("Topic:SCHEDULE_TOPIC_XXXX", "Sub")
    everything = [policy("Topic:*", "Sub"), policy("Group:*", "Sub"), policy("Cluster:c", "Get")]
    assert may(*everything)
    assert may(policy("*", "All"))
    assert not may(named, *everything[:2])
    assert not may(*everything, policy("Topic:secret", "Sub", allow=False))
    assert not may(policy("*", "All"), policy("Group:secret", "Sub", allow=False))


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_a_topic_of_a_group_needs_the_same_of_the_group_and_a_send_what_its_consumers_have(
    topic: str,
) -> None:
    assert of_topic(topic, PUB) == of_topic(topic, SUB) == of_group("g", SUB)
    for actions in (SUB | GET, CREATE, UPDATE, DELETE):
        assert of_topic(topic, actions) == of_group("g", actions)
    assert of_topic(topic, PUB | SUB | GET) == of_group("g", SUB | GET)
