"""Leases of queues: the right of one member to read and commit a queue for its group, for some time.

A lease is granted under a token. Tokens only grow, over restarts as well: a request's grants have the next one, which
is never below the present instant in milliseconds. The token is the fence: whoever comes with another one than the
queue's record has is refused, however late, so that at any instant one token of a queue is valid at most.

    record of a queue      asked for with token 0          with token T (fetches renew as well)
    none                   granted                         granted as T, if an earlier run may have granted it
    held by another        refused (the same instance: *)  refused, unless T is newer and of an earlier run
    held by the member     granted anew                    renewed if T is the record's, else as above
    its time is over       granted                         renewed if T is the record's: nobody had it meanwhile
    released               granted                         refused, unless T is newer and of an earlier run

(*) A static member that comes back under another member_id takes over what its instance holds, at once: the new token
fences the old one in this very step, wherever the old member still runs. Those it was taken from do not get it back
by their instance.

Where the broker has users, a lease is its user's: another user who names the same member or instance is refused.

What was granted in the last moments before a power cut is not on record after it: a token of an earlier run that no
record contradicts is believed. `rows` and `restore` carry the records over a restart, as a table of the broker's
journal (store/tables.py), which may be lost: a change is written at the end of the turn. Renewals change nothing there:
a lease that was held has its whole time again.
A master of a replica set begins with its epoch instead: it knows and believes nothing of what was granted before, for
the masters before it may have granted anything to anybody.

A commit or fetch by another token than that of the queue's lease is refused by the fence. A fetch under a token renews
the lease when it arrives: who polls need not ask.

A request that can be granted nothing of what it asks for waits, if it says so, until one of the queues is released or
its lease is over. Who came first has it first, but that a request of an older generation gives way to one of a newer
that waits for the same queue: what its plan said does not count any more. Nor does a request that has waited take a
queue from its own member, which has got it meanwhile by another: the newer token would fence who reads by the older.

Time is the machine's; the table is pure, told it. Not thread-safe. Bounds: `limit()` records (those of unheld queues go
first, and then no token up to the highest of theirs is believed without a record); `lease_waits_max` requests wait,
further ones are answered at once; QUEUES_MAX queues in one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import LATER, Call, Later, MethodTable, service, unary
from ...store.tables import Durability, JournalTable, JsonCodec
from ..config import BrokerConfig
from ..offsets import Offsets
from ..timing.purgatory import Purgatory, WatchedOperation
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics_and_groups import Groups, Topics, check_own_choice
from .generations import check_least, check_member, check_range, others_member

logger = logging.getLogger(__name__)

#: Members that a queue was taken from by their instance: so many are remembered.
_TAKEN_FROM_MAX: Final = 4
#: What an epoch of a replica set begins with, generations and tokens, is it times 2 to this.
EPOCH_SHIFT: Final = 32
#: How long no further search for records to drop is worth it after one, in ms.
_SWEEP_PAUSE_MS: Final = 1_000
#: Of a record in the table that is kept: what has become of the lease.
_RELEASED, _OVER, _HELD = 0, 1, 2
#: Group and key of the row with the last token, and that up to which none is believed without a record.
_TOKENS: Final = ("", "tokens")
#: A row of the table that is kept.
Row = list[Any]


class QueueKey(NamedTuple):
    """A queue of this broker."""

    topic: str
    queue: int


@dataclass(slots=True)
class Lease:
    """The record of a queue: who holds it, or held it last."""

    member_id: str
    instance_id: str
    token: int
    lease_ms: int
    #: 0: it was released.
    expires_ms: int
    taken_from: tuple[str, ...] = ()
    #: Whose member it is; "": the broker has no users, or did not know it.
    user: str = ""

    @property
    def is_released(self) -> bool:
        return self.expires_ms == 0

    def is_live(self, now_ms: int) -> bool:
        """Does somebody hold the queue at NOW_MS?"""
        return self.expires_ms > now_ms


class WantedQueue(NamedTuple):
    """A queue that is asked for; TOKEN 0: anew."""

    key: QueueKey
    token: int


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for queues, and for how long."""

    group: str
    member_id: str
    instance_id: str = ""
    lease_ms: int = 0
    user: str = ""


