"""The route table: facts one by one, then any history against a plain model."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pocketmq.nameserver.config import NameServerConfig
from pocketmq.nameserver.route_table import (
    BrokerAddresses,
    BrokerState,
    Replica,
    Role,
    RouteTable,
    TopicQueues,
    TopicRoute,
    Verdict,
)
from pocketmq.proto.errors import MasterFenced, Overloaded
from pocketmq.proto.topics import PERMISSION_WRITE

EXPIRY_MS = 120_000
ALL = TopicQueues(8, 8, 6)


def table(brokers_max: int = 100) -> RouteTable:
    return RouteTable(NameServerConfig(broker_expiry_ms=EXPIRY_MS, brokers_max=brokers_max))


def broker(
    name: str = "broker-a", *topics: str, id: int = 0, address: str = "h:1", version: int = 1
) -> BrokerState:
    """Return a broker's whole state."""
    return BrokerState("c", name, id, address, version, dict.fromkeys(topics, ALL))


def replica(id: int, role: Role, epoch: int, *topics: str, address: str = "") -> BrokerState:
    """Return the whole state of a replica of broker-a."""
    plain = broker("broker-a", *topics, id=id, address=address or f"h:{id}")
    return replace(plain, role=role, epoch=epoch)


def master(id: int, epoch: int, *topics: str, address: str = "") -> BrokerState:
    return replica(id, Role.MASTER, epoch, *topics, address=address)


def follower(id: int, epoch: int, *topics: str) -> BrokerState:
    return replica(id, Role.FOLLOWER, epoch, *topics)


def addresses(routes: RouteTable) -> dict[int, str]:
    """Return the addresses of broker-a, the master's at 0."""
    return dict(next((one.addresses for one in routes.cluster()), {}))


def heartbeat(state: BrokerState) -> BrokerState:
    return replace(state, topics=None)


def test_an_unknown_topic_has_no_route() -> None:
    assert table().route("T") is None


