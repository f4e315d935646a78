"""The route table: the live brokers, and which of them have the queues of a topic. Pure: the time is an argument.

A broker is known by its name and its id; brokers of one name have the same queues, one is the master, others copy it.
Of brokers without replicas id 0 is the master. Those of a *replica set* keep their ids, and send their role and epoch.
Each broker sends through a *session*, one open stream, numbered in the order of opening.

Costs: a heartbeat O(1), a complete registration O(its topics), a change O(what changed), a route
O(brokers of the topic), `expire` O(brokers). Not thread-safe: the event loop of the name server owns it.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..proto.errors import MasterFenced, Overloaded
from ..proto.topics import PERMISSION_WRITE, is_system_topic, system_topic_queues
from .config import NameServerConfig

logger = logging.getLogger(__name__)

MASTER_ID: Final = 0
#: The type of topics whose messages keep their order.
FIFO: Final = "FIFO"


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The queues that one broker has of a topic."""

    read_queues: int
    write_queues: int
    permission: int
    #: The topic's type there, "" for unspecified.
    type: str = ""


class Role(enum.Enum):
    """The role of a broker in a replica set, in its epoch."""

    MASTER = "master"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What a broker reports about itself. TOPICS is None in a heartbeat: they have not changed.

    With CHANGED_SINCE, a data version, TOPICS and GONE are the topics changed and removed since that version.
    ROLE is None, and EPOCH 0, for a broker without replicas.
    """

    cluster: str
    name: str
    id: int
    address: str
    data_version: int
    topics: Mapping[str, TopicQueues] | None
    changed_since: int | None = None
    gone: Sequence[str] = ()
    role: Role | None = None
    epoch: int = 0

    @property
    def is_master(self) -> bool:
        """Does the broker claim to be the master of its name?"""
        return self.role is Role.MASTER or (self.role is None and self.id == MASTER_ID)


@dataclass(frozen=True, slots=True)
class Replica:
    """A live broker of a replica set; EPOCH is the newest that it sent."""

    id: int
    address: str
    role: Role
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """The brokers of one name: id to address, the master at 0; REPLICAS of a replica set, in the order of their ids."""

    cluster: str
    name: str
    addresses: Mapping[int, str]
    replicas: tuple[Replica, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic is: its queues by broker name, and the brokers of these names."""

    topic: str
    queues: Mapping[str, TopicQueues]
    brokers: tuple[BrokerAddresses, ...]


class Verdict(enum.Enum):
    """The result of a registration."""

    TAKEN = "taken"
    SEND_TOPICS = "send topics"
    SUPERSEDED = "superseded"


@dataclass(slots=True)
class _Registered:
    """A live broker. `state.topics` is never None here."""

    state: BrokerState
    session: int
    heard_ms: int
    #: Is this the only reference to the mapping of its topics?
    is_own: bool = False


@dataclass(slots=True)
class _Epoch:
    """The highest epoch of a name."""

    number: int
    #: The id of the broker that claimed it; None: no broker did.
    master: int | None
    #: When a broker of the name last sent anything.
    heard_ms: int