class LeaseTable:
    """Records by group and queue. BEGIN_MS: when this run of the broker began.

    EPOCH, of a master of a replica set: its tokens are above all of the masters before, of which none is believed.
    """

    def __init__(
        self,
        begin_ms: int,
        *,
        limit: Callable[[], int],
        epoch: int = 0,
        on_change: Callable[[str, str, Row | None], None] = lambda group, key, row: None,
    ) -> None:
        """ON_CHANGE is called with group, key and row of what `rows` would say otherwise; None: it is gone."""
        self._limit = limit
        self._on_change = on_change
        self._groups: dict[str, dict[QueueKey, Lease]] = {}
        self._count = 0
        self._epoch = epoch
        self._last_token = epoch << EPOCH_SHIFT if epoch else begin_ms
        #: Tokens above the first and up to the second may have been granted by an earlier run.
        self._floor = self._last_token if epoch else 0
        self._begin_token = self._last_token
        self._swept_ms = -_SWEEP_PAUSE_MS

    def __len__(self) -> int:
        """Return how many records there are."""
        return self._count

    # --- asking

    @property
    def last_token(self) -> int:
        """The highest token that was granted; each later grant's is above it."""
        return self._last_token

    def get(self, group: str, key: QueueKey) -> Lease | None:
        """Return the record of queue KEY for GROUP."""
        return self._groups.get(group, {}).get(key)

    def of_group(self, group: str) -> Iterator[tuple[QueueKey, Lease]]:
        """Yield the records of GROUP."""
        yield from self._groups.get(group, {}).items()

    def live(self, now_ms: int) -> Iterator[tuple[str, QueueKey, Lease]]:
        """Yield (group, queue, record) of all queues that somebody holds at NOW_MS."""
        for group, records in self._groups.items():
            for key, lease in records.items():
                if lease.is_live(now_ms):
                    yield group, key, lease

    def holder(self, group: str, key: QueueKey, now_ms: int) -> Lease | None:
        """Return the lease by which somebody holds KEY for GROUP at NOW_MS."""
        lease = self.get(group, key)
        return lease if lease is not None and lease.is_live(now_ms) else None

    def is_valid(self, group: str, key: QueueKey, token: int) -> bool:
        """Is TOKEN the one by which KEY is held for GROUP, or was last and nobody has asked for it since?"""
        lease = self.get(group, key)
        if lease is not None and token == lease.token:
            return not lease.is_released
        return self._is_earlier(lease, token)

    def _is_earlier(self, lease: Lease | None, token: int) -> bool:
        """May an earlier run of the broker have granted TOKEN after what LEASE tells of?"""
        known = self._floor if lease is None else max(lease.token, self._floor)
        return known < token <= self._begin_token

    # --- granting

    def ask(
        self,
        asker: Asker,
        wanted: Sequence[WantedQueue],
        now_ms: int,
        gives_way: Callable[[QueueKey], bool] = lambda key: False,
    ) -> list[Lease | None]:
        """Grant or renew what ASKER can have of WANTED; return the lease of each, None where it was not granted.

        GIVES_WAY tells of a queue that somebody else is to have: it is not granted anew. Raises Overloaded where there
        are as many records as may be; nothing is granted then.
        """
        self._make_room(asker.group, wanted, now_ms)
        fresh_token = max(self._last_token + 1, 0 if self._epoch else now_ms)
        answers: list[Lease | None] = []
        for key, token in wanted:
            lease = self.get(asker.group, key)
            if token:
                renewed = self._renew(asker, key, lease, token, now_ms)
                # It is restored for its whole time anyway, unless it was over when the records were written.
                if renewed is not None and (lease is None or not lease.is_live(now_ms)):
                    self._changed(asker.group, key, renewed, now_ms)
                answers.append(renewed)
            elif _may_have(asker, lease, now_ms) and not gives_way(key):
                if self._last_token != fresh_token:
                    self._last_token = fresh_token
                    self._tokens_changed()
                granted = self._put(asker, key, lease, fresh_token, now_ms)
                self._changed(asker.group, key, granted, now_ms)
                answers.append(granted)
            else:
                answers.append(None)
        return answers

    def believe(self, group: str, key: QueueKey, token: int, lease_ms: int, now_ms: int) -> None:
        """Note that TOKEN, which is valid, was used: no older one is believed after it."""
        if self._is_earlier(self.get(group, key), token):
            asker = Asker(group=group, member_id="", lease_ms=lease_ms)
            self._make_room(group, [WantedQueue(key, token)], now_ms)
            believed = self._put(asker, key, self.get(group, key), token, now_ms)
            self._changed(group, key, believed, now_ms)

    def extend(self, group: str, key: QueueKey, token: int, lease_ms: int, now_ms: int) -> None:
        """Have TOKEN, which is valid, last for its whole time from NOW_MS on; LEASE_MS if there is no record of it.

        Raises Overloaded as `ask` does.
        """
        lease = self.get(group, key)
        if lease is None or lease.token != token:
            self.believe(group, key, token, lease_ms, now_ms)
            return
        was_over = not lease.is_live(now_ms)
        # The clock may have been put back.
        lease.expires_ms = max(lease.expires_ms, now_ms + lease.lease_ms)
        if was_over:
            self._changed(group, key, lease, now_ms)

    def _renew(
        self, asker: Asker, key: QueueKey, lease: Lease | None, token: int, now_ms: int
    ) -> Lease | None:
        if lease is not None and token == lease.token:
            if lease.is_released or lease.member_id not in ("", asker.member_id):
                return None
            return self._put(asker, key, lease, token, now_ms)
        if self._is_earlier(lease, token):
            return self._put(asker, key, lease, token, now_ms)
        return None

    def _put(
        self, asker: Asker, key: QueueKey, before: Lease | None, token: int, now_ms: int
    ) -> Lease:
        lease = Lease(
            member_id=asker.member_id,
            instance_id=asker.instance_id,
            token=token,
            lease_ms=asker.lease_ms,
            expires_ms=now_ms + asker.lease_ms,
            taken_from=_taken_from(asker, before),
            user=asker.user,
        )
        self._keep(asker.group, key, lease)
        return lease

    def _keep(self, group: str, key: QueueKey, lease: Lease) -> None:
        records = self._groups.setdefault(group, {})
        self._count += key not in records
        records[key] = lease

    # --- ending

    def release(self, group: str, key: QueueKey, member_id: str, token: int) -> bool:
        """End MEMBER_ID's lease of KEY under TOKEN, 0: under any; return whether somebody else can have it now."""
        lease = self.get(group, key)
        if lease is None or lease.is_released:
            return False
        if lease.member_id not in ("", member_id) or token not in (0, lease.token):
            return False
        lease.expires_ms = 0
        self._changed(group, key, lease, 0)
        return True

    def end(self, group: str, key: QueueKey) -> bool:
        """End the lease of KEY, whoever holds it; return whether there was one."""
        lease = self.get(group, key)
        was_held = lease is not None and not lease.is_released
        if lease is None:
            if self._count >= self._limit():
                self._floor = self._begin_token
                self._tokens_changed()
                return False
            lease = Lease("", "", 0, 0, 0)
            self._keep(group, key, lease)
        lease.expires_ms = 0
        # What an earlier run granted must not be believed from now on.
        lease.token = max(lease.token, self._begin_token)
        self._changed(group, key, lease, 0)
        return was_held

    def forget_group(self, group: str) -> list[QueueKey]:
        """Forget the records of GROUP, and return their queues."""
        return self._forget(group, lambda key, lease: True)

    def forget_topic(self, topic: str) -> dict[str, list[QueueKey]]:
        """Forget the records of TOPIC, and return their queues by group."""
        return {
            group: keys
            for group in list(self._groups)
            if (keys := self._forget(group, lambda key, lease: key.topic == topic))
        }

    def _forget(self, group: str, chosen: Callable[[QueueKey, Lease], bool]) -> list[QueueKey]:
        records = self._groups.get(group, {})
        gone = [key for key, lease in records.items() if chosen(key, lease)]
        for key in gone:
            self._floor = max(self._floor, records.pop(key).token)
            self._on_change(group, _key_text(key), None)
        if gone:
            self._tokens_changed()
        if not records:
            self._groups.pop(group, None)
        self._count -= len(gone)
        return gone

    def _make_room(self, group: str, wanted: Sequence[WantedQueue], now_ms: int) -> None:
        known = self._groups.get(group, {})
        more = sum(1 for want in wanted if want.key not in known)
        if not more or self._count + more <= self._limit():
            return
        if now_ms - self._swept_ms >= _SWEEP_PAUSE_MS:
            self._swept_ms = now_ms
            for name in list(self._groups):
                self._forget(name, lambda key, lease: not lease.is_live(now_ms))
        if self._count + more > self._limit():
            raise errors.Overloaded(
                f"{self._count} queues are held here, the limit is {self._limit()}: release some,"
                " or raise broker.leases_max",
                field="queues",
                limit=self._limit(),
                value=self._count + more,
            )

    # --- over a restart

    def _changed(self, group: str, key: QueueKey, lease: Lease, now_ms: int) -> None:
        self._on_change(group, _key_text(key), _row(lease, now_ms))

    def _tokens_changed(self) -> None:
        self._on_change(*_TOKENS, [self._last_token, self._floor])

    def rows(self, now_ms: int) -> Iterator[tuple[str, str, Row]]:
        """Yield group, key and row of all records, as `restore` takes them; they may change meanwhile."""
        yield *_TOKENS, [self._last_token, self._floor]
        for group in list(self._groups):
            for key, lease in list(self._groups.get(group, {}).items()):
                yield group, _key_text(key), _row(lease, now_ms)

    def restore(self, rows: Iterable[tuple[str, str, Row]], now_ms: int) -> None:
        """Have what `rows` gave, in a table that is new; what was held is so again for its whole time.

        Raises ValueError, LookupError or TypeError for rows of another shape; the table is as it was then.
        """
        groups: dict[str, dict[QueueKey, Lease]] = {}
        last_token = floor = count = 0
        for group, text, row in rows:
            if (group, text) == _TOKENS:
                last_token, floor = map(int, row)
            elif count < self._limit():
                queue, _, topic = text.partition(" ")
                groups.setdefault(group, {})[QueueKey(topic, int(queue))] = _restored(row, now_ms)
                count += 1
        tokens = (one.token for records in groups.values() for one in records.values())
        if max(last_token, floor, *tokens) > _TOKEN_MAX:
            raise ValueError(f"a token is above {_TOKEN_MAX}")
        self._groups, self._count = groups, count
        self._floor = max(self._floor, floor)
        self._last_token = self._begin_token = max(self._last_token, last_token)


