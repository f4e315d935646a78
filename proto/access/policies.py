"""Policies: what a user may do to which resource from where, and in which order they are evaluated. Pure.

    resource   `*`, or `Type:Name`: the type Topic, Group, Cluster or Namespace, the name literal, `prefix*` or `*`
    actions    of All, Pub, Sub, Create, Update, Delete, Get and List
    sources    addresses and networks of callers; none: any address
    decision   Allow or Deny

A policy matches a need if its resource covers it, it has *any* of the needed actions, and the caller's address is
among its sources. The first match decides, in this order: typed resources before `*`; literal names, then prefixes
(longest first), then `Type:*`; Deny before Allow. If none matches, the user's default policies are evaluated likewise,
and if none of those matches, the need is denied. RocketMQ 5.5.0 does the same. See `of_topic` for topics
of groups, and `expanded` for system topics.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from ..configuration import nearest
from ..errors import ConfigError
from ..topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic

#: Policies of one user; actions and sources of one policy.
POLICIES_MAX: Final = 1_000
SOURCES_MAX: Final = 1_000
RESOURCE_LENGTH_MAX: Final = 512
#: Decisions cached per user. When the cache is full, it is emptied.
_DECIDED_MAX: Final = 2_048
_GROUP_PREFIXES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


#: Bit masks: an int is a set of actions, any of which is enough. No enum, because each call compares some.
PUB: Final = 1
SUB: Final = 2
CREATE: Final = 4
UPDATE: Final = 8
DELETE: Final = 16
GET: Final = 32
LIST: Final = 64
ALL: Final = 127
_READING: Final = SUB | GET | LIST
_ACTIONS: Final = {
    "Pub": PUB,
    "Sub": SUB,
    "Create": CREATE,
    "Update": UPDATE,
    "Delete": DELETE,
    "Get": GET,
    "List": LIST,
    "All": ALL,
}

#: Types of resources; ANY is `*` without a type.
ANY: Final = "*"
CLUSTER: Final = "Cluster"
NAMESPACE: Final = "Namespace"
TOPIC: Final = "Topic"
GROUP: Final = "Group"
_TYPES: Final = {kind.lower(): kind for kind in (CLUSTER, NAMESPACE, TOPIC, GROUP)}


class Pattern(enum.IntEnum):
    """How a policy names its resources, in order of precedence."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


#: No topic or group can have this name.
OTHERS: Final = "\0"


class Need(NamedTuple):
    """What a call needs: one of ACTIONS on the resource. NAME "*" is all of TYPE: only a rule for all covers it.

    NAME `OTHERS` means all names without a rule of their own: only rules for all apply to it.
    """

    type: str
    name: str
    actions: int
    #: Is each action decided on its own, so that a Deny of one leaves the others?
    apart: bool = False
    #: Is it decided by its name alone, although the name is that of a system topic?
    is_literal: bool = False
    #: What a refusal calls the resource, whose name the caller may not know; "": its name.
    hidden_as: str = ""

    def __str__(self) -> str:
        return f"{self.type}:{'*' if self.name == OTHERS else self.name}"


class Resource(NamedTuple):
    """The resources of a policy: NAME is the text before the `*` of a prefix, and empty for ANY."""

    type: str
    pattern: Pattern
    name: str

    @classmethod
    def parse(cls, text: str, where: str = "resource") -> Resource:
        """Return the resource that TEXT names; raise ConfigError, which contains WHERE."""
        text = text.strip()
        if text == "*":
            return cls(ANY, Pattern.ANY, "")
        kind, colon, name = text.partition(":")
        found = _TYPES.get(kind.strip().lower())
        name = name.strip()
        if not colon or found is None or not name or len(text) > RESOURCE_LENGTH_MAX:
            raise ConfigError(
                f"{where}: {text[:80]!r} is not a resource. Write * or Topic:, Group:, Cluster:, Namespace: and a name,"
                f" prefix* or *; the limit is {RESOURCE_LENGTH_MAX} characters",
                field=where,
                limit=RESOURCE_LENGTH_MAX,
                value=text[:80],
            )
        if name == "*":
            return cls(found, Pattern.ANY, "")
        before, star, _ = name.partition("*")
        return cls(found, Pattern.PREFIXED if star else Pattern.LITERAL, before)

    def __str__(self) -> str:
        if self.type == ANY:
            return "*"
        return f"{self.type}:{self.name}{'*' if self.pattern is not Pattern.LITERAL else ''}"

    def covers(self, need: Need) -> bool:
        """Is the resource of NEED among these resources?"""
        if self.type == ANY:
            return True
        if self.type != need.type:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == need.name
        return self.pattern is Pattern.ANY or need.name.startswith(self.name)


