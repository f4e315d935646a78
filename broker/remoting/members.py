"""The clients that are connected by remoting: their groups and subscriptions, as their heartbeats report them.

A client sends a heartbeat every 30 s. It is forgotten when its connection closes, when it unregisters, or `EXPIRY_MS`
after its last heartbeat. Whenever the members or subscriptions of a consumer group change, all members are notified:
each asks for the list of members, and allocates the queues itself.

Clients of a group must allocate in the same way. Therefore a group with PocketMQ's own members, or one that pops, is
refused here, and a group with members here is refused there.

Limits: `broker.clients_max` clients, and the constants below. The event loop owns it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ...proto.errors import InvalidArgument, NotAuthorized, Overloaded
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.command import ONE_WAY, RemotingCommand
from ...proto.remoting.connection import RemotingConnection
from ...proto.remoting.requests import ANYBODY, RemotingRequest, RequestUser
from ..timing.timers import Timers

logger = logging.getLogger(__name__)

#: A client that sends no heartbeat for this long is forgotten, as in Apache RocketMQ.
EXPIRY_MS: Final = 120_000
_SCAN_MS: Final = 10_000
#: Clients of one connection. RocketMQ's have a connection each.
IDS_MAX: Final = 64
#: Groups of one client, and subscriptions of one of its groups.
GROUPS_MAX: Final = 256
SUBSCRIPTIONS_MAX: Final = 1_024
_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group reads of TOPIC: KIND is "TAG" or "SQL92". VERSION rises with each change at the client."""

    topic: str
    expression: str
    kind: str = "TAG"
    version: int = 0


#: What a client consumes as a member of one group: subscriptions by topic.
Subscriptions: TypeAlias = Mapping[str, Subscription]


@dataclass(slots=True, eq=False)
class ClassicClient:
    """One client. CONSUMES: by group. PRODUCES: producer groups."""

    client_id: str
    connection: RemotingConnection
    language: str
    version: int
    heard_ms: int
    produces: frozenset[str] = frozenset()
    consumes: dict[str, Subscriptions] = field(default_factory=dict)
    #: The fingerprint of its last complete heartbeat.
    fingerprint: int = 0
    #: The user of that heartbeat.
    user: RequestUser = ANYBODY


