"""Which messages of a topic each official client wants for its group: all those of a group the same.

A client whose filter is not that of the others would make the group step over messages that they want, for good. It
is refused, by the answer to its settings and to its receives, or logged and let in, as the group is set (the setting
that members of ours go by). Topics may differ: what is lent of a topic goes to whoever receives from it.

    known      by settings and by receives, whichever came last: some clients send no settings, or not again for minutes
    forgotten  at the client's goodbye; when it counts as gone (sessions.py); without a session _SILENT_MS after its
               last receive
    first      who has wanted its filter for longest is right, and the others are refused

Bounds: `_WANTS_MAX` clients' wants of a topic together. A receive that wants what its client wanted before costs one
look. The event loop owns it.

SyncLiteSubscription, what clients of light topics ask for, is refused. A topic of type LITE takes messages, each with
the light topic that it is for, and ordinary consumers get them all, with `lite_topic`. Consumers of single light topics
are not served: they are told so (NOT_IMPLEMENTED) once what they ask is well-formed, and what to do instead. Apache's
broker refuses them as well, without its proxy in cluster mode.

Source: v2-protocol.md §4.10; fixtures v2/lite and v2/cluster-lite.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeAlias

from ...proto.errors import GroupNotFound, InvalidArgument, InvalidFilter, NotServed, Overloaded
from ...proto.filters.wire import normalised
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.properties import LITE_TOPIC
from ...proto.rpc import Call, MethodTable
from ..groups.groups import Groups, is_only_warned
from ..groups.membership import want_in_words
from ..timing.timers import Timers
from ..topics import TYPE_ATTRIBUTE, Topics
from .checks import check_lite_topic, checked_group, checked_topic, filter_of
from .service import Refused, service, unary
from .sessions import ClientSession, Sessions

logger = logging.getLogger(__name__)

_WANTS_MAX: Final = 100_000
_SILENT_MS: Final = 60_000
_SCAN_MS: Final = 60_000
#: Topics whose difference is told.
_TOLD_MAX: Final = 5

#: Group and topic.
Place: TypeAlias = tuple[str, str]
LITE: Final = "LITE"


@dataclass(slots=True)
class _Want:
    """What one client wants of a topic: as it said it, and in the form of all that mean the same."""

    said: tuple[int, str]
    plain: tuple[int, str]
    heard_ms: int


@dataclass(slots=True)
class _Wants:
    """What the clients of a group want of a topic, who has wanted it for longest first. ALIKE: all the same."""

    of: dict[str, _Want] = field(default_factory=dict)
    alike: bool = True


class Subscriptions:
    """The wants of the clients of SESSIONS, by group and topic; TIMERS turn by the machine's time."""

    def __init__(self, groups: Groups, sessions: Sessions, timers: Timers) -> None:
        self._groups = groups
        self._sessions = sessions
        self._timers = timers
        self._wants: dict[Place, _Wants] = {}
        self._places: dict[str, set[Place]] = {}
        self._count = 0
        sessions.on_gone.append(self.forget)

    def start(self) -> None:
        """Begin to forget clients without a session."""
        self._timers.every(_SCAN_MS, self._scan)

    # --- who wants what

    def settle(self, session: ClientSession, settings: v2.Settings) -> None:
        """Note what SESSION's new SETTINGS subscribe to; raise Refused if others of the group want something else."""
        before, now = _topics_of(session.settings), dict(_wants_of(settings))
        client = session.client_id
        self._check(client, now)
        for place in before - now.keys():
            self._drop(place, client)
        for place, wanted in now.items():
            self._note(client, place, wanted)

    def receive(self, client: str, group: str, topic: str, wanted: pb.Filter) -> None:
        """Note that CLIENT receives what is WANTED of TOPIC for GROUP; raise Refused as `settle` does."""
        place = group, topic
        wants = self._wants.get(place) or _Wants()
        mine = wants.of.get(client)
        if mine is None or mine.said != (wanted.kind, wanted.expression) or not wants.alike:
            self._check(client, {place: wanted})
            mine = self._note(client, place, wanted)
        mine.heard_ms = self._timers.now_ms()

    def forget(self, client: str) -> None:
        """Forget CLIENT, which is gone."""
        for place in list(self._places.get(client, ())):
            self._drop(place, client)

    def of_group(self, group: str) -> list[pb.Member]:
        """Return the official clients that consume for GROUP, and what each wants."""
        found: dict[str, pb.Member] = {}
        for (owner, topic), wants in self._wants.items():
            for client, want in wants.of.items() if owner == group else ():
                member = found.setdefault(client, self._described(client))
                kind, expression = want.plain
                wire = pb.Filter(kind=pb.Filter.Kind.Name(kind), expression=expression)
                member.subscriptions.add(topic=topic, filter=wire)
                member.last_heard_ms = max(member.last_heard_ms, self._unix_ms(want.heard_ms))
        return [found[client] for client in sorted(found)]

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

    # --- differences

    def _check(self, client: str, wanted: dict[Place, pb.Filter]) -> None:
        """Raise Refused if somebody has wanted something else for longer than CLIENT, unless the group only warns."""
        told: list[str] = []
        other = ""
        for place, wire in wanted.items():
            found = self._before(client, place, wire)
            if found is None:
                continue
            name, theirs = found
            if other in ("", name):
                other = name
                here, there = want_in_words(_plain(wire)), want_in_words(theirs)
                told.append(f"topic {place[1]!r}: {here} here, {there} there")
        if not told:
            return
        group = next(iter(wanted))[0]
        difference = "; ".join(told[:_TOLD_MAX])
        if len(told) > _TOLD_MAX:
            difference += f"; and {len(told) - _TOLD_MAX} more"
        who = f"client {client!r} wants something else of group {group!r} than client {other!r}"
        if self._is_only_warned(group):
            if all(self._has(client, place, wire) for place, wire in wanted.items()):
                return
            logger.warning(
                "subscriptions differ reason=%s: %s: messages that one of them does not want are stepped over",
                who,
                difference,
            )
            return
        raise Refused(
            v2.FORBIDDEN,
            f"{who}: {difference}: subscribe alike, or use a group of its own{self._if_gone(other)}",
            group=group,
            client=client,
            other=other,
            difference=difference,
        )

    def _has(self, client: str, place: Place, wire: pb.Filter) -> bool:
        """Is what CLIENT wants of PLACE known as WIRE?"""
        wants = self._wants.get(place)
        want = None if wants is None else wants.of.get(client)
        return want is not None and want.plain == _plain(wire)

    def _before(
        self, client: str, place: Place, wire: pb.Filter
    ) -> tuple[str, tuple[int, str]] | None:
        """Return who wants something else of PLACE than WIRE, and did so before CLIENT, and what; None: nobody."""
        wants = self._wants.get(place)
        if wants is None:
            return None
        mine, plain = wants.of.get(client), _plain(wire)
        for name, want in list(wants.of.items()):
            if name == client and mine is not None and mine.plain == plain:
                return None  # Those behind it are refused, not this one.
            if name != client and want.plain != plain:
                if self._is_there(name, want):
                    return name, want.plain
                self._drop(place, name)
        return None

    def _is_there(self, client: str, want: _Want) -> bool:
        session = self._sessions.find(client)
        if session is not None:
            return not session.is_gone
        return self._timers.now_ms() - want.heard_ms < _SILENT_MS

    def _if_gone(self, client: str) -> str:
        """Return what to do if CLIENT, which wants something else, is not there any more."""
        session = self._sessions.find(client)
        if session is None:
            return f" (that one has no stream: if it is gone, try again in {_SILENT_MS} ms)"
        if session.streams:
            return ""
        left_ms = session.silent_in_ms(self._timers.now_ms())
        return f" (that one is not connected: if it is gone, try again in {left_ms} ms)"

    def _is_only_warned(self, group: str) -> bool:
        try:
            return is_only_warned(self._groups.get(group))
        except GroupNotFound:
            return False

    # --- the table

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
            raise Overloaded(
                f"clients subscribe to {self._count} topics in all, the limit is {_WANTS_MAX}: close some",
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
    """Yield what SETTINGS subscribe to; what is no filter is refused where it is received."""
    group = settings.subscription.group.name
    for entry in settings.subscription.subscriptions:
        try:
            wanted = filter_of(entry.expression)
            normalised(wanted)
        except (Refused, InvalidFilter):
            continue
        yield (group, entry.topic.name), wanted


def _topics_of(settings: v2.Settings | None) -> set[Place]:
    if settings is None:
        return set()
    group = settings.subscription.group.name
    return {(group, entry.topic.name) for entry in settings.subscription.subscriptions}


# --- light topics


class LiteSubscriptions:
    """Refuses subscriptions to light topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "SyncLiteSubscription": unary(
                    v2.SyncLiteSubscriptionRequest, v2.SyncLiteSubscriptionResponse, self.sync
                )
            }
        )

    def sync(self, request: v2.SyncLiteSubscriptionRequest, call: Call) -> NoReturn:
        """Raise NotServed for REQUEST; Refused or TopicNotFound, if it would not do anywhere."""
        checked_group(request.group.name)
        topic = self._topics.get(checked_topic(request.topic.name))
        if topic.attributes.get(TYPE_ATTRIBUTE) != LITE:
            raise Refused(
                v2.ILLEGAL_TOPIC,
                f"topic {topic.name!r} has no light topics: its {TYPE_ATTRIBUTE} is not {LITE}",
                field="topic",
                value=topic.name,
            )
        for name in request.lite_topic_set:
            check_lite_topic(name)
        if request.action not in v2.LiteSubscriptionAction.values():
            raise InvalidArgument(
                f"action is {request.action}: must be one of PARTIAL_ADD (0) to COMPLETE_REMOVE (3)",
                field="action",
                value=request.action,
            )
        raise NotServed(
            f"consumers of single light topics are not served: subscribe to {topic.name!r} with a push or simple"
            " consumer, which gets the messages of all its light topics, or, in a group of its own, of one with the"
            f" SQL filter {LITE_TOPIC} = 'name'",
            topic=topic.name,
        )
