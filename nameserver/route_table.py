"""The route table: which brokers live, and which of them hold the queues of a topic. Pure, and told the time.

A broker is known by its name and its id; brokers of one name hold the same queues, id 0 is the master, others copy it.
Each broker speaks through a *session*, one open stream, numbered in the order of opening. Rules:

  - A registration that carries topics is the whole state of its broker and replaces what was known: a topic that is
    missing in it disappears, a new address replaces the old one.
  - A change (CHANGED_SINCE a data version) is taken if that version is what is known of the same session; otherwise the
    answer is SEND_TOPICS.
  - A heartbeat (no topics) renews a registration of the same session and data version; to any other the answer is
    SEND_TOPICS, and what was known of the session stays alive meanwhile.
  - Two sessions that claim the same name and id: the one opened last wins; the other hears SUPERSEDED, and
    takes over again with its next whole registration once the winner is gone.
  - The end of a session removes its broker at once, unless a later session has taken over.
  - A broker that was not heard of for EXPIRY_MS is removed by `expire`.

The topics of a name are those of its lowest id. If that is not the master, the queues cannot be written to, so
their permission comes without the write bit.

Costs: a heartbeat O(1), a whole registration O(its topics), a change O(what changed), a route
O(brokers of the topic), `expire` O(brokers).
Not thread-safe: the event loop of the name server owns it.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..proto.errors import Overloaded
from ..proto.topics import PERMISSION_WRITE, is_system_topic, system_topic_queues

logger = logging.getLogger(__name__)

MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The queues that one broker has of a topic."""

    read_queues: int
    write_queues: int
    permission: int
    #: The topic's type there, "" for unspecified.
    type: str = ""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What a broker says of itself. TOPICS is None in a heartbeat: they are as last time.

    With CHANGED_SINCE, a data version, TOPICS and those that are GONE are what changed since.
    """

    cluster: str
    name: str
    id: int
    address: str
    data_version: int
    topics: Mapping[str, TopicQueues] | None
    changed_since: int | None = None
    gone: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """The brokers of one name: id to address."""

    cluster: str
    name: str
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic is: its queues by broker name, and the brokers of these names."""

    topic: str
    queues: Mapping[str, TopicQueues]
    brokers: tuple[BrokerAddresses, ...]


class Verdict(enum.Enum):
    """What became of a registration."""

    TAKEN = "taken"
    SEND_TOPICS = "send topics"
    SUPERSEDED = "superseded"


@dataclass(slots=True)
class _Registered:
    """A live broker. `state.topics` is never None here."""

    state: BrokerState
    session: int
    heard_ms: int
    #: Is the mapping of its topics nobody else's?
    is_own: bool = False


