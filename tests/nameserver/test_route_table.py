"""The route table: facts one by one, then any history against a plain model."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pocketmq.nameserver.route_table import (
    BrokerAddresses,
    BrokerState,
    Route,
    RouteTable,
    TopicQueues,
    Verdict,
)
from pocketmq.proto.errors import Overloaded

EXPIRY_MS = 120_000
ALL = TopicQueues(8, 8, 6)


def table(brokers_max: int = 100) -> RouteTable:
    return RouteTable(expiry_ms=EXPIRY_MS, brokers_max=brokers_max)


def broker(
    name: str = "broker-a", *topics: str, id: int = 0, address: str = "h:1", version: int = 1
) -> BrokerState:
    """Return a broker's whole state."""
    return BrokerState("c", name, id, address, version, dict.fromkeys(topics, ALL))


def heartbeat(state: BrokerState) -> BrokerState:
    return replace(state, topics=None)


def test_an_unknown_topic_has_no_route() -> None:
    assert table().route("T") is None


def test_a_route_names_the_queues_and_the_brokers() -> None:
    routes = table()
    routes.register(broker("broker-b", "T", address="h:2"), 1, 0)
    routes.register(broker("broker-a", "T", "U"), 2, 0)
    routes.register(broker("broker-a", "T", "U", id=1, address="h:3"), 3, 0)

    assert routes.route("T") == Route(
        "T",
        {"broker-a": ALL, "broker-b": ALL},
        (
            BrokerAddresses("c", "broker-a", {0: "h:1", 1: "h:3"}),
            BrokerAddresses("c", "broker-b", {0: "h:2"}),
        ),
    )
    assert [one.name for one in routes.cluster()] == ["broker-a", "broker-b"]
    assert len(routes) == 3
    routes.check()


def change(since: int, version: int, *topics: str, gone: tuple[str, ...] = ()) -> BrokerState:
    """Return what changed of broker-a."""
    return replace(broker("broker-a", *topics, version=version), changed_since=since, gone=gone)


def test_a_change_leaves_what_it_does_not_name() -> None:
    routes, whole = table(), broker("broker-a", "T", "U")
    routes.register(whole, 1, 0)
    routes.register(broker("broker-b", "U", address="h:2"), 2, 0)

    assert routes.register(change(1, 2, "V", gone=("U", "X")), 1, 9) is Verdict.TAKEN
    assert routes.register(change(2, 5, "W"), 1, 9) is Verdict.TAKEN

    assert routes.topics(include_system=True) == ["T", "U", "V", "W"]
    assert [one.name for one in (routes.route("U") or pytest.fail("no route")).brokers] == [
        "broker-b"
    ]
    assert whole.topics == {"T": ALL, "U": ALL}
    assert routes.register(heartbeat(broker("broker-a", version=5)), 1, 9) is Verdict.TAKEN
    routes.check()
    assert routes.expire(9 + EXPIRY_MS - 1) != []
    routes.unregister("broker-a", 0, 1)
    assert routes.topics(include_system=True) == []
    routes.check()


@pytest.mark.parametrize(
    ("session", "asked"),
    [
        (1, change(3, 4, "V")),
        (2, change(1, 4, "V")),
        (1, replace(change(1, 4, "V"), address="h:9")),
    ],
)
def test_a_change_of_another_state_asks_for_the_whole(session: int, asked: BrokerState) -> None:
    routes = table()
    assert routes.register(asked, session, 0) is Verdict.SEND_TOPICS
    routes.register(broker("broker-a", "T"), 1, 0)
    assert routes.register(asked, session, 0) is Verdict.SEND_TOPICS
    assert routes.topics(include_system=True) == ["T"]
    routes.check()


def test_a_change_of_a_copy_shows_when_the_master_is_gone() -> None:
    routes = table()
    routes.register(broker("broker-a", "T"), 1, 0)
    routes.register(broker("broker-a", "T", id=1, address="h:3"), 2, 0)
    asked = replace(change(1, 2, "V"), id=1, address="h:3")
    assert routes.register(asked, 2, 0) is Verdict.TAKEN
    assert routes.topics(include_system=True) == ["T"]
    routes.check()
    routes.unregister("broker-a", 0, 1)
    assert routes.topics(include_system=True) == ["T", "V"]
    routes.check()


def test_each_registration_is_the_whole_state() -> None:
    routes = table()
    routes.register(broker("broker-a", "T", "U"), 1, 0)
    routes.register(broker("broker-a", "U", "V", address="h:9", version=2), 1, 0)

    assert routes.topics(include_system=True) == ["U", "V"]
    assert routes.route("T") is None
    assert routes.cluster() == [BrokerAddresses("c", "broker-a", {0: "h:9"})]
    routes.check()