def of_topic(name: str, actions: int) -> Need:
    """Return what is needed for one of ACTIONS on topic NAME.

    A retry or dead-letter topic (`%RETRY%group`, `%DLQ%group`) needs the same action on the group, and Sub on the
    group instead of Pub, because the consumers of the group write it.
    """
    if name.startswith("%"):
        for prefix in _GROUP_PREFIXES:
            if name.startswith(prefix):
                return of_group(name.removeprefix(prefix), _on_group(actions))
    return Need(TOPIC, name, actions)


def _on_group(actions: int) -> int:
    """Return the actions on the group that ACTIONS on one of its topics need."""
    return actions & ~PUB | SUB if actions & PUB else actions


def of_group(name: str, actions: int = SUB) -> Need:
    """Return what is needed for one of ACTIONS on consumer group NAME."""
    return Need(GROUP, name, actions)


def to_see_topic(name: str) -> Need:
    """Return what is needed to see topic NAME: its settings, its readers, and the brokers that have it."""
    return of_topic(name, PUB | SUB | GET)._replace(apart=True)


def to_see_group(name: str) -> Need:
    """Return what is needed to see consumer group NAME: its settings, and the topics it reads."""
    return of_group(name, SUB | GET)._replace(apart=True)


def of_cluster(name: str, actions: int) -> Need:
    """Return what is needed for one of ACTIONS on cluster NAME."""
    return Need(CLUSTER, name, actions)


def of_all_messages(cluster: str, actions: int) -> tuple[Need, ...]:
    """Return what is needed for one of ACTIONS on messages of unknown topics and groups in CLUSTER."""
    on_cluster = (GET if actions & _READING else 0) | (UPDATE if actions & ~_READING else 0)
    return (
        of_cluster(cluster, on_cluster),
        Need(TOPIC, "*", actions),
        of_group("*", _on_group(actions)),
    )


def to_reply(cluster: str) -> Need:
    """Return what is needed to send a reply to a client of CLUSTER. Replies are passed on, and not stored."""
    return Need(TOPIC, f"{cluster}{_REPLY_SUFFIX}", PUB, is_literal=True)


def expanded(need: Need, cluster: str) -> tuple[Need, ...]:
    """Return the needs that NEED consists of in CLUSTER.

    A system topic (`SCHEDULE_TOPIC_XXXX`, `RMQ_SYS_TRANS_HALF_TOPIC`, …) holds messages of all topics and groups. It
    needs Get on the cluster to read and Update to write, and the same on all topics and all groups.
    """
    if (
        not need.is_literal
        and may_be_of_system(need)
        and (is_system_topic(need.name) or need.name == f"{cluster}{_REPLY_SUFFIX}")
    ):
        return of_all_messages(cluster, need.actions)
    return (need,)


def may_be_of_system(need: Need) -> bool:
    """Is the resource of NEED a system topic in some cluster?"""
    return need.type == TOPIC and (is_system_topic(need.name) or need.name.endswith(_REPLY_SUFFIX))


def parse_actions(names: Iterable[str], where: str = "actions") -> int:
    """Return the actions with these NAMES; raise ConfigError, which contains WHERE, if one is unknown or none given."""
    found = 0
    for name in names:
        word = name.strip().capitalize()[:80]
        action = _ACTIONS.get(word)
        if action is None:
            raise ConfigError(
                f"{where}: {name[:80]!r} is not an action{nearest(word, _ACTIONS)}",
                field=where,
                value=name[:80],
            )
        found |= action
    if not found:
        raise ConfigError(f"{where}: name at least one action, such as Pub or Sub", field=where)
    return found


def action_names(actions: int) -> list[str]:
    """Return the names of ACTIONS, as in files and commands."""
    if actions == ALL:
        return ["All"]
    return [name for name, action in _ACTIONS.items() if actions & action == action]