class RouteTable:
    """All live brokers and their topics, up to CONFIG's `brokers_max`; and as many epochs of names without a broker."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config
        self._brokers: dict[str, dict[int, _Registered]] = {}
        #: By name, the broker whose topics are used. In a replica set without a master it may be the previous master.
        self._speakers: dict[str, BrokerState] = {}
        #: Topic to the names of the brokers that have it.
        self._holders: dict[str, set[str]] = {}
        #: By name, if a broker of the name sent an epoch.
        self._epochs: dict[str, _Epoch] = {}
        #: Masters that are down, by name, with their FIFO topics; and until when these are kept.
        self._absent: dict[str, tuple[BrokerState, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Count the live brokers."""
        return self._count

    @property
    def kept(self) -> int:
        """The number of topics of live brokers."""
        return len(self._holders)

    def topic_count(self, name: str, broker_id: int) -> int:
        """Return how many topics the broker NAME, BROKER_ID has; 0 if it is not registered."""
        known = self._brokers.get(name, {}).get(broker_id)
        return 0 if known is None or known.state.topics is None else len(known.state.topics)

    def register(self, state: BrokerState, session: int, now_ms: int) -> Verdict:
        """Apply a registration of a broker in SESSION.

        A registration with topics is the complete state of its broker and replaces the previous one: missing topics are
        removed, and a new address replaces the old one. For changes and heartbeats see `_change` and `_renew`.

        If two sessions claim the same name and id, the higher epoch wins; with equal epochs (0 without replicas) the
        session that was opened last. The other session gets SUPERSEDED. It takes over with its next complete
        registration after the winner has ended.

        Raises MasterFenced, with the epoch that is valid; Overloaded if there are too many brokers.
        """
        self._check_epoch(state, now_ms)
        known = self._brokers.get(state.name, {}).get(state.id)
        if known is not None and (known.state.epoch, known.session) > (state.epoch, session):
            return Verdict.SUPERSEDED
        self._note_epoch(state, now_ms)
        known = self._brokers.get(state.name, {}).get(state.id)  # It may have ended itself.
        if state.topics is None:
            return self._renew(known, state, session, now_ms)
        if state.changed_since is not None:
            return self._change(known, state, session, now_ms)
        if known is None and self._count >= self._config.brokers_max:
            raise Overloaded(
                f"{self._count} brokers are registered, the limit is {self._config.brokers_max}:"
                " raise nameserver.brokers_max",
                field="brokers_max",
                limit=self._config.brokers_max,
                value=self._count,
            )
        _log_registration(known, state, session)
        self._count += known is None
        group = self._brokers.setdefault(state.name, {})
        group[state.id] = _Registered(state, session, now_ms)
        self._absent.pop(state.name, None)
        self._elect(state.name)
        return Verdict.TAKEN

    def _renew(
        self, known: _Registered | None, state: BrokerState, session: int, now_ms: int
    ) -> Verdict:
        """Apply a heartbeat (no topics): it renews a registration of the same session and data version.

        For any other heartbeat the reply is SEND_TOPICS. The registration of the session stays alive meanwhile.
        """
        if known is None or known.session != session:
            return Verdict.SEND_TOPICS
        known.heard_ms = max(known.heard_ms, now_ms)
        same = known.state.data_version == state.data_version and _same_broker(known.state, state)
        return Verdict.TAKEN if same else Verdict.SEND_TOPICS

    def _change(
        self, known: _Registered | None, state: BrokerState, session: int, now_ms: int
    ) -> Verdict:
        """Apply a change since a data version, if the table has that version of the same session.

        Otherwise the reply is SEND_TOPICS. The table takes over the mapping of topics and changes it.
        """
        if known is None or known.session != session:
            return Verdict.SEND_TOPICS
        before = known.state
        if before.data_version != state.changed_since or not _same_broker(before, state):
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

    def unregister(self, name: str, broker_id: int, session: int, now_ms: int) -> bool:
        """Remove a broker at the end of SESSION; return whether the session still represented it."""
        known = self._brokers.get(name, {}).get(broker_id)
        if known is None or known.session != session:
            return False
        self._keep_ordered(name, now_ms)
        self._remove(name, broker_id)
        return True

    def _keep_ordered(self, name: str, now_ms: int) -> None:
        """Keep the FIFO topics of NAME, whose last broker is removed, if that is a master.

        Its queues stay in routes for `ordered_queues_kept_ms`, at its last address and only for writing, as long as
        another broker has the topic as FIFO. Producers choose the queue of a message group by the number of queues:
        without those of the missing broker, nearly all groups would move, and lose their order. (Apache RocketMQ's
        name servers have lists that administrators write for this, "order topic configs".)
        """
        speaker, kept_ms = self._speakers[name], self._config.ordered_queues_kept_ms
        if len(self._brokers[name]) > 1 or not speaker.is_master or not kept_ms:
            return
        assert speaker.topics is not None
        ordered = {
            topic: replace(queues, permission=PERMISSION_WRITE)
            for topic, queues in speaker.topics.items()
            if queues.type == FIFO and queues.permission & PERMISSION_WRITE
        }
        if ordered:
            self._absent[name] = replace(speaker, topics=ordered), now_ms + kept_ms
            while len(self._absent) > self._config.brokers_max:
                del self._absent[next(iter(self._absent))]

    def expire(self, now_ms: int) -> list[BrokerState]:
        """Remove and return the brokers that sent nothing for `broker_expiry_ms`.

        The highest epoch of a name is forgotten once none of its brokers, including refused ones, has sent anything
        for as long.
        """
        silent = [
            broker.state
            for group in self._brokers.values()
            for broker in group.values()
            if now_ms - broker.heard_ms >= self._config.broker_expiry_ms
        ]
        for state in silent:
            self._keep_ordered(state.name, now_ms)
            self._remove(state.name, state.id)
        for name in [name for name, (_, until_ms) in self._absent.items() if now_ms >= until_ms]:
            del self._absent[name]
        for name, epoch in list(self._epochs.items()):
            if now_ms - epoch.heard_ms >= self._config.broker_expiry_ms:
                del self._epochs[name]
        return silent

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of TOPIC, brokers in the order of their names; None if no live broker has it."""
        names = self._holders.get(topic, ())
        if not names:
            return None
        queues = {name: self._queues(name, topic) for name in names}
        if self._absent and any(one.type == FIFO for one in queues.values()):
            for name, (state, _) in self._absent.items():
                if state.topics is not None and topic in state.topics:
                    queues[name] = state.topics[topic]
        queues = dict(sorted(queues.items()))
        return TopicRoute(topic, queues, tuple(self._addresses(name) for name in queues))

    def cluster(self) -> list[BrokerAddresses]:
        """Return all live brokers, in the order of their names."""
        return [self._addresses(name) for name in sorted(self._brokers)]

    def topics(self, *, include_system: bool) -> list[str]:
        """Return the names of all topics, sorted. System topics only if INCLUDE_SYSTEM."""
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

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the names of all topics that a live broker of CLUSTER has, sorted."""
        topics: set[str] = set()
        for speaker in self._speakers.values():
            if speaker.cluster == cluster and speaker.topics is not None:
                topics.update(speaker.topics)
        return sorted(topics)

    def _queues(self, name: str, topic: str) -> TopicQueues:
        """Return the queues of TOPIC on the brokers NAME; without a master no client may write to them."""
        speaker = self._speakers[name]
        assert speaker.topics is not None
        queues = speaker.topics[topic]
        if speaker.is_master:
            return queues
        permission = queues.permission & ~PERMISSION_WRITE
        return replace(queues, permission=permission)

    def _addresses(self, name: str) -> BrokerAddresses:
        if name in self._absent:
            state, _ = self._absent[name]
            return BrokerAddresses(state.cluster, name, {MASTER_ID: state.address})
        states = [known.state for _, known in sorted(self._brokers[name].items())]
        addresses = {MASTER_ID if one.is_master else one.id: one.address for one in states}
        replicas = tuple(
            Replica(one.id, one.address, one.role, one.epoch) for one in states if one.role
        )
        return BrokerAddresses(self._speakers[name].cluster, name, addresses, replicas)

    def _remove(self, name: str, broker_id: int) -> None:
        group = self._brokers[name]
        del group[broker_id]
        self._count -= 1
        if not group:
            del self._brokers[name]
        self._elect(name)

    def _elect(self, name: str) -> None:
        """Choose the broker whose topics are used for NAME, and update the holders of its topics."""
        before = self._speakers.pop(name, None)
        now = self._speaker_of(self._brokers.get(name, {}), before)
        if now is not None:
            self._speakers[name] = now
        old = before.topics if before is not None and before.topics is not None else {}
        new = now.topics if now is not None and now.topics is not None else {}
        for topic in old.keys() - new.keys():
            self._forget_holder(topic, name)
        for topic in new.keys() - old.keys():
            self._holders.setdefault(topic, set()).add(name)

    @staticmethod
    def _speaker_of(
        group: Mapping[int, _Registered], before: BrokerState | None
    ) -> BrokerState | None:
        """Return the broker whose topics are used for GROUP: the master, the one BEFORE, or the lowest id.

        A replica set between two masters keeps the queues and permissions of the last master while any replica is
        live: a new master will be elected soon, and clients keep their routes meanwhile.
        """
        states = [known.state for known in group.values()]
        now = min(states, key=lambda state: (not state.is_master, state.id), default=None)
        if now is None or now.is_master or before is None or before.role is not Role.MASTER:
            return now
        return before if any(state.role for state in states) else now

    def _check_epoch(self, state: BrokerState, now_ms: int) -> None:
        """Raise MasterFenced if STATE claims to be the master of an old epoch, or of one that has another master.

        No broker is a master in an epoch below the highest that any broker of the name has sent. An epoch has one
        master: the first that claimed it.
        """
        known = self._epochs.get(state.name)
        if known is None:
            return
        known.heard_ms = max(known.heard_ms, now_ms)  # A refused broker is live, too.
        if not state.is_master or state.epoch > known.number:
            return
        if state.epoch == known.number and known.master in (None, state.id):
            return
        whose = "" if known.master is None else f", and its master is replica {known.master}"
        raise MasterFenced(
            f"broker {state.name}, id {state.id}, is no longer the master: it claims epoch {state.epoch},"
            f" but epoch {known.number} is valid{whose}. It must become a follower",
            field="epoch",
            limit=known.number,
            value=state.epoch,
        )

    def _note_epoch(self, state: BrokerState, now_ms: int) -> None:
        """Remember the epoch of STATE if it is the highest of its name, and remove the master of a lower one."""
        known = self._epochs.get(state.name)
        if known is None and not state.epoch:
            return
        if known is None or state.epoch > known.number:
            self._forget_epochs()
            known = self._epochs[state.name] = _Epoch(state.epoch, None, now_ms)
            self._end_masters(state)
        if state.is_master:
            known.master = state.id

    def _end_masters(self, by: BrokerState) -> None:
        for broker_id, known in list(self._brokers.get(by.name, {}).items()):
            if known.state.is_master and known.state.epoch < by.epoch:
                logger.info(
                    "master ended broker=%s id=%d address=%s epoch=%d by_epoch=%d by_id=%d",
                    by.name,
                    broker_id,
                    known.state.address,
                    known.state.epoch,
                    by.epoch,
                    by.id,
                )
                self._remove(by.name, broker_id)

    def _forget_epochs(self) -> None:
        """Make space for one more: if too many names have no broker, forget those that sent nothing for longest."""
        idle = sorted(
            (epoch.heard_ms, name)
            for name, epoch in self._epochs.items()
            if name not in self._brokers
        )
        for _, name in idle[: max(0, len(idle) + 1 - self._config.brokers_max)]:
            del self._epochs[name]

    def check(self) -> None:
        """Assert all invariants. For tests; O(everything)."""
        assert self._count == sum(len(group) for group in self._brokers.values())
        assert self._count <= self._config.brokers_max
        assert all(self._brokers.values()), "a name has no broker"
        assert self._speakers == {
            name: self._speaker_of(group, self._speakers[name])
            for name, group in self._brokers.items()
        }
        assert not self._absent.keys() & self._brokers.keys(), "an absent master is registered"
        assert len(self._absent) <= self._config.brokers_max
        assert len(self._epochs) <= 2 * self._config.brokers_max
        for name, group in self._brokers.items():
            highest = self._epochs.get(name, _Epoch(0, MASTER_ID, 0))
            assert all(known.state.epoch <= highest.number for known in group.values())
            masters = [known.state for known in group.values() if known.state.is_master]
            assert [(one.epoch, one.id) for one in masters] in (
                [],
                [(highest.number, highest.master)],
            )
        holders: dict[str, set[str]] = {}
        for name, speaker in self._speakers.items():
            assert speaker.topics is not None
            for topic in speaker.topics:
                holders.setdefault(topic, set()).add(name)
        assert self._holders == holders


def _same_broker(known: BrokerState, state: BrokerState) -> bool:
    """Does STATE agree with what is KNOWN of its broker, topics apart?"""
    return (known.address, known.cluster, known.role, known.epoch) == (
        state.address,
        state.cluster,
        state.role,
        state.epoch,
    )


def _log_registration(known: _Registered | None, state: BrokerState, session: int) -> None:
    where = {"broker": state.name, "id": state.id, "address": state.address}
    if known is None:
        logger.info("broker registered broker=%(broker)s id=%(id)d address=%(address)s", where)
    elif known.state.address != state.address:
        # Either the broker has moved and its old stream is about to end, or two brokers have the same name and id.
        logger.warning(
            "broker replaced broker=%(broker)s id=%(id)d address=%(address)s old_address=%(old)s:"
            " if both still run, give each its own name or id",
            {**where, "old": known.state.address},
        )
    elif known.session != session:
        logger.info("broker came back broker=%(broker)s id=%(id)d address=%(address)s", where)