def test_changed_queue_numbers_and_permissions_replace_the_old() -> None:
    routes = table()
    routes.register(broker("broker-a", "T"), 1, 0)
    changed = replace(broker("broker-a"), topics={"T": TopicQueues(16, 4, 4)})
    routes.register(changed, 1, 0)

    route = routes.route("T")
    assert route is not None
    assert route.queues == {"broker-a": TopicQueues(16, 4, 4)}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, Verdict.TAKEN),
        ({"data_version": 2}, Verdict.SEND_TOPICS),
        ({"address": "h:2"}, Verdict.SEND_TOPICS),
        ({"cluster": "d"}, Verdict.SEND_TOPICS),
        ({"id": 1}, Verdict.SEND_TOPICS),
        ({"name": "broker-b"}, Verdict.SEND_TOPICS),
    ],
    ids=["same", "version", "address", "cluster", "id", "name"],
)
def test_a_heartbeat_is_good_for_what_was_registered(
    change: dict[str, object], verdict: Verdict
) -> None:
    routes, state = table(), broker("broker-a", "T")
    routes.register(state, 1, 0)

    assert routes.register(replace(heartbeat(state), **change), 1, 0) is verdict  # type: ignore[arg-type]
    assert routes.route("T") is not None


def test_a_heartbeat_on_a_new_stream_must_bring_the_topics() -> None:
    routes, state = table(), broker("broker-a", "T")
    routes.register(state, 1, 0)

    assert routes.register(heartbeat(state), 2, 0) is Verdict.SEND_TOPICS


def test_a_heartbeat_puts_the_expiry_off() -> None:
    routes, state = table(), broker("broker-a", "T")
    routes.register(state, 1, 0)
    routes.register(heartbeat(state), 1, 100_000)

    assert routes.expire(EXPIRY_MS) == []
    assert routes.expire(100_000 + EXPIRY_MS - 1) == []
    assert routes.expire(100_000 + EXPIRY_MS) == [state]
    assert routes.route("T") is None
    assert len(routes) == 0
    routes.check()


def test_only_the_silent_brokers_expire() -> None:
    routes = table()
    routes.register(broker("broker-a", "T"), 1, 0)
    routes.register(broker("broker-b", "T"), 2, 1)

    assert [state.name for state in routes.expire(EXPIRY_MS)] == ["broker-a"]
    route = routes.route("T")
    assert route is not None
    assert list(route.queues) == ["broker-b"]


def test_a_broker_that_expired_comes_back_with_its_topics() -> None:
    routes, state = table(), broker("broker-a", "T")
    routes.register(state, 1, 0)
    routes.expire(EXPIRY_MS)

    assert routes.register(heartbeat(state), 1, EXPIRY_MS) is Verdict.SEND_TOPICS
    assert routes.register(state, 1, EXPIRY_MS) is Verdict.TAKEN
    assert routes.route("T") is not None


def test_the_end_of_a_stream_removes_its_broker() -> None:
    routes = table()
    routes.register(broker("broker-a", "T"), 1, 0)

    assert routes.unregister("broker-a", 0, 1)
    assert not routes.unregister("broker-a", 0, 1)
    assert routes.route("T") is None
    routes.check()


def test_the_end_of_an_old_stream_does_not_harm_the_new_one() -> None:
    routes = table()
    routes.register(broker("broker-a", "T"), 1, 0)
    routes.register(broker("broker-a", "T"), 2, 0)

    assert not routes.unregister("broker-a", 0, 1)
    assert routes.route("T") is not None


def test_of_two_brokers_with_one_name_and_id_the_newest_wins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = table()
    with caplog.at_level(logging.WARNING):
        routes.register(broker("broker-a", "T", address="h:1"), 1, 0)
        routes.register(broker("broker-a", "T", address="h:2"), 2, 0)

    assert "old_address=h:1" in caplog.text
    assert routes.register(broker("broker-a", "T", address="h:1"), 1, 0) is Verdict.SUPERSEDED
    assert routes.cluster() == [BrokerAddresses("c", "broker-a", {0: "h:2"})]

    routes.unregister("broker-a", 0, 2)
    assert routes.register(broker("broker-a", "T", address="h:1"), 1, 0) is Verdict.TAKEN


def test_without_a_master_the_queues_are_read_only() -> None:
    routes = table()
    routes.register(broker("broker-a", "T", id=0), 1, 0)
    routes.register(broker("broker-a", "T", "U", id=1), 2, 0)
    assert routes.route("U") is None, "the master's topics count"

    routes.unregister("broker-a", 0, 1)

    route = routes.route("T")
    assert route is not None
    assert route.queues == {"broker-a": TopicQueues(8, 8, 4)}
    assert routes.route("U") is not None
    routes.check()


