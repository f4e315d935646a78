"""Subscriptions: the filter of each official client for each topic of its group. All clients of a group need the same.

If filters differ, the group permanently skips messages that some of its clients need. While clients change to a new
filter, both are served for a grace period, then only the newer one (groups/grace.py). A setting of the group may refuse
a second filter at once, or serve all. Receives of a refused client get the error. So do the settings of a push
consumer, whose application does not see receives: it fails to start, as it does with a malformed filter. Clients of one
group may subscribe to different topics: any client may receive the messages in flight of a topic.

| a filter is | when |
|---|---|
| known | by settings or receive, whichever came last, because some clients send settings rarely or never |
| forgotten | when the client closes or its session ends; without a session, _SILENT_MS after its last receive |
| the group's | if the group refuses others: the filter that was known first |

Limit: `_WANTS_MAX` filters of clients. The event loop owns it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ...proto import errors
from ...proto.filters.normal_form import normalised
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ..config import BrokerConfig
from ..consumer_groups import GRACE, REFUSE, Groups, subscription_check
from ..groups.grace import STEPPED_OVER, SUPERSEDED, Grace, served_for
from ..groups.member_subscriptions import want_in_words
from ..timing.timers import Timers
from .client_session import ClientSession
from .request_checks import filter_of
from .sessions import Sessions
from .statuses import Refused

logger = logging.getLogger(__name__)
_WANTS_MAX: Final = 100_000
_SILENT_MS: Final = 60_000
#: Types of clients whose applications do not see the answers to receives.
_PUSHED_TO: Final = frozenset({v2.PUSH_CONSUMER, v2.LITE_PUSH_CONSUMER})
_RECEIVING_THEMSELVES: Final = frozenset({v2.SIMPLE_CONSUMER, v2.LITE_SIMPLE_CONSUMER})
_SCAN_MS: Final = 60_000
#: Limit of topics whose difference a message describes.
_NAMED_MAX: Final = 5
#: Group and topic.
Place: TypeAlias = tuple[str, str]
LITE: Final = "LITE"


@dataclass(slots=True)
class _Want:
    """The filter of one client for a topic: as it was sent, and in canonical form."""

    said: tuple[int, str]
    plain: tuple[int, str]
    heard_ms: int


@dataclass(slots=True)
class _Wants:
    """The filters of a group's clients for a topic, in the order in which they were known. ALIKE: all are equal."""

    of: dict[str, _Want] = field(default_factory=dict)
    alike: bool = True
    grace: Grace[tuple[int, str]] = field(default_factory=Grace)


@dataclass(frozen=True, slots=True)
class _Difference:
    """The filter of another CLIENT for a TOPIC, THERE, differs from that of the checked client, HERE."""

    client: str
    topic: str
    here: tuple[int, str]
    there: tuple[int, str]


def _named(client: str, group: str, differences: Sequence[_Difference]) -> tuple[str, str]:
    """Return the differing clients, and how CLIENT differs from the first other one, per topic, in words."""
    other = differences[0].client
    named = [
        f"topic {one.topic!r}: {want_in_words(one.here)} here, {want_in_words(one.there)} there"
        for one in differences
        if one.client == other
    ]
    more = f"; and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    who = f"client {client!r} and client {other!r} of group {group!r} have different subscriptions"
    return who, "; ".join(named[:_NAMED_MAX]) + more


class RefusedFilter(Refused):
    """A filter is malformed, or the group does not serve it."""