def _key_text(key: QueueKey) -> str:
    return f"{key.queue} {key.topic}"


def _row(lease: Lease, now_ms: int) -> Row:
    state = _RELEASED if lease.is_released else _HELD if lease.is_live(now_ms) else _OVER
    row = [lease.member_id, lease.instance_id, lease.token, lease.lease_ms, state]
    return [*row, lease.user] if lease.user else row


def _restored(row: Row, now_ms: int) -> Lease:
    member_id, instance_id, token, lease_ms, state, *user = row
    lease_ms = min(int(lease_ms), LEASE_MOST_MS)
    return Lease(
        str(member_id),
        str(instance_id),
        int(token),
        lease_ms,
        expires_ms=(0, 1, now_ms + lease_ms)[state],
        user="".join(map(str, user)),
    )


def _taken_from(asker: Asker, before: Lease | None) -> tuple[str, ...]:
    """Return from whom the instance of ASKER took the queue that BEFORE tells of, ASKER's own step included."""
    if before is None or not asker.instance_id or before.instance_id != asker.instance_id:
        return ()
    if before.member_id == asker.member_id:
        return before.taken_from
    return (*before.taken_from, before.member_id)[-_TAKEN_FROM_MAX:]


def _may_have(asker: Asker, lease: Lease | None, now_ms: int) -> bool:
    """May ASKER be granted anew what LEASE tells of?"""
    if lease is None or not lease.is_live(now_ms) or lease.member_id == asker.member_id:
        return True
    is_instance = bool(asker.instance_id) and asker.instance_id == lease.instance_id
    return is_instance and asker.member_id not in lease.taken_from