def test_too_many_brokers_are_refused_with_the_setting_to_change() -> None:
    routes = table(brokers_max=2)
    routes.register(broker("a"), 1, 0)
    routes.register(broker("b"), 2, 0)

    with pytest.raises(Overloaded, match=r"2 .* limit is 2.*nameserver\.brokers_max"):
        routes.register(broker("c"), 3, 0)
    assert routes.register(broker("b", "T"), 2, 0) is Verdict.TAKEN


def test_the_topics_that_brokers_make_are_listed_only_on_demand() -> None:
    routes = table()
    own = ("TBW102", "c", "broker-a", "c_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_c", "SELF_TEST_TOPIC")
    routes.register(broker("broker-a", "T", "%RETRY%g", *own), 1, 0)

    assert routes.topics(include_system=False) == ["%RETRY%g", "T"]
    assert routes.topics(include_system=True) == sorted(["%RETRY%g", "T", *own])


# ---------------------------------------------------------------- any history

NAMES = st.sampled_from(["a", "b"])
IDS = st.integers(0, 2)
TOPICS = st.frozensets(st.sampled_from("TUVW"))
QUEUES = st.builds(TopicQueues, st.integers(0, 8), st.integers(0, 8), st.integers(0, 7))


class AnyHistory(RuleBasedStateMachine):
    """The table against a model: a dict of live brokers, and everything else looked up in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = table(brokers_max=5)
        self.live: dict[tuple[str, int], tuple[BrokerState, int, int]] = {}
        self.sessions = 0
        self.now_ms = 0

    @rule(
        name=NAMES,
        id=IDS,
        topics=TOPICS,
        queues=QUEUES,
        address=st.sampled_from(["h:1", "h:2"]),
        old=st.integers(0, 3),
    )
    def register(
        self,
        name: str,
        id: int,
        topics: frozenset[str],
        queues: TopicQueues,
        address: str,
        old: int,
    ) -> None:
        self.sessions += old == 0
        session = max(1, self.sessions - old)
        state = BrokerState("c", name, id, address, 1, dict.fromkeys(topics, queues))
        known = self.live.get((name, id))
        if known is None and len(self.live) == 5:
            with pytest.raises(Overloaded):
                self.table.register(state, session, self.now_ms)
            return
        superseded = known is not None and known[1] > session
        verdict = self.table.register(state, session, self.now_ms)
        assert verdict is (Verdict.SUPERSEDED if superseded else Verdict.TAKEN)
        if not superseded:
            self.live[name, id] = (state, session, self.now_ms)

    @rule(name=NAMES, id=IDS, session=st.integers(1, 20), version=st.integers(1, 2))
    def renew(self, name: str, id: int, session: int, version: int) -> None:
        known = self.live.get((name, id))
        state = known[0] if known else broker(name, id=id)
        verdict = self.table.register(
            replace(state, topics=None, data_version=version), session, self.now_ms
        )
        if known and known[1] > session:
            assert verdict is Verdict.SUPERSEDED
        elif known and known[1] == session:
            assert verdict is (Verdict.TAKEN if version == 1 else Verdict.SEND_TOPICS)
            self.live[name, id] = (known[0], session, self.now_ms)
        else:
            assert verdict is Verdict.SEND_TOPICS

    @rule(name=NAMES, id=IDS, session=st.integers(1, 20))
    def unregister(self, name: str, id: int, session: int) -> None:
        known = self.live.get((name, id))
        expected = known is not None and known[1] == session
        assert self.table.unregister(name, id, session) is expected
        if expected:
            del self.live[name, id]

    @rule(by_ms=st.integers(0, EXPIRY_MS))
    def expire(self, by_ms: int) -> None:
        self.now_ms += by_ms
        silent = {key for key, known in self.live.items() if self.now_ms - known[2] >= EXPIRY_MS}
        assert {(state.name, state.id) for state in self.table.expire(self.now_ms)} == silent
        for key in silent:
            del self.live[key]

    @invariant()
    def routes_are_those_of_the_model(self) -> None:
        self.table.check()
        names = sorted({name for name, _ in self.live})
        groups = {n: {i: known[0] for (m, i), known in self.live.items() if m == n} for n in names}
        for topic in "TUVW":
            queues = {}
            for name, group in groups.items():
                speaker = group[min(group)]
                assert speaker.topics is not None
                if topic in speaker.topics:
                    found = speaker.topics[topic]
                    mask = 7 if speaker.id == 0 else 5
                    queues[name] = replace(found, permission=found.permission & mask)
            route = self.table.route(topic)
            assert (route.queues if route else {}) == queues
        assert {one.name: dict(one.addresses) for one in self.table.cluster()} == {
            name: {id: state.address for id, state in group.items()}
            for name, group in groups.items()
        }


TestAnyHistory = pytest.mark.slow(AnyHistory.TestCase)