class Subscriptions:
    """The filters of the clients of SESSIONS, by group and topic. TIMERS use the machine's time."""

    def __init__(
        self, config: BrokerConfig, groups: Groups, sessions: Sessions, timers: Timers
    ) -> None:
        self._config = config
        self._groups = groups
        self._sessions = sessions
        self._timers = timers
        self._wants: dict[Place, _Wants] = {}
        self._places: dict[str, set[Place]] = {}
        self._count = 0

    def start(self) -> None:
        """Start to forget clients without a session."""
        self._timers.every(_SCAN_MS, self._scan)

    def settle(self, session: ClientSession, settings: v2.Settings) -> None:
        """Record the subscriptions in SESSION's new SETTINGS; raise Refused if the group does not serve them.

        The settings of a simple consumer are not refused: its application sees the answers to its receives.
        """
        if settings.client_type in _PUSHED_TO and session.settings is None:
            _check_filters(settings)
        before, now = _topics_of(session.settings), dict(_wants_of(settings))
        client = session.client_id
        try:
            self._check(client, now)
        except RefusedFilter:
            if settings.client_type not in _RECEIVING_THEMSELVES:
                raise
            return  # Its receives are refused.
        for place in before - now.keys():
            self._drop(place, client)
        for place, wanted in now.items():
            self._note(client, place, wanted)

    def receive(self, client: str, group: str, topic: str, wanted: pb.Filter) -> None:
        """Record that CLIENT receives from TOPIC for GROUP with the filter WANTED; raise Refused as `settle` does."""
        place = group, topic
        wants = self._wants.get(place) or _Wants()
        mine = wants.of.get(client)
        if mine is None or mine.said != (wanted.kind, wanted.expression) or not wants.alike:
            self._check(client, {place: wanted})
            mine = self._note(client, place, wanted)
        mine.heard_ms = self._timers.now_ms()

    def forget(self, client: str) -> None:
        """Forget CLIENT, which has gone."""
        for place in list(self._places.get(client, ())):
            self._drop(place, client)

    def of_group(self, group: str) -> list[pb.Member]:
        """Return the official clients that consume for GROUP, with their filters."""
        found: dict[str, pb.Member] = {}
        for (owner, topic), wants in self._wants.items():
            for client, want in wants.of.items() if owner == group else ():
                member = found.setdefault(client, self._described(client))
                kind, expression = want.plain
                wire = pb.Filter(kind=pb.Filter.Kind.Name(kind), expression=expression)
                member.subscriptions.add(topic=topic, filter=wire)
                member.last_heard_ms = max(member.last_heard_ms, self._unix_ms(want.heard_ms))
        return [found[client] for client in sorted(found)]

    def grace_left_ms(self, group: str) -> int | None:
        """Return in how many ms only the newest filter of GROUP is served; None: there is only one."""
        if self._check_of(group) != GRACE:
            return None
        now_ms, grace_ms = self._timers.now_ms(), self._config.subscription_grace_ms
        ends = [
            wants.grace.ends_ms([want.plain for want in wants.of.values()], now_ms, grace_ms)
            for (owner, _), wants in self._wants.items()
            if owner == group and not wants.alike
        ]
        left = [max(0, one - now_ms) for one in ends if one is not None]
        return min(left, default=None)

    def _described(self, client: str) -> pb.Member:
        session = self._sessions.find(client)
        if session is None:
            return pb.Member(member_id=client, kind="receives")
        kind = session.settings.client_type if session.settings is not None else 0
        named = v2.ClientType.Name(kind).lower().replace("_", " ") if kind else "receives"
        return pb.Member(
            member_id=client,
            kind=named,
            peer=session.language,
            last_heard_ms=self._unix_ms(session.heard_ms),
        )

    def _unix_ms(self, instant_ms: int) -> int:
        return instant_ms + self._timers.unix_ms() - self._timers.now_ms()

    def _check(self, client: str, wanted: dict[Place, pb.Filter]) -> None:
        """Raise Refused if the group does not serve the filters WANTED of CLIENT; log differences to other clients."""
        if not wanted:
            return
        group = next(iter(wanted))[0]
        check = self._check_of(group)
        others: list[_Difference] = []
        refused: list[_Difference] = []
        for place, wire in wanted.items():
            won = self._winner(client, place, wire)
            other = self._other(client, place, wire, won if check == GRACE else None)
            if other is None:
                continue
            others.append(other)
            if (check == GRACE and won is not None) or (
                check == REFUSE and self._is_later(client, place, other)
            ):
                refused.append(other)
        if refused:
            who, difference = _named(client, group, refused)
            advice = (
                SUPERSEDED if check == GRACE else "use the same subscription, or a group of its own"
            )
            other_client = refused[0].client
            raise RefusedFilter(
                v2.FORBIDDEN,
                f"{who}: {difference}: {advice}{self._if_gone(other_client)}",
                group=group,
                client=client,
                other=other_client,
                difference=difference,
            )
        if not others or all(self._has(client, place, wire) for place, wire in wanted.items()):
            return
        who, difference = _named(client, group, others)
        advice = served_for(self._config.subscription_grace_ms) if check == GRACE else STEPPED_OVER
        logger.warning("subscriptions differ reason=%s: %s: %s", who, difference, advice)

    def _check_of(self, group: str) -> str:
        try:
            return subscription_check(self._groups.get(group))
        except errors.GroupNotFound:
            return GRACE

    def _winner(self, client: str, place: Place, wire: pb.Filter) -> tuple[int, str] | None:
        """Return the filter that is served instead of WIRE of CLIENT; None: WIRE is served, in a grace period or for
        good.
        """
        wants = self._wants.get(place)
        if wants is None:
            return None
        mine = _plain(wire)
        present = [
            want.plain
            for name, want in wants.of.items()
            if self._is_there(name, want) and (name != client or want.plain == mine)
        ]
        grace_ms = self._config.subscription_grace_ms
        return wants.grace.winner(mine, present, self._timers.now_ms(), grace_ms)

    def _other(
        self, client: str, place: Place, wire: pb.Filter, won: tuple[int, str] | None
    ) -> _Difference | None:
        """Return the first client whose filter for PLACE is not WIRE, and the filter that has WON, if any."""
        mine = _plain(wire)
        wants = self._wants.get(place)
        for name, want in list(wants.of.items()) if wants is not None else ():
            if name == client or want.plain == mine:
                continue
            if not self._is_there(name, want):
                self._drop(place, name)
            elif won in (None, want.plain):
                return _Difference(name, place[1], mine, want.plain)
        return None

    def _is_later(self, client: str, place: Place, other: _Difference) -> bool:
        """Return whether CLIENT's filter for PLACE is newer than that of the OTHER client."""
        names = list(self._wants[place].of)
        want = self._wants[place].of.get(client)
        if want is None or want.plain != other.here:
            return True
        return names.index(client) > names.index(other.client)

    def _has(self, client: str, place: Place, wire: pb.Filter) -> bool:
        """Return whether WIRE is the known filter of CLIENT for PLACE."""
        wants = self._wants.get(place)
        want = None if wants is None else wants.of.get(client)
        return want is not None and want.plain == _plain(wire)

    def _is_there(self, client: str, want: _Want) -> bool:
        session = self._sessions.find(client)
        if session is not None:
            return not session.is_gone
        return self._timers.now_ms() - want.heard_ms < _SILENT_MS

    def _if_gone(self, client: str) -> str:
        """Return what to do if CLIENT, which has the other filter, has gone."""
        session = self._sessions.find(client)
        if session is None:
            return f" (that client has no stream: if it has stopped, try again in {_SILENT_MS} ms)"
        if session.streams:
            return ""
        left_ms = session.silent_in_ms(self._timers.now_ms())
        return f" (that client is not connected: if it has stopped, try again in {left_ms} ms)"

    def _note(self, client: str, place: Place, wire: pb.Filter) -> _Want:
        wants = self._wants.get(place)
        plain = _plain(wire)
        before = None if wants is None else wants.of.get(client)
        if before is not None and before.plain == plain:
            before.said = wire.kind, wire.expression
            return before
        if before is not None:
            self._drop(place, client)
        if self._count >= _WANTS_MAX:
            raise errors.Overloaded(
                f"clients subscribe to {self._count} topics in all, the limit is {_WANTS_MAX}: close some clients",
                field="subscriptions",
                limit=_WANTS_MAX,
                value=self._count,
            )
        wants = self._wants.setdefault(place, _Wants())
        made = wants.of[client] = _Want((wire.kind, wire.expression), plain, self._timers.now_ms())
        self._count += 1
        self._places.setdefault(client, set()).add(place)
        wants.alike = len({want.plain for want in wants.of.values()}) == 1
        return made

    def _drop(self, place: Place, client: str) -> None:
        wants = self._wants.get(place)
        if wants is None or wants.of.pop(client, None) is None:
            return
        self._count -= 1
        places = self._places[client]
        places.discard(place)
        if not places:
            del self._places[client]
        wants.alike = len({want.plain for want in wants.of.values()}) <= 1
        if not wants.of:
            del self._wants[place]

    def _scan(self) -> None:
        for place, wants in list(self._wants.items()):
            for client in [
                name for name, want in wants.of.items() if not self._is_there(name, want)
            ]:
                self._drop(place, client)