# --- over a restart


class KeptLeases:
    """A table of at most LIMIT records, kept as KEPT, by the machine's TIMERS. The event loop owns it.

    EPOCH: that of a master of a replica set.
    """

    def __init__(
        self,
        kept: JournalTable[str, str, Row],
        timers: Timers,
        *,
        limit: Callable[[], int],
        epoch: int = 0,
    ) -> None:
        self._kept = kept
        self.now_ms = timers.now_ms
        self.table = LeaseTable(self.now_ms(), limit=limit, epoch=epoch, on_change=self._changed)
        try:
            self.table.restore(kept.items(), self.now_ms())
        except (ValueError, LookupError, TypeError) as error:
            logger.warning("leases not restored reason=%r", error)
        kept.keep_elsewhere(lambda: self.table.rows(self.now_ms()))

    def _changed(self, group: str, key: str, row: Row | None) -> None:
        if row is None:
            self._kept.drop(group, key)
        else:
            self._kept.put(group, key, row)

    def holder(self, group: str, key: QueueKey) -> Lease | None:
        """Return the lease by which somebody holds KEY for GROUP at present."""
        return self.table.holder(group, key, self.now_ms())

    def member_of(self, group: str, topic: str, queue: int) -> str:
        """Return the member that holds QUEUE of TOPIC for GROUP; "" for nobody."""
        lease = self.holder(group, QueueKey(topic, queue))
        return "" if lease is None else lease.member_id

    def close(self) -> None:
        """Note which leases are over: they do not begin again."""
        for group, key, row in self.table.rows(self.now_ms()):
            if (group, key) != _TOKENS and row[4] == _OVER:
                self._kept.put(group, key, row)


