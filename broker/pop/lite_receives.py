"""Consumers of lite topics: their subscriptions, and receives of the lite topics that have something for them.

A group of lite consumers belongs to one parent topic (attribute `lite.bind.topic`). Its clients subscribe to single
lite topics, or in a wildcard group to all. A lite topic that may have a message is *ready* for each client that
subscribes to it. A receive takes from the ready lite topics of its client, in their order; one that still has messages
goes to the end. So the client that asks first gets them, and no event can be lost.

In an exclusive group, a lite topic has one subscriber: a new one evicts the others.

Subscriptions are in memory. They end with the client, or _SILENT_MS after its last call; the official clients repeat
theirs every 30 s. The event loop owns this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from ...proto.errors import Overloaded, PocketMQError
from ...proto.lite_topics import LITE_QUEUE, lite_queue_name, split_lite_queue
from ...store.format.state_tables import GroupConfig
from ..config import BrokerConfig
from ..timing.purgatory import Purgatory, end_of_wait
from .lite_table import LiteTable
from .receives import PoppedMessage, Receive, ReceiveRequest, ReceiveResult, Rules, TakenMessages
from .table import PopParts

#: Group attributes of RocketMQ.
BIND_TOPIC: Final = "lite.bind.topic"
MODEL: Final = "lite.sub.model"
EXCLUSIVE: Final = "Exclusive"
WILDCARD: Final = "lite.sub.wildcard"
RESET_ON_EVICTION: Final = "lite.sub.reset.offset.exclusive"
RESET_ON_UNSUBSCRIBE: Final = "lite.sub.reset.offset.unsubscribe"
#: Limit of subscriptions of all clients.
SUBSCRIPTIONS_MAX: Final = 100_000
_SILENT_MS: Final = 180_000
#: Attempt ids that are known for receives that are repeated.
_ATTEMPTS_MAX: Final = 10_000
#: Called with client id, group and lite topic: the client does not subscribe to it any more.
Evicted = Callable[[str, str, str], None]


@dataclass(slots=True, eq=False)
class LiteClient:
    """One client: the lite queues to which it subscribes, those that are ready, and those that others took over."""

    client_id: str
    heard_ms: int
    names: dict[str, None] = field(default_factory=dict)
    ready: dict[str, None] = field(default_factory=dict)
    evicted: set[str] = field(default_factory=set)
    #: Does it subscribe to all lite topics?
    is_wild: bool = False
    receives: dict[Receive, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class LiteGroup:
    """The clients of one group, and the subscribers of each lite queue."""

    name: str
    parent: str
    clients: dict[str, LiteClient] = field(default_factory=dict)
    subscribers: dict[str, dict[str, LiteClient]] = field(default_factory=dict)
    #: Lite queues by the id of the receive that got messages of them.
    attempts: dict[str, list[str]] = field(default_factory=dict)

    def of(self, name: str) -> Iterator[LiteClient]:
        """Yield the subscribers of the lite queue NAME."""
        yield from self.subscribers.get(name, {}).values()
        yield from (client for client in self.clients.values() if client.is_wild)


class LiteTables(Protocol):
    """The tables of pops."""

    def lite_table(self, group: str, name: str) -> LiteTable: ...

    def known_lite_table(self, group: str, name: str) -> LiteTable | None: ...

    def drop_lite_table(self, group: str, name: str) -> None: ...

    def rules_of_lite(self, asked: ReceiveRequest) -> Rules: ...

    def scan_more(self, receive: Receive) -> None: ...


class LiteReceives:
    """All groups of lite consumers."""

    def __init__(
        self, config: BrokerConfig, tables: LiteTables, parts: PopParts, purgatory: Purgatory
    ) -> None:
        self._config = config
        self._tables = tables
        self._parts = parts
        self._purgatory = purgatory
        self._lite = parts.store.queues.lite
        self._lite.watch()
        self._groups: dict[str, LiteGroup] = {}
        #: Lite queues with messages that are not confirmed yet.
        self._unconfirmed: dict[str, None] = {}
        #: Clients whose waiting receives will be tried again in the next turn.
        self._woken: dict[LiteClient, LiteGroup] = {}
        self.evicted: Evicted = lambda client_id, group, lite_topic: None

    def on_eviction(self, evicted: Evicted) -> None:
        """Call EVICTED with each client that another one evicts."""
        self.evicted = evicted

    # --- subscriptions

    def group(self, group: GroupConfig) -> LiteGroup:
        """Return the clients of GROUP, which belongs to a topic."""
        parent = group.attributes[BIND_TOPIC]
        found = self._groups.get(group.name)
        if found is None or found.parent != parent:
            found = self._groups[group.name] = LiteGroup(group.name, parent)
        return found

    def groups(self) -> list[LiteGroup]:
        """Return the groups that have had clients."""
        return list(self._groups.values())

    def client(self, group: LiteGroup, client_id: str) -> LiteClient:
        """Return the client CLIENT_ID of GROUP, which has just called."""
        client = group.clients.get(client_id)
        if client is None:
            client = group.clients[client_id] = LiteClient(client_id, 0)
        client.heard_ms = self._parts.leases.wall_ms()
        return client

    @property
    def subscription_count(self) -> int:
        """The number of subscriptions of all clients."""
        return sum(
            len(client.names) for group in self.groups() for client in group.clients.values()
        )

    def add(
        self, group: LiteGroup, client: LiteClient, names: Iterable[str], config: GroupConfig
    ) -> None:
        """Let CLIENT subscribe to the lite queues NAMES; in an exclusive group this evicts other subscribers."""
        exclusive = config.attributes.get(MODEL) == EXCLUSIVE
        for name in names:
            client.evicted.discard(name)
            if exclusive:
                self._evict_others(group, client, name, config)
            client.names[name] = None
            group.subscribers.setdefault(name, {})[client.client_id] = client
            self._offer(group, client, name)

    def complete(
        self, group: LiteGroup, client: LiteClient, names: Sequence[str], config: GroupConfig
    ) -> None:
        """Let CLIENT subscribe to exactly NAMES. One that another client took over is only notified again."""
        if WILDCARD in config.attributes:
            self._subscribe_to_all(group, client)
            return
        wanted = dict.fromkeys(names)
        client.evicted &= wanted.keys()
        for name in client.evicted:
            self._tell_evicted(group, client, name)
        self.remove(group, client, [name for name in client.names if name not in wanted])
        new = [name for name in wanted if name not in client.names and name not in client.evicted]
        self.add(group, client, new, config)

    def _subscribe_to_all(self, group: LiteGroup, client: LiteClient) -> None:
        if client.is_wild:
            return
        client.is_wild = True
        for queue in self._lite:
            names = split_lite_queue(queue.topic)
            if names is not None and names[0] == group.parent:
                self._offer(group, client, queue.topic)

    def remove(self, group: LiteGroup, client: LiteClient, names: Iterable[str]) -> None:
        """End subscriptions of CLIENT to NAMES."""
        for name in names:
            client.names.pop(name, None)
            client.ready.pop(name, None)
            holders = group.subscribers.get(name)
            if holders is not None:
                holders.pop(client.client_id, None)
                if not holders:
                    del group.subscribers[name]

    def committed(self, group: LiteGroup, name: str) -> int | None:
        """Return the next offset of GROUP in the lite queue NAME; None if it has none."""
        return self._parts.offsets.committed(name, group.name, LITE_QUEUE)

    def reset(self, group: LiteGroup, name: str, offset: int) -> None:
        """Let GROUP continue at OFFSET of the lite queue NAME; nothing of it is in flight then."""
        low, end = self._parts.store.queue_bounds(name, LITE_QUEUE)
        if end == low == 0:
            return  # It has never had a message.
        self._tables.lite_table(group.name, name).move(LITE_QUEUE, min(max(offset, low), end))
        self._tables.drop_lite_table(group.name, name)
        self.woken(group.name, name)

    def _evict_others(
        self, group: LiteGroup, client: LiteClient, name: str, config: GroupConfig
    ) -> None:
        others = [one for one in group.subscribers.get(name, {}).values() if one is not client]
        for other in others:
            self.remove(group, other, [name])
            other.evicted.add(name)
            self._tell_evicted(group, other, name)
        if others and config.attributes.get(RESET_ON_EVICTION, "").lower() == "true":
            self.reset(group, name, 0)

    def _tell_evicted(self, group: LiteGroup, client: LiteClient, name: str) -> None:
        names = split_lite_queue(name)
        if names is not None:
            self.evicted(client.client_id, group.name, names[1])

    def client_gone(self, client_id: str) -> None:
        """End the subscriptions and the waiting receives of CLIENT_ID."""
        for group in self._groups.values():
            client = group.clients.get(client_id)
            if client is not None:
                self._drop(group, client)

    def _drop(self, group: LiteGroup, client: LiteClient) -> None:
        for receive in list(client.receives):
            receive.end()
        self.remove(group, client, list(client.names))
        del group.clients[client.client_id]
        self._woken.pop(client, None)

    def forget_silent(self) -> None:
        """Drop clients that have sent nothing for _SILENT_MS."""
        oldest_ms = self._parts.leases.wall_ms() - _SILENT_MS
        for group in self._groups.values():
            for client in list(group.clients.values()):
                if client.heard_ms < oldest_ms and not client.receives:
                    self._drop(group, client)

    def forget_group(self, name: str) -> None:
        """Forget a group that is deleted."""
        group = self._groups.pop(name, None)
        if group is not None:
            for client in list(group.clients.values()):
                self._drop(group, client)

    # --- what is ready

    def arrived(self) -> None:
        """Called when messages were stored."""
        names = self._lite.take_arrived()
        if self._unconfirmed:
            names = [*self._unconfirmed, *names]
            self._unconfirmed.clear()
        for name in names:
            self._ready(name)

    def _ready(self, name: str) -> None:
        parts = split_lite_queue(name)
        queue = self._lite.get(name)
        if parts is None or queue is None:
            return
        if self._parts.store.queue_bounds(name, LITE_QUEUE)[1] < queue.max_offset:
            self._unconfirmed[name] = None
        for group in self._groups.values():
            if group.parent == parts[0]:
                self.woken(group.name, name)

    def woken(self, group_name: str, name: str) -> None:
        """Called when the lite queue NAME may have a message for a group."""
        group = self._groups.get(group_name)
        if group is None:
            return
        for client in group.of(name):
            self._offer(group, client, name)

    def _offer(self, group: LiteGroup, client: LiteClient, name: str) -> None:
        if name in client.ready or not self._has_ready(group, name):
            return
        client.ready[name] = None
        if client.receives:
            self._wake(group, client)

    def _has_ready(self, group: LiteGroup, name: str) -> bool:
        table = self._tables.known_lite_table(group.name, name)
        if table is not None:
            return table.has_ready
        committed = self.committed(group, name) or 0
        low, end = self._parts.store.queue_bounds(name, LITE_QUEUE)
        return max(committed, low) < end

    def _wake(self, group: LiteGroup, client: LiteClient) -> None:
        """Try the waiting receives of CLIENT again in the next turn: this call may come from another receive."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._try_woken)
        self._woken[client] = group

    def _try_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for client in woken:
            for receive in list(client.receives):
                if receive.waiting is None or not client.ready:
                    break
                self._purgatory.try_again(receive.waiting)

    # --- receives

    def receive(
        self, asked: ReceiveRequest, config: GroupConfig, done: Callable[[ReceiveResult], None]
    ) -> Receive | None:
        """Do as `PopService.receive`, for a client of a group that belongs to a topic."""
        client = self.client(self.group(config), asked.client_id)
        receive = Receive(self, self, asked, done)  # type: ignore[arg-type]
        if receive.try_complete():
            return None
        if asked.wait_ms <= 0:
            receive.on_deadline()
            return None
        limit = self._config.fetches_waiting_max
        if len(self._purgatory) >= limit:
            raise Overloaded(
                f"{len(self._purgatory)} receives and fetches wait, the limit is {limit} (broker.fetches_waiting_max):"
                " use fewer consumers, or raise the limit",
                field="fetches_waiting_max",
                limit=limit,
            )
        wait_ms = min(asked.wait_ms, self._config.fetch_wait_max_ms)
        deadline_ms = end_of_wait(self._parts.leases.wall_ms(), wait_ms)
        key = ("lite", asked.group, asked.client_id)
        receive.waiting = self._purgatory.watch(receive, key, deadline_ms)
        client.receives[receive] = None
        return receive

    def over(self, receive: Receive) -> None:
        """Called when RECEIVE, which may have waited, has ended."""
        group = self._groups.get(receive.asked.group)
        client = None if group is None else group.clients.get(receive.asked.client_id)
        if client is not None:
            client.receives.pop(receive, None)
            client.heard_ms = self._parts.leases.wall_ms()

    def try_again(self, receive: Receive) -> bool:
        """Let RECEIVE, whose scan continues, try again; return whether it was still waiting."""
        return receive.waiting is not None and self._purgatory.try_again(receive.waiting)

    def scan_more(self, receive: Receive) -> None:
        """Let RECEIVE continue to scan in a later turn."""
        self._tables.scan_more(receive)

    def take(self, asked: ReceiveRequest) -> TakenMessages:
        """Deliver to a receive what its attempt got before, or messages of the ready lite topics of its client."""
        group = self._groups.get(asked.group)
        client = None if group is None else group.clients.get(asked.client_id)
        if group is None or client is None:
            return TakenMessages([], 0, False)
        again = self._repeated(group, asked)
        if again:
            return TakenMessages(again, 0, False)
        rules = self._tables.rules_of_lite(asked)
        found: list[PoppedMessage] = []
        dead_lettered, more = 0, False
        for name in list(client.ready):
            room = asked.batch - len(found) - dead_lettered
            if room <= 0 or sum(len(one.record) for one in found) >= self._config.fetch_max_bytes:
                break
            del client.ready[name]
            try:
                taken = self._take_of(group, name, replace(asked, batch=room), rules)
            except PocketMQError:
                client.ready[name] = None
                if found:
                    break
                raise
            found += taken.deliveries
            dead_lettered += taken.dead_lettered
            more |= taken.more
            if taken.more or self._has_ready(group, name):
                client.ready[name] = None
        if found:
            self._parts.deliveries.write()
        return TakenMessages(found, dead_lettered, more)

    def _take_of(
        self, group: LiteGroup, name: str, asked: ReceiveRequest, rules: Rules
    ) -> TakenMessages:
        table = self._tables.lite_table(group.name, name)
        table.turn += 1
        taken = table.take_new(replace(asked, topic=name), rules)
        if taken.deliveries and asked.attempt_id:
            self._note_attempt(group, asked.attempt_id, name)
        self._tables.drop_lite_table(group.name, name)
        parent = group.parent
        deliveries = [one._replace(topic=parent) for one in taken.deliveries]
        return taken._replace(deliveries=deliveries)

    def _note_attempt(self, group: LiteGroup, attempt_id: str, name: str) -> None:
        if len(group.attempts) >= _ATTEMPTS_MAX:
            del group.attempts[next(iter(group.attempts))]
        group.attempts.setdefault(attempt_id, []).append(name)

    def _repeated(self, group: LiteGroup, asked: ReceiveRequest) -> list[PoppedMessage]:
        found: list[PoppedMessage] = []
        for name in dict.fromkeys(group.attempts.get(asked.attempt_id, ())):
            table = self._tables.known_lite_table(group.name, name)
            if table is not None:
                found += table.repeated(replace(asked, topic=name))
        return [one._replace(topic=group.parent) for one in found]


def lite_queue_names(parent: str, lite_topics: Iterable[str]) -> list[str]:
    """Return the names of the queues of LITE_TOPICS."""
    return [lite_queue_name(parent, one) for one in lite_topics]