def _plain(wire: pb.Filter) -> tuple[int, str]:
    found = normalised(wire)
    return found.kind, found.expression


def _wants_of(settings: v2.Settings) -> Iterator[tuple[Place, pb.Filter]]:
    """Yield the subscriptions in SETTINGS, without malformed filters: receives with these are refused."""
    group = settings.subscription.group.name
    for entry in settings.subscription.subscriptions:
        try:
            wanted = filter_of(entry.expression)
            normalised(wanted)
        except (Refused, errors.InvalidFilter):
            continue
        yield (group, entry.topic.name), wanted


def _check_filters(settings: v2.Settings) -> None:
    """Raise Refused for the first malformed filter in SETTINGS."""
    for entry in settings.subscription.subscriptions:
        try:
            normalised(filter_of(entry.expression))
        except (Refused, errors.InvalidFilter) as error:
            topic = entry.topic.name
            raise RefusedFilter(
                v2.ILLEGAL_FILTER_EXPRESSION,
                f"the filter of topic {topic!r} is malformed: {error.message}",
                field="expression",
                topic=topic,
            ) from None


def _topics_of(settings: v2.Settings | None) -> set[Place]:
    if settings is None:
        return set()
    group = settings.subscription.group.name
    return {(group, entry.topic.name) for entry in settings.subscription.subscriptions}