def lease_table() -> JournalTable[str, str, Row]:
    """Return the table that keeps leases: rows by group and queue."""
    return JournalTable(1, "leases", JsonCodec(), Durability.WITH_LOG, needs_log=False)


#: Queues in one request: the loop serves nobody else meanwhile.
QUEUES_MAX: Final = 10_000
LEASE_LEAST_MS: Final = 1_000
LEASE_MOST_MS: Final = 600_000
_TOKEN_MAX: Final = 1 << 62


class QueueLeases:
    """Leases of this broker's queues. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        timers: Timers,
        kept: KeptLeases,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._timers = timers
        self._now_ms = timers.now_ms
        self._kept = kept
        self._leases = kept.table
        self._waits = Purgatory(timers, limit=lambda: config.lease_waits_max)
        #: When a queue that somebody waits for is to be looked at: its lease may be over then.
        self._expiries: dict[Hashable, Timer] = {}

    def methods(self) -> MethodTable:
        """Return the methods by which members hold queues."""
        return service(
            "pocketmq.v1.Broker",
            {
                "LeaseQueues": unary(pb.LeaseRequest, pb.LeaseReply, self.lease),
                "ReleaseQueues": unary(pb.ReleaseRequest, pb.ReleaseReply, self.release),
            },
        )

    @property
    def waiting(self) -> int:
        """How many requests wait for a queue."""
        return len(self._waits)

    def of_group(self, group: str) -> list[pb.HeldLease]:
        """Return what members of GROUP hold at present."""
        now_ms = self._now_ms()
        return [
            pb.HeldLease(
                topic=key.topic,
                queue=key.queue,
                member_id=lease.member_id,
                token=lease.token,
                expires_ms=lease.expires_ms,
            )
            for key, lease in sorted(self._leases.of_group(group))
            if lease.is_live(now_ms)
        ]

    def _check_user(self, asker: Asker, wanted: Sequence[WantedQueue]) -> None:
        """Raise NotAuthorized where ASKER's member or instance holds one of WANTED, and is that of another user."""
        for key, _ in wanted:
            lease = self._kept.holder(asker.group, key)
            if lease is None or lease.user in ("", asker.user):
                continue
            is_instance = bool(asker.instance_id) and asker.instance_id == lease.instance_id
            if is_instance or lease.member_id == asker.member_id:
                raise others_member(asker.member_id, asker.instance_id, asker.group)

    # --- granting

    def lease(self, request: pb.LeaseRequest, call: Call) -> pb.LeaseReply | Later:
        """Grant and renew leases, at once or when one of the queues is free."""
        asker, wanted = self._checked(request, call.user.name)
        wait = _Wait(self, asker, wanted, request.generation, call)
        wait.since_token = self._leases.last_token
        # Only what is asked for anew may come free.
        keys = [(asker.group, want.key) for want in wanted if not want.token]
        for group, key in keys:
            # A lease may be over and its timer not have fired: who waits for the queue comes first.
            if self._kept.holder(group, key) is None:
                self._notify(group, key)
        if request.wait_ms <= 0 or not keys:
            wait.on_deadline()
            return LATER
        deadline_ms = self._now_ms() + min(request.wait_ms, self._config.fetch_wait_max_ms)
        waiting = self._waits.complete_or_watch(wait, keys[0], deadline_ms, also=keys[1:])
        if waiting is not None:
            for group, key in keys:
                self._look_at_expiry(group, key)
            call.on_cancel(partial(_let_go, waiting))
        return LATER

    def _checked(self, request: pb.LeaseRequest, user: str) -> tuple[Asker, list[WantedQueue]]:
        asker = asker_of(request, self._config.lease_ms, user)
        wanted = wanted_in(request.queues)
        self._check_there(wanted)
        self._check_user(asker, wanted)
        self._groups.ensure(request.group)
        return asker, wanted

    def _check_there(self, wanted: Sequence[WantedQueue]) -> None:
        """Raise what is wrong with the queues if none of WANTED can be read; those that can are served."""
        error: errors.PocketMQError | None = None
        for key, _ in wanted:
            try:
                self._topics.for_reading(key.topic, key.queue)
            except (errors.TopicNotFound, errors.QueueNotFound, errors.NotReadable) as found:
                error = found
            else:
                return
        if error is not None:
            raise error

    def grant(self, wait: _Wait, *, partly: bool) -> pb.LeaseReply | None:
        """Return the answer to WAIT; None, and nothing is granted, if it could have nothing and not PARTLY."""
        now_ms = self._now_ms()
        asker = wait.asker
        there = [want for want in wait.wanted if self._topics.has_queue(*want.key)]
        leases = self._leases.ask(asker, there, now_ms, lambda key: self._gives_way(wait, key))
        granted = {want.key: lease for want, lease in zip(there, leases, strict=True)}
        if not partly and not any(leases):
            return None
        reply = pb.LeaseReply(lease_ms=asker.lease_ms)
        for key, _ in wait.wanted:
            reply.queues.append(self._answer(asker.group, key, granted.get(key), now_ms))
        return reply

    def _answer(self, group: str, key: QueueKey, lease: Lease | None, now_ms: int) -> pb.QueueLease:
        answer = pb.QueueLease(topic=key.topic, queue=key.queue)
        if lease is not None:
            committed = self._offsets.committed(key.topic, group, key.queue)
            answer.token = lease.token
            answer.committed = -1 if committed is None else committed
        elif holder := self._leases.holder(group, key, now_ms):
            answer.holder = holder.member_id
        return answer

    def _gives_way(self, wait: _Wait, key: QueueKey) -> bool:
        """Has the member got KEY while WAIT lasted, or does somebody of a newer generation wait for it?

        What the member has had before it keeps: until it gives the queue back nobody else can have it anyway.
        """
        holder = self._kept.holder(wait.asker.group, key)
        if holder is not None and holder.member_id == wait.asker.member_id:
            return holder.token > wait.since_token
        if not wait.generation:
            return False
        others = self._waits.operations((wait.asker.group, key))
        return any(
            isinstance(other, _Wait) and other.generation > wait.generation for other in others
        )

    # --- coming free

    def _notify(self, group: str, key: QueueKey) -> None:
        """Have those who wait for KEY try again, in their order; the first who can have it does."""
        self._waits.notify((group, key))

    def _look_at_expiry(self, group: str, key: QueueKey) -> None:
        """Have those who wait for KEY try again when its lease is over."""
        lease = self._kept.holder(group, key)
        if lease is not None and (group, key) not in self._expiries:
            self._expiries[group, key] = self._timers.at(
                lease.expires_ms, lambda: self._may_be_over(group, key)
            )

    def _may_be_over(self, group: str, key: QueueKey) -> None:
        del self._expiries[group, key]
        if self._kept.holder(group, key) is None:
            self._notify(group, key)
        if any(True for _ in self._waits.operations((group, key))):
            self._look_at_expiry(group, key)

    # --- ending

    def release(self, request: pb.ReleaseRequest, call: Call) -> pb.ReleaseReply:
        """End leases, and hand the queues to who waits. What is not held is not an error."""
        check_own_choice(request.group)
        check_member("member_id", request.member_id)
        wanted = wanted_in(request.queues)
        self._check_user(Asker(request.group, request.member_id, user=call.user.name), wanted)
        for key, token in wanted:
            if self._leases.release(request.group, key, request.member_id, token):
                self._notify(request.group, key)
        return pb.ReleaseReply()

    def end(self, group: str, keys: Iterable[tuple[str, int]]) -> None:
        """End whatever lease there is of KEYS, (topic, queue), for GROUP."""
        for topic, queue in keys:
            key = QueueKey(topic, queue)
            if self._leases.end(group, key):
                logger.info("lease ended group=%s topic=%s queue=%d", group, topic, queue)
            self._notify(group, key)

    def forget_group(self, group: str) -> None:
        """Let go of all that GROUP holds."""
        for key in self._leases.forget_group(group):
            self._notify(group, key)

    def forget_topic(self, topic: str) -> None:
        """Let go of the queues of TOPIC."""
        for group, keys in self._leases.forget_topic(topic).items():
            for key in keys:
                self._notify(group, key)

    def wind_down(self) -> None:
        """Answer who waits: the broker is about to stop."""
        self._waits.complete_all()