def parse_source(text: str, where: str = "sources") -> Network:
    """Return the address or network in TEXT; raise ConfigError, which contains WHERE."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigError(
            f"{where}: {text[:80]!r} is not an IPv4 or IPv6 address or a network such as 10.0.0.0/8",
            field=where,
            value=text[:80],
        ) from None


@lru_cache(maxsize=4_096)
def address_in(host: str) -> Address | None:
    """Return the address that HOST is; an IPv4 address inside an IPv6 one as IPv4. None: HOST is no address."""
    try:
        found = ipaddress.ip_address(host)  # An IPv6 address may have a zone.
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(host: str) -> bool:
    """Does HOST, an address or a name, mean this machine?"""
    address = address_in(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


@dataclass(frozen=True, slots=True)
class Policy:
    """One rule: it allows or denies ACTIONS on RESOURCE from SOURCES."""

    resource: Resource
    actions: int
    sources: tuple[Network, ...] = ()
    allow: bool = True

    @property
    def decision(self) -> str:
        """Allow or Deny."""
        return "Allow" if self.allow else "Deny"

    def __str__(self) -> str:
        from_where = f" from {', '.join(map(str, self.sources))}" if self.sources else ""
        return f"{self.decision} {', '.join(action_names(self.actions))} on {self.resource}{from_where}"

    def order(self) -> tuple[bool, Pattern, int, bool]:
        """Return the sort key: policies with smaller keys decide first."""
        resource = self.resource
        return (
            resource.type == ANY,
            resource.pattern,
            -len(resource.name) if resource.pattern is Pattern.PREFIXED else 0,
            self.allow,
        )

    def matches(self, need: Need, host: str) -> bool:
        """Does it apply to NEED of a caller at HOST?"""
        if not self.actions & need.actions:
            return False
        denies_some = need.name == "*" and not self.allow and self.resource.type == need.type
        if not denies_some and not self.resource.covers(need):
            return False
        if not self.sources:
            return True
        address = address_in(host)
        return address is not None and any(
            address.version == network.version and address in network for network in self.sources
        )


class Judgement(NamedTuple):
    """The decision about a need. POLICY decided, or none matched; IS_SUPER: the user needs no policy."""

    allowed: bool
    policy: Policy | None = None
    is_default: bool = False
    is_super: bool = False

    @property
    def reason(self) -> str:
        """The reason; that of a denial has Apache RocketMQ's wording."""
        if self.is_super:
            return "a Super user may do everything"
        if self.policy is None:
            return "no matched policies"
        if not self.allowed:
            return "the decision is deny"
        return "the decision is allow"


_NO_MATCH: Final = Judgement(False)
#: The decision about every need of a Super user.
SUPER: Final = Judgement(True, is_super=True)


class Policies:
    """The policies of one user, by precedence, with those of one type and literal name next to each other."""

    def __init__(self, custom: Sequence[Policy] = (), default: Sequence[Policy] = ()) -> None:
        self.custom = tuple(custom)
        self.default = tuple(default)
        self._indexes = (_Index(custom), _Index(default))
        self._decided: dict[tuple[Need, str], Judgement] = {}

    def decide(self, need: Need, host: str) -> Judgement:
        """Return the decision about NEED of a caller at HOST."""
        if len(need.name) > RESOURCE_LENGTH_MAX:
            return self._decision(need, host)
        key = need, host
        found = self._decided.get(key)
        if found is None:
            found = self._decision(need, host)
            if len(self._decided) >= _DECIDED_MAX:
                self._decided.clear()
            self._decided[key] = found
        return found

    def decide_all(self, need: Need, host: str, cluster: str) -> Judgement:
        """Return the decision about NEED and all needs that it expands to in CLUSTER. The first denial decides."""
        decisions = [self.decide(one, host) for one in expanded(need, cluster)]
        return next((one for one in decisions if not one.allowed), decisions[0])

    def _decision(self, need: Need, host: str) -> Judgement:
        if not need.apart:
            return self._first_match(need, host)
        judgements = [
            self._first_match(need._replace(actions=action), host)
            for action in (PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST)
            if action & need.actions
        ]
        allowed = [one for one in judgements if one.allowed]
        denied = [one for one in judgements if one.policy is not None]
        return next(iter(allowed + denied), _NO_MATCH)

    def _first_match(self, need: Need, host: str) -> Judgement:
        for is_default, index in enumerate(self._indexes):
            for policy in index.candidates(need):
                if policy.matches(need, host):
                    return Judgement(policy.allow, policy, bool(is_default))
        return _NO_MATCH

    def __len__(self) -> int:
        return len(self.custom) + len(self.default)


class _Index:
    def __init__(self, policies: Iterable[Policy]) -> None:
        ordered = sorted(policies, key=Policy.order)
        self._literal: dict[tuple[str, str], list[Policy]] = {}
        self._others: list[Policy] = []
        for policy in ordered:
            resource = policy.resource
            if resource.pattern is Pattern.LITERAL:
                self._literal.setdefault((resource.type, resource.name), []).append(policy)
            else:
                self._others.append(policy)

    def candidates(self, need: Need) -> Iterator[Policy]:
        """Yield the policies that may match NEED, in order.

        A need for all of a type (`Topic:*`) is denied by each Deny of that type, also for a literal name or a prefix.
        Otherwise a request for everything would return names that a policy denies.
        """
        if need.name == "*":  # Denials of some names of the type. Prefixes come before `*` anyway.
            for policies in self._literal.values():
                yield from policies
        else:
            yield from self._literal.get((need.type, need.name), ())
        yield from self._others


def merged(old: Iterable[Policy], new: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return OLD with NEW: a policy replaces one with the same resource, as in RocketMQ's `updateAcl`."""
    return tuple({one.resource: one for one in (*old, *new)}.values())