def test_a_route_names_the_queues_and_the_brokers() -> None:
    routes = table()
    routes.register(broker("broker-b", "T", address="h:2"), 1, 0)
    routes.register(broker("broker-a", "T", "U"), 2, 0)
    routes.register(broker("broker-a", "T", "U", id=1, address="h:3"), 3, 0)

    assert routes.route("T") == TopicRoute(
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
    routes.unregister("broker-a", 0, 1, now_ms=0)
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
    routes.unregister("broker-a", 0, 1, now_ms=0)
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

    assert routes.unregister("broker-a", 0, 1, now_ms=0)
    assert not routes.unregister("broker-a", 0, 1, now_ms=0)
    assert routes.route("T") is None
    routes.check()


def test_the_end_of_an_old_stream_does_not_harm_the_new_one() -> None:
    routes = table()
    routes.register(broker("broker-a", "T"), 1, 0)
    routes.register(broker("broker-a", "T"), 2, 0)

    assert not routes.unregister("broker-a", 0, 1, now_ms=0)
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

    routes.unregister("broker-a", 0, 2, now_ms=0)
    assert routes.register(broker("broker-a", "T", address="h:1"), 1, 0) is Verdict.TAKEN


def test_without_a_master_the_queues_are_read_only() -> None:
    routes = table()
    routes.register(broker("broker-a", "T", id=0), 1, 0)
    routes.register(broker("broker-a", "T", "U", id=1), 2, 0)
    assert routes.route("U") is None, "the master's topics count"

    routes.unregister("broker-a", 0, 1, now_ms=0)

    route = routes.route("T")
    assert route is not None
    assert route.queues == {"broker-a": TopicQueues(8, 8, 4)}
    assert routes.route("U") is not None
    routes.check()


def test_a_replica_set_between_two_masters_keeps_the_queues_of_the_last() -> None:
    routes = table()
    routes.register(follower(2, 7), 2, 0)
    routes.register(master(1, 7, "T"), 1, 0)
    routes.register(replace(master(1, 7, "U"), changed_since=1, data_version=2), 1, 0)

    routes.unregister("broker-a", 1, 1, now_ms=0)

    assert routes.route("T") == TopicRoute(
        "T",
        {"broker-a": ALL},
        (BrokerAddresses("c", "broker-a", {2: "h:2"}, (Replica(2, "h:2", Role.FOLLOWER, 7),)),),
    )
    assert routes.topics(include_system=True) == ["T", "U"]
    routes.check()

    routes.register(master(2, 8, "T"), 3, 0)
    assert routes.topics(include_system=True) == ["T"]
    assert addresses(routes) == {0: "h:2"}
    routes.check()


def test_a_replica_set_without_a_replica_has_no_queues() -> None:
    routes = table()
    routes.register(master(1, 7, "T"), 1, 0)
    routes.register(follower(2, 7), 2, 0)
    routes.unregister("broker-a", 1, 1, now_ms=0)

    routes.unregister("broker-a", 2, 2, now_ms=0)
    assert routes.route("T") is None
    routes.register(follower(2, 7), 3, 0)

    assert routes.topics(include_system=True) == []
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


# ---------------------------------------------------------------- replica sets


def test_a_deposed_master_that_wakes_does_not_take_the_route() -> None:
    routes = table()
    routes.register(master(1, 7, "T"), 1, 0)
    routes.register(master(2, 8, "T"), 2, 0)
    assert addresses(routes) == {0: "h:2"}, "a higher epoch ends the lower at once"

    for session, state in ((1, heartbeat(master(1, 7))), (1, master(1, 7, "T")), (3, master(1, 7))):
        with pytest.raises(MasterFenced, match=r"claims epoch 7, but epoch 8 is valid") as raised:
            routes.register(state, session, 0)
        assert raised.value.details == {"field": "epoch", "limit": "8", "value": "7"}

    assert addresses(routes) == {0: "h:2"}
    assert not routes.unregister("broker-a", 1, 1, now_ms=0)
    routes.check()


def test_a_deposed_master_comes_back_as_a_follower() -> None:
    routes = table()
    routes.register(master(1, 7, "T"), 1, 0)
    routes.register(master(2, 8, "T"), 2, 0)

    beat = heartbeat(follower(1, 8))
    assert routes.register(beat, 1, 0) is Verdict.SEND_TOPICS
    assert routes.register(follower(1, 8, "T"), 1, 0) is Verdict.TAKEN
    assert routes.register(beat, 1, 0) is Verdict.TAKEN

    assert routes.cluster() == [
        BrokerAddresses(
            "c",
            "broker-a",
            {0: "h:2", 1: "h:1"},
            (Replica(1, "h:1", Role.FOLLOWER, 8), Replica(2, "h:2", Role.MASTER, 8)),
        )
    ]
    routes.check()


def test_a_follower_that_tells_of_a_higher_epoch_ends_the_master_of_the_lower() -> None:
    routes = table()
    routes.register(master(1, 7, "T", "U"), 1, 0)
    routes.register(follower(2, 7, "T"), 2, 0)
    routes.register(heartbeat(follower(2, 8)), 2, 0)
    route = routes.route("T")
    assert route is not None
    assert route.queues == {"broker-a": ALL}, "another master will be elected"
    assert addresses(routes) == {2: "h:2"}
    with pytest.raises(MasterFenced, match=r"epoch 8 is valid\. It must become a follower"):
        routes.register(master(1, 7, "T"), 1, 0)

    routes.register(master(2, 8, "T"), 2, 0)
    assert addresses(routes) == {0: "h:2"}
    routes.check()


def test_a_master_that_told_of_a_higher_epoch_is_not_the_master_of_the_lower() -> None:
    routes = table()
    routes.register(master(1, 7, "T"), 1, 0)
    assert routes.register(heartbeat(master(1, 9)), 1, 0) is Verdict.SEND_TOPICS
    assert addresses(routes) == {}
    assert routes.register(master(1, 9, "T"), 1, 0) is Verdict.TAKEN
    assert addresses(routes) == {0: "h:1"}
    routes.check()


def test_an_epoch_has_one_master() -> None:
    routes = table()
    routes.register(master(1, 7, "T"), 1, 0)
    with pytest.raises(MasterFenced, match="epoch 7 is valid, and its master is replica 1"):
        routes.register(master(2, 7, "T"), 2, 0)
    routes.unregister("broker-a", 1, 1, now_ms=0)
    with pytest.raises(MasterFenced):
        routes.register(master(2, 7, "T"), 2, 0)

    assert routes.register(master(1, 7, "T", address="h:9"), 3, 0) is Verdict.TAKEN
    assert addresses(routes) == {0: "h:9"}
    routes.check()


def test_of_two_sessions_of_one_replica_the_higher_epoch_wins() -> None:
    routes = table()
    routes.register(follower(1, 8, "T"), 1, 0)
    assert routes.register(follower(1, 7, "T"), 2, 0) is Verdict.SUPERSEDED
    assert routes.register(follower(1, 8, "T"), 3, 0) is Verdict.TAKEN
    assert routes.register(follower(1, 8, "T"), 1, 0) is Verdict.SUPERSEDED
    assert routes.register(follower(1, 9, "T"), 1, 0) is Verdict.TAKEN
    routes.check()


def test_an_epoch_is_known_while_any_broker_of_the_name_lives() -> None:
    routes = table()
    routes.register(master(2, 8, "T"), 1, 0)
    routes.register(follower(3, 6, "T"), 2, 0)
    routes.unregister("broker-a", 2, 1, now_ms=0)
    for now_ms in range(0, 10 * EXPIRY_MS, EXPIRY_MS // 2):
        routes.register(follower(3, 6, "T"), 2, now_ms)
        assert routes.expire(now_ms) == []
    routes.unregister("broker-a", 3, 2, now_ms=0)

    # Those that are refused live as well.
    for now_ms in range(10 * EXPIRY_MS, 20 * EXPIRY_MS, EXPIRY_MS // 2):
        with pytest.raises(MasterFenced, match="epoch 8 is valid"):
            routes.register(master(1, 7, "T"), 3, now_ms)
        routes.expire(now_ms)

    routes.expire(21 * EXPIRY_MS)
    assert routes.register(master(1, 7, "T"), 4, 21 * EXPIRY_MS) is Verdict.TAKEN
    routes.check()


def test_a_broker_without_replicas_does_not_take_the_route_of_a_replica_set() -> None:
    routes = table()
    routes.register(broker("broker-a", "T"), 1, 0)
    routes.register(master(1, 1, "T"), 2, 0)
    assert addresses(routes) == {0: "h:1"}
    with pytest.raises(MasterFenced, match="id 0, is no longer the master: it claims epoch 0"):
        routes.register(broker("broker-a", "T"), 3, 0)
    routes.check()


def test_the_epochs_of_names_without_a_broker_are_bounded() -> None:
    routes = table(brokers_max=3)
    for number in range(10):
        one = replace(master(1, 5), name=f"b{number}")
        routes.register(one, number, number)
        routes.unregister(one.name, 1, number, now_ms=0)
        routes.check()

    for number, kept in ((6, False), (9, True)):
        older = replace(master(1, 4), name=f"b{number}")
        if kept:
            with pytest.raises(MasterFenced):
                routes.register(older, 11, 11)
        else:
            assert routes.register(older, 11, 11) is Verdict.TAKEN
    routes.check()


# ---------------------------------------------------------------- any history

NAMES = st.sampled_from(["a", "b"])
IDS = st.integers(0, 2)
TOPICS = st.frozensets(st.sampled_from("TUVW"))
QUEUES = st.builds(TopicQueues, st.integers(0, 8), st.integers(0, 8), st.integers(0, 7))
#: Roles, and epochs of replicas.
CLAIMS = st.sampled_from([None, Role.MASTER, Role.FOLLOWER]).flatmap(
    lambda role: st.tuples(st.just(role), st.integers(1, 4) if role else st.just(0))
)


class AnyHistory(RuleBasedStateMachine):
    """The table against a model: a dict of live brokers, one of epochs, and everything else looked up in them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = table(brokers_max=5)
        self.live: dict[tuple[str, int], tuple[BrokerState, int, int]] = {}
        #: Name to the highest epoch, its master, and when the name was last heard of.
        self.epochs: dict[str, tuple[int, int | None, int]] = {}
        #: Of each name that lives.
        self.speakers: dict[str, BrokerState] = {}
        self.sessions = 0
        self.now_ms = 0

    def elect(self, name: str) -> None:
        """Note whose topics are those of NAME, after a change of who lives."""
        group = [known[0] for (other, _), known in self.live.items() if other == name]
        before = self.speakers.pop(name, None)
        if not group:
            return
        masters = [state for state in group if state.is_master]
        assert len(masters) <= 1
        was_led = before is not None and before.role is Role.MASTER
        if before is not None and not masters and was_led and any(state.role for state in group):
            self.speakers[name] = before
        else:
            self.speakers[name] = (masters or sorted(group, key=lambda state: state.id))[0]

    def foreseen(self, state: BrokerState, session: int) -> Verdict | type[MasterFenced] | None:
        """Return what refuses STATE, None if nothing does; and have its epoch end others."""
        epoch, master, _ = self.epochs.get(state.name, (0, None, 0))
        if epoch:
            self.epochs[state.name] = (epoch, master, self.now_ms)
        if epoch and state.is_master:
            claimed_by_another = state.epoch == epoch and master not in (None, state.id)
            if state.epoch < epoch or claimed_by_another:
                return MasterFenced
        known = self.live.get((state.name, state.id))
        if known and (known[0].epoch, known[1]) > (state.epoch, session):
            return Verdict.SUPERSEDED
        if state.epoch > epoch:
            master = None
            for key, (other, *_) in list(self.live.items()):
                if key[0] == state.name and other.is_master:
                    del self.live[key]
                    self.elect(state.name)
        if state.epoch:
            now = state.id if state.is_master else master
            self.epochs[state.name] = (
                state.epoch if state.epoch > epoch else epoch,
                now,
                self.now_ms,
            )
        return None

    def told(self, state: BrokerState, session: int, expected: object) -> None:
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.table.register(state, session, self.now_ms)
        else:
            assert self.table.register(state, session, self.now_ms) is expected

    @rule(
        name=NAMES,
        id=IDS,
        claim=CLAIMS,
        topics=TOPICS,
        queues=QUEUES,
        address=st.sampled_from(["h:1", "h:2"]),
        old=st.integers(0, 3),
    )
    def register(
        self,
        name: str,
        id: int,
        claim: tuple[Role | None, int],
        topics: frozenset[str],
        queues: TopicQueues,
        address: str,
        old: int,
    ) -> None:
        self.sessions += old == 0
        session = max(1, self.sessions - old)
        role, epoch = claim
        id = max(id, 1) if role else id
        plain = BrokerState("c", name, id, address, 1, dict.fromkeys(topics, queues))
        state = replace(plain, role=role, epoch=epoch)
        refused: object = self.foreseen(state, session)
        if refused is None and (name, id) not in self.live and len(self.live) == 5:
            refused = Overloaded
        self.told(state, session, refused or Verdict.TAKEN)
        if refused is None:
            self.live[name, id] = (state, session, self.now_ms)
            self.elect(name)

    @rule(
        name=NAMES,
        id=IDS,
        claim=st.none() | CLAIMS,
        session=st.integers(1, 20),
        version=st.integers(1, 2),
    )
    def renew(
        self, name: str, id: int, claim: tuple[Role | None, int] | None, session: int, version: int
    ) -> None:
        known = self.live.get((name, id))
        state = replace(known[0] if known else broker(name, id=id), data_version=version)
        if claim is not None and id > 0:
            state = replace(state, role=claim[0], epoch=claim[1])
        beat = heartbeat(state)
        refused = self.foreseen(beat, session)
        known = self.live.get((name, id))
        if refused is None and known and known[1] == session:
            same = known[0] == replace(state, topics=known[0].topics)
            self.live[name, id] = (known[0], session, self.now_ms)
            self.told(beat, session, Verdict.TAKEN if same else Verdict.SEND_TOPICS)
        else:
            self.told(beat, session, refused or Verdict.SEND_TOPICS)

    @rule(name=NAMES, id=IDS, session=st.integers(1, 20))
    def unregister(self, name: str, id: int, session: int) -> None:
        known = self.live.get((name, id))
        expected = known is not None and known[1] == session
        assert self.table.unregister(name, id, session, now_ms=0) is expected
        if expected:
            del self.live[name, id]
            self.elect(name)

    @rule(by_ms=st.integers(0, EXPIRY_MS))
    def expire(self, by_ms: int) -> None:
        self.now_ms += by_ms
        silent = [key for key, known in self.live.items() if self.now_ms - known[2] >= EXPIRY_MS]
        gone = {(state.name, state.id) for state in self.table.expire(self.now_ms)}
        assert gone == set(silent)
        for key in sorted(silent):
            del self.live[key]
            self.elect(key[0])
        names = {name for name, _ in self.live}
        for name, (_, _, heard_ms) in list(self.epochs.items()):
            if name not in names and self.now_ms - heard_ms >= EXPIRY_MS:
                del self.epochs[name]

    @invariant()
    def routes_are_those_of_the_model(self) -> None:
        self.table.check()
        names = sorted({name for name, _ in self.live})
        groups = {n: [known[0] for (m, _), known in self.live.items() if m == n] for n in names}
        for topic in "TUVW":
            queues = {}
            for name, speaker in self.speakers.items():
                assert speaker.topics is not None
                if topic in speaker.topics:
                    found = speaker.topics[topic]
                    mask = 7 if speaker.is_master else 5
                    queues[name] = replace(found, permission=found.permission & mask)
            route = self.table.route(topic)
            assert (route.queues if route else {}) == queues
        assert {one.name: dict(one.addresses) for one in self.table.cluster()} == {
            name: {0 if state.is_master else state.id: state.address for state in group}
            for name, group in groups.items()
        }
        assert {(one.name, each) for one in self.table.cluster() for each in one.replicas} == {
            (name, Replica(state.id, state.address, state.role, state.epoch))
            for name, group in groups.items()
            for state in group
            if state.role
        }


TestAnyHistory = pytest.mark.long(AnyHistory.TestCase)


# ---------------------------------------------------------------- FIFO topics of brokers that are away


KEPT_MS = 3_600_000
FIFO_QUEUES = TopicQueues(4, 4, 6, "FIFO")


def with_queues(name: str, address: str, queues: TopicQueues) -> BrokerState:
    return replace(broker(name, address=address), topics={"orders": queues, "other": ALL})


def test_a_fifo_topic_keeps_the_queues_of_a_broker_that_is_away_to_be_written() -> None:
    routes = table()
    routes.register(with_queues("broker-a", "h:1", FIFO_QUEUES), session=1, now_ms=0)
    routes.register(with_queues("broker-b", "h:2", FIFO_QUEUES), session=2, now_ms=0)

    routes.unregister("broker-a", 0, 1, now_ms=0)

    found = routes.route("orders")
    assert found is not None
    assert found.queues == {
        "broker-a": replace(FIFO_QUEUES, permission=PERMISSION_WRITE),
        "broker-b": FIFO_QUEUES,
    }
    assert [one.addresses for one in found.brokers] == [{0: "h:1"}, {0: "h:2"}]
    assert [one.name for one in routes.cluster()] == ["broker-b"]
    other = routes.route("other")
    assert other is not None
    assert list(other.queues) == ["broker-b"]
    routes.check()


def test_a_broker_that_comes_back_has_its_queues_as_they_are_now() -> None:
    routes = table()
    routes.register(with_queues("broker-a", "h:1", FIFO_QUEUES), session=1, now_ms=0)
    routes.register(with_queues("broker-b", "h:2", FIFO_QUEUES), session=2, now_ms=0)
    routes.unregister("broker-a", 0, 1, now_ms=0)

    routes.register(with_queues("broker-a", "h:3", replace(FIFO_QUEUES, read_queues=8)), 3, 1)

    found = routes.route("orders")
    assert found is not None
    assert found.queues["broker-a"] == replace(FIFO_QUEUES, read_queues=8)
    assert found.brokers[0].addresses == {0: "h:3"}
    routes.check()


def test_the_queues_of_a_broker_that_stays_away_go_in_the_end() -> None:
    routes = table()
    routes.register(with_queues("broker-a", "h:1", FIFO_QUEUES), session=1, now_ms=0)
    routes.register(with_queues("broker-b", "h:2", FIFO_QUEUES), session=2, now_ms=EXPIRY_MS)
    assert [one.name for one in routes.expire(EXPIRY_MS)] == ["broker-a"]

    def holders(now_ms: int) -> list[str]:
        routes.register(heartbeat(with_queues("broker-b", "h:2", FIFO_QUEUES)), 2, now_ms)
        routes.expire(now_ms)
        found = routes.route("orders")
        return [] if found is None else list(found.queues)

    assert holders(EXPIRY_MS + KEPT_MS - 1) == ["broker-a", "broker-b"]
    assert holders(EXPIRY_MS + KEPT_MS) == ["broker-b"]


def test_queues_are_kept_while_another_broker_has_the_topic_as_fifo_only() -> None:
    routes = table()
    routes.register(with_queues("broker-a", "h:1", FIFO_QUEUES), session=1, now_ms=0)
    routes.unregister("broker-a", 0, 1, now_ms=0)
    assert routes.route("orders") is None

    routes.register(with_queues("broker-b", "h:2", ALL), session=2, now_ms=0)
    found = routes.route("orders")
    assert found is not None
    assert list(found.queues) == ["broker-b"]