class _Wait:
    """One request for leases: an operation of the purgatory."""

    __slots__ = ("_call", "_leases", "asker", "generation", "since_token", "wanted")

    def __init__(
        self,
        leases: QueueLeases,
        asker: Asker,
        wanted: Sequence[WantedQueue],
        generation: int,
        call: Call,
    ) -> None:
        self._leases = leases
        self._call = call
        self.asker = asker
        self.wanted = wanted
        self.generation = generation
        #: What is granted later has a higher one.
        self.since_token = 0

    def try_complete(self) -> bool:
        return self._complete(partly=False)

    def on_deadline(self) -> None:
        self._complete(partly=True)

    def _complete(self, *, partly: bool) -> bool:
        try:
            reply = self._leases.grant(self, partly=partly)
        except errors.PocketMQError as error:
            self._call.fail(error)
            return True
        if reply is None:
            return False
        self._call.reply(reply)
        return True


def _let_go(waiting: WatchedOperation) -> None:
    waiting.cancel()


# --- requests, checked


def asker_of(request: pb.LeaseRequest, default_lease_ms: int, user: str = "") -> Asker:
    """Return who of USER asks by REQUEST, for DEFAULT_LEASE_MS if it does not say how long. Raises InvalidArgument."""
    check_own_choice(request.group)
    check_member("member_id", request.member_id)
    if request.instance_id:
        check_member("instance_id", request.instance_id)
    check_least("wait_ms", request.wait_ms, 0)
    check_least("generation", request.generation, 0)
    if request.lease_ms:
        check_range("lease_ms", request.lease_ms, LEASE_LEAST_MS, LEASE_MOST_MS)
    return Asker(
        group=request.group,
        member_id=request.member_id,
        instance_id=request.instance_id,
        lease_ms=request.lease_ms or default_lease_ms,
        user=user,
    )


def wanted_in(queues: Sequence[pb.QueueLease]) -> list[WantedQueue]:
    """Return QUEUES of a request, each once. Raises InvalidArgument."""
    if not 1 <= len(queues) <= QUEUES_MAX:
        raise errors.InvalidArgument(
            f"queues: {len(queues)} in one request, must be 1 to {QUEUES_MAX}: ask in parts",
            field="queues",
            limit=QUEUES_MAX,
            value=len(queues),
        )
    wanted: dict[QueueKey, WantedQueue] = {}
    for one in queues:
        check_range("token", one.token, 0, _TOKEN_MAX)
        key = QueueKey(one.topic, one.queue)
        if key in wanted:
            raise errors.InvalidArgument(
                f"queues: queue {key.queue} of {key.topic[:64]!r} stands twice: name it once",
                field="queues",
                value=key.queue,
            )
        wanted[key] = WantedQueue(key, one.token)
    return list(wanted.values())