class Members:
    """All clients, by id. TIMERS use the machine's time. LIMIT returns the maximum number of clients.

    CHECK_GROUP raises GroupInUse for a consumer group whose members use gRPC. CHANGED is called with a client whose
    groups have changed, and GONE with one that was forgotten.
    """

    def __init__(
        self,
        timers: Timers,
        *,
        limit: Callable[[], int],
        check_group: Callable[[str], None],
        changed: Callable[[ClassicClient], None],
        gone: Callable[[ClassicClient], None],
    ) -> None:
        self._timers = timers
        self._limit = limit
        self._check_group = check_group
        self._changed = changed
        self._gone = gone
        self._members: dict[str, ClassicClient] = {}
        self._by_group: dict[str, dict[str, ClassicClient]] = {}
        #: The ids of clients by connection, until it is closed.
        self._ids: dict[RemotingConnection, set[str]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def start(self) -> None:
        """Start to check for silent clients."""
        self._timers.every(_SCAN_MS, self._scan)

    def find(self, client_id: str) -> ClassicClient | None:
        """Return the client CLIENT_ID; None if it is not connected."""
        return self._members.get(client_id)

    def of_group(self, group: str) -> list[ClassicClient]:
        """Return the members of the consumer group GROUP."""
        return list(self._by_group.get(group, {}).values())

    def has_members(self, group: str) -> bool:
        """Return whether the consumer group GROUP has members here."""
        return group in self._by_group

    def is_member(self, group: str, client_id: str) -> bool:
        """Return whether CLIENT_ID is a member of the consumer group GROUP."""
        return client_id in self._by_group.get(group, ())

    def is_own(self, connection: RemotingConnection, group: str, client_id: str) -> bool:
        """Return whether CLIENT_ID is a member of the consumer group GROUP on CONNECTION."""
        member = self._by_group.get(group, {}).get(client_id)
        return member is not None and member.connection is connection

    def check_allowed(self, group: str) -> None:
        """Raise GroupInUse if clients of this protocol must not consume as GROUP."""
        self._check_group(group)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the newest subscription of GROUP to TOPIC; None if no member has one."""
        members = self._by_group.get(group, {}).values()
        found = [one.consumes[group].get(topic) for one in members]
        return max((one for one in found if one is not None), key=_version, default=None)

    def beat(
        self,
        request: RemotingRequest,
        client_id: str,
        produces: frozenset[str],
        consumes: Mapping[str, Subscriptions],
        fingerprint: int,
    ) -> None:
        """Apply REQUEST, a complete heartbeat of CLIENT_ID. Raises GroupInUse, Overloaded or NotAuthorized; then
        nothing changes.
        """
        for group in consumes:
            self._check_group(group)
        member = self._entered(client_id, request)
        member.user = request.user
        member.heard_ms = self._timers.now_ms()
        member.fingerprint = fingerprint
        before = dict(member.consumes)
        same = member.produces == produces and before == consumes
        member.produces, member.consumes = produces, dict(consumes)
        for group in before.keys() - consumes.keys():
            self._leave(member, group)
        for group in consumes:
            self._by_group.setdefault(group, {})[client_id] = member
        if not same:
            self._changed(member)
        for group, subscriptions in consumes.items():
            if before.get(group) != subscriptions:
                self.notify(group)

    def beat_again(self, connection: RemotingConnection, client_id: str, fingerprint: int) -> bool:
        """Apply a heartbeat that leaves out subscriptions; return whether those of FINGERPRINT are known."""
        member = self._members.get(client_id)
        if member is None or member.connection is not connection:
            return False
        if member.fingerprint != fingerprint:
            return False
        member.heard_ms = self._timers.now_ms()
        return True

    def _entered(self, client_id: str, request: RemotingRequest) -> ClassicClient:
        """Return the client CLIENT_ID of REQUEST, perhaps a new one."""
        connection, command = request.connection, request.command
        member = self._members.get(client_id)
        if member is None or member.connection is not connection:
            if member is not None:
                if member.user.name != request.user.name:
                    raise NotAuthorized(
                        f"client id {client_id[:_SHOWN]!r} is that of a connected client of another user: choose"
                        " another one (instanceName), or stop that client",
                        field="clientID",
                        user=request.user.name,
                    )
                self._forget(member)  # It has reconnected.
            if len(self._ids.get(connection, ())) >= IDS_MAX:
                raise Overloaded(
                    f"the connection has {IDS_MAX} clients, which is the limit: give each client its own",
                    field="clientID",
                    limit=IDS_MAX,
                    value=IDS_MAX + 1,
                )
            if len(self._members) >= self._limit():
                raise Overloaded(
                    f"{len(self._members)} clients are connected, the limit is {self._limit()} (broker.clients_max):"
                    " close some, or raise the limit",
                    field="clients_max",
                    limit=self._limit(),
                    value=len(self._members),
                )
            member = ClassicClient(
                client_id, connection, command.language, command.version, self._timers.now_ms()
            )
            self._members[client_id] = member
            if connection in self._ids:
                self._ids[connection].add(client_id)
            else:
                self._ids[connection] = {client_id}
                connection.on_close(lambda: self._lost(connection))
        return member

    def leave(
        self,
        connection: RemotingConnection,
        client_id: str,
        *,
        produces: str = "",
        consumes: str = "",
    ) -> None:
        """Apply the end of a producer or consumer group at CLIENT_ID, which CONNECTION must be of; a client without
        groups is forgotten.
        """
        member = self._members.get(client_id)
        if member is None or member.connection is not connection:
            return
        if produces:
            member.produces -= {produces}
        if consumes and member.consumes.pop(consumes, None) is not None:
            self._leave(member, consumes)
        if not (member.produces or member.consumes):
            self._forget(member)
        else:
            self._changed(member)

    def _leave(self, member: ClassicClient, group: str) -> None:
        members = self._by_group.get(group, {})
        members.pop(member.client_id, None)
        if members:
            self.notify(group)
        else:
            self._by_group.pop(group, None)

    def _lost(self, connection: RemotingConnection) -> None:
        for client_id in self._ids.pop(connection, ()):
            self._forget(self._members[client_id])

    def _forget(self, member: ClassicClient) -> None:
        del self._members[member.client_id]
        if (ids := self._ids.get(member.connection)) is not None:
            ids.discard(member.client_id)
        groups, member.consumes = list(member.consumes), {}
        for group in groups:
            self._leave(member, group)
        self._gone(member)

    def notify(self, group: str) -> None:
        """Notify the members of GROUP that its members, or their subscriptions, have changed."""
        command = RemotingCommand(
            code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            flag=ONE_WAY,
            fields={"consumerGroup": group},
        )
        for member in self.of_group(group):
            if member.connection.has_room:
                member.connection.send(command)

    def _scan(self) -> None:
        now_ms = self._timers.now_ms()
        for member in list(self._members.values()):
            if now_ms - member.heard_ms >= EXPIRY_MS:
                logger.info("remoting client timed out client=%s", member.client_id)
                self._forget(member)


def _version(subscription: Subscription) -> int:
    return subscription.version


def check_counts(produces: frozenset[str], consumes: Mapping[str, Subscriptions]) -> None:
    """Raise InvalidArgument if these are more groups, or subscriptions, than a client may have."""
    count = len(produces) + len(consumes)
    if count > GROUPS_MAX:
        raise InvalidArgument(
            f"the client has {count} groups, the limit is {GROUPS_MAX}: use fewer",
            field="groups",
            limit=GROUPS_MAX,
            value=count,
        )
    for group, subscriptions in consumes.items():
        if len(subscriptions) > SUBSCRIPTIONS_MAX:
            raise InvalidArgument(
                f"group {group!r} subscribes to {len(subscriptions)} topics, the limit is"
                f" {SUBSCRIPTIONS_MAX}: use several groups",
                field="subscriptionDataSet",
                limit=SUBSCRIPTIONS_MAX,
                value=len(subscriptions),
            )