class RouteTable:
    """All live brokers and their topics; at most BROKERS_MAX of them."""

    def __init__(self, *, expiry_ms: int, brokers_max: int) -> None:
        self._expiry_ms = expiry_ms
        self._brokers_max = brokers_max
        self._brokers: dict[str, dict[int, _Registered]] = {}
        #: The broker whose topics count, of each name.
        self._speakers: dict[str, BrokerState] = {}
        #: Topic to the names of the brokers that have it.
        self._holders: dict[str, set[str]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Count the live brokers."""
        return self._count

    @property
    def kept(self) -> int:
        """How many topics live brokers have."""
        return len(self._holders)

    def topic_count(self, name: str, broker_id: int) -> int:
        """Return how many topics the broker NAME, BROKER_ID has; 0 for none that lives."""
        known = self._brokers.get(name, {}).get(broker_id)
        return 0 if known is None or known.state.topics is None else len(known.state.topics)

    def register(self, state: BrokerState, session: int, now_ms: int) -> Verdict:
        """Take what a broker says of itself in SESSION; raise Overloaded if there are too many brokers."""
        known = self._brokers.get(state.name, {}).get(state.id)
        if known is not None and known.session > session:
            return Verdict.SUPERSEDED
        if state.topics is None:
            return self._renew(known, state, session, now_ms)
        if state.changed_since is not None:
            return self._change(known, state, session, now_ms)
        if known is None and self._count >= self._brokers_max:
            raise Overloaded(
                f"{self._count} brokers are registered, the limit is {self._brokers_max}:"
                " raise nameserver.brokers_max",
                field="brokers_max",
                limit=self._brokers_max,
                value=self._count,
            )
        _log_registration(known, state, session)
        self._count += known is None
        group = self._brokers.setdefault(state.name, {})
        group[state.id] = _Registered(state, session, now_ms)
        self._elect(state.name)
        return Verdict.TAKEN

    def _renew(
        self, known: _Registered | None, state: BrokerState, session: int, now_ms: int
    ) -> Verdict:
        if known is None or known.session != session:
            return Verdict.SEND_TOPICS
        known.heard_ms = max(known.heard_ms, now_ms)
        same = (
            known.state.data_version == state.data_version
            and known.state.address == state.address
            and known.state.cluster == state.cluster
        )
        return Verdict.TAKEN if same else Verdict.SEND_TOPICS

    def _change(
        self, known: _Registered | None, state: BrokerState, session: int, now_ms: int
    ) -> Verdict:
        """Take a change of a state that is known; its mapping of topics becomes the table's own, and is changed."""
        if known is None or known.session != session:
            return Verdict.SEND_TOPICS
        before = known.state
        as_known = (state.changed_since, state.address, state.cluster)
        if (before.data_version, before.address, before.cluster) != as_known:
            return Verdict.SEND_TOPICS
        assert before.topics is not None, "a live broker has topics"
        assert state.topics is not None, "a change is no heartbeat"
        topics = before.topics if known.is_own else dict(before.topics)
        assert isinstance(topics, dict)
        known.state = replace(before, data_version=state.data_version, topics=topics)
        known.is_own, known.heard_ms = True, max(known.heard_ms, now_ms)
        speaks = self._speakers[state.name] is before
        for topic in state.gone:
            if topics.pop(topic, None) is not None and speaks:
                self._forget_holder(topic, state.name)
        topics.update(state.topics)
        if speaks:
            self._speakers[state.name] = known.state
            for topic in state.topics:
                self._holders.setdefault(topic, set()).add(state.name)
        return Verdict.TAKEN

    def _forget_holder(self, topic: str, name: str) -> None:
        holders = self._holders[topic]
        holders.discard(name)
        if not holders:
            del self._holders[topic]

    def unregister(self, name: str, broker_id: int, session: int) -> bool:
        """Remove a broker at the end of SESSION; return whether the session still spoke for it."""
        known = self._brokers.get(name, {}).get(broker_id)
        if known is None or known.session != session:
            return False
        self._remove(name, broker_id)
        return True

    def expire(self, now_ms: int) -> list[BrokerState]:
        """Remove and return the brokers that were not heard of for the expiry."""
        silent = [
            broker.state
            for group in self._brokers.values()
            for broker in group.values()
            if now_ms - broker.heard_ms >= self._expiry_ms
        ]
        for state in silent:
            self._remove(state.name, state.id)
        return silent

    def route(self, topic: str) -> Route | None:
        """Return where TOPIC is, brokers in the order of their names; None if no live broker has it."""
        names = sorted(self._holders.get(topic, ()))
        if not names:
            return None
        queues = {name: self._queues(name, topic) for name in names}
        return Route(topic, queues, tuple(self._addresses(name) for name in names))

    def cluster(self) -> list[BrokerAddresses]:
        """Return all live brokers, in the order of their names."""
        return [self._addresses(name) for name in sorted(self._brokers)]

    def topics(self, *, include_system: bool) -> list[str]:
        """Return the names of all topics, sorted; those that brokers make for themselves only if asked for."""
        if include_system:
            return sorted(self._holders)
        own = {
            name
            for speaker in self._speakers.values()
            for name, _, _ in system_topic_queues(speaker.cluster, speaker.name)
        }
        return sorted(
            topic for topic in self._holders if topic not in own and not is_system_topic(topic)
        )

    def _queues(self, name: str, topic: str) -> TopicQueues:
        speaker = self._speakers[name]
        assert speaker.topics is not None
        queues = speaker.topics[topic]
        if speaker.id == MASTER_ID:
            return queues
        permission = queues.permission & ~PERMISSION_WRITE
        return replace(queues, permission=permission)

    def _addresses(self, name: str) -> BrokerAddresses:
        group = self._brokers[name]
        addresses = {broker_id: group[broker_id].state.address for broker_id in sorted(group)}
        return BrokerAddresses(self._speakers[name].cluster, name, addresses)

    def _remove(self, name: str, broker_id: int) -> None:
        group = self._brokers[name]
        del group[broker_id]
        self._count -= 1
        if not group:
            del self._brokers[name]
        self._elect(name)

    def _elect(self, name: str) -> None:
        """Let the lowest id of NAME speak for it, and bring the holders of its topics up to date."""
        before = self._speakers.pop(name, None)
        group = self._brokers.get(name)
        now = group[min(group)].state if group else None
        if now is not None:
            self._speakers[name] = now
        old = before.topics if before is not None and before.topics is not None else {}
        new = now.topics if now is not None and now.topics is not None else {}
        for topic in old.keys() - new.keys():
            self._forget_holder(topic, name)
        for topic in new.keys() - old.keys():
            self._holders.setdefault(topic, set()).add(name)

    def check(self) -> None:
        """Assert all invariants. For tests; O(everything)."""
        assert self._count == sum(len(group) for group in self._brokers.values())
        assert self._count <= self._brokers_max
        assert all(self._brokers.values()), "a name without a broker"
        assert self._speakers == {
            name: group[min(group)].state for name, group in self._brokers.items()
        }
        holders: dict[str, set[str]] = {}
        for name, speaker in self._speakers.items():
            assert speaker.topics is not None
            for topic in speaker.topics:
                holders.setdefault(topic, set()).add(name)
        assert self._holders == holders


def _log_registration(known: _Registered | None, state: BrokerState, session: int) -> None:
    where = {"broker": state.name, "id": state.id, "address": state.address}
    if known is None:
        logger.info("broker registered broker=%(broker)s id=%(id)d address=%(address)s", where)
    elif known.state.address != state.address:
        # Either the broker has moved and its old stream is about to break, or two brokers have the same name and id.
        logger.warning(
            "broker replaced broker=%(broker)s id=%(id)d address=%(address)s old_address=%(old)s:"
            " if both still run, give each its own name or id",
            {**where, "old": known.state.address},
        )
    elif known.session != session:
        logger.info("broker came back broker=%(broker)s id=%(id)d address=%(address)s", where)
