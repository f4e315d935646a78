"""The table of leases: which member holds which queue for its group. Pure; the caller passes the time.

Tokens only grow, also over restarts: the grants of a request get the next token, which is never below the present Unix
time in ms. A request with another token than that of the record is refused, so that at any time at most one token of a
queue is valid.

    record of a queue      asked for with token 0          with token T (fetches renew as well)
    none                   granted                         granted as T, if an earlier run may have granted it
    held by another        refused (the same instance: *)  refused, unless T is newer and of an earlier run
    held by the member     granted again                   renewed if T is the record's, else as above
    expired                granted                         renewed if T is the record's: it had no other owner since
    released               granted                         refused, unless T is newer and of an earlier run

(*) A static member that returns with another member_id takes over the queues of its instance at once. The new token
fences the old member, which cannot get them back by its instance.

If the broker has users, a lease belongs to its user: another user with the same member or instance is refused.

Limit: `limit()` records. Records of queues without an owner are dropped first. From then on, no token up to the highest
dropped one is accepted without a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...proto import errors

LEASE_MOST_MS: Final = 600_000
TOKEN_MAX: Final = 1 << 62
#: Limit of remembered members that lost a queue to another member of their instance.
_TAKEN_FROM_MAX: Final = 4
#: Generations and tokens of a master start at its epoch shifted by so many bits.
EPOCH_SHIFT: Final = 32
#: Minimum time between two searches for records to drop, in ms.
_SWEEP_PAUSE_MS: Final = 1_000
#: State of a lease in a stored row.
RELEASED, OVER, HELD = 0, 1, 2
#: Group and key of the row with the last token, and the one up to which tokens need a record.
TOKENS_ROW: Final = ("", "tokens")
#: A row of the stored table.
Row = list[Any]


class QueueKey(NamedTuple):
    """A queue of this broker."""

    topic: str
    queue: int


@dataclass(slots=True)
class Lease:
    """The record of a queue: its owner, or its last owner."""

    member_id: str
    instance_id: str
    token: int
    lease_ms: int
    #: 0: the lease was released.
    expires_ms: int
    taken_from: tuple[str, ...] = ()
    #: User of the member; "": the broker has no users, or did not know the user.
    user: str = ""

    @property
    def is_released(self) -> bool:
        return self.expires_ms == 0

    def is_live(self, now_ms: int) -> bool:
        """Return whether the queue has an owner at NOW_MS."""
        return self.expires_ms > now_ms


class QueueRequest(NamedTuple):
    """A requested queue. TOKEN 0: a new lease."""

    key: QueueKey
    token: int


@dataclass(frozen=True, slots=True)
class LeasingMember:
    """The member that requests queues, and for how long."""

    group: str
    member_id: str
    instance_id: str = ""
    lease_ms: int = 0
    user: str = ""


class LeaseTable:
    """Records by group and queue. BEGIN_MS: when this broker process started.

    EPOCH, for a master of a replica set: its tokens are above those of all masters before, which are not accepted.
    """

    def __init__(
        self,
        begin_ms: int,
        *,
        limit: Callable[[], int],
        epoch: int = 0,
        on_change: Callable[[str, str, Row | None], None] = lambda group, key, row: None,
    ) -> None:
        """ON_CHANGE is called with group, key and new row of each change; row None: the record was removed."""
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

    @property
    def last_token(self) -> int:
        """The highest token that was granted; later grants get higher ones."""
        return self._last_token

    def get(self, group: str, key: QueueKey) -> Lease | None:
        """Return the record of queue KEY for GROUP."""
        return self._groups.get(group, {}).get(key)

    def of_group(self, group: str) -> Iterator[tuple[QueueKey, Lease]]:
        """Yield the records of GROUP."""
        yield from self._groups.get(group, {}).items()

    def live(self, now_ms: int) -> Iterator[tuple[str, QueueKey, Lease]]:
        """Yield (group, queue, record) of all queues with an owner at NOW_MS."""
        for group, records in self._groups.items():
            for key, lease in records.items():
                if lease.is_live(now_ms):
                    yield group, key, lease

    def holder(self, group: str, key: QueueKey, now_ms: int) -> Lease | None:
        """Return the lease of the owner of KEY for GROUP at NOW_MS; None if it has none."""
        lease = self.get(group, key)
        return lease if lease is not None and lease.is_live(now_ms) else None

    def is_valid(self, group: str, key: QueueKey, token: int) -> bool:
        """Return whether TOKEN is the lease of KEY for GROUP, or an expired one that no other lease followed."""
        lease = self.get(group, key)
        if lease is not None and token == lease.token:
            return not lease.is_released
        return self._is_earlier(lease, token)

    def _is_earlier(self, lease: Lease | None, token: int) -> bool:
        """Return whether an earlier process may have granted TOKEN after the lease LEASE."""
        known = self._floor if lease is None else max(lease.token, self._floor)
        return known < token <= self._begin_token

    def ask(
        self,
        asker: LeasingMember,
        wanted: Sequence[QueueRequest],
        now_ms: int,
        gives_way: Callable[[QueueKey], bool] = lambda key: False,
    ) -> list[Lease | None]:
        """Grant or renew WANTED for ASKER as far as possible; return the lease of each, None where it was not granted.

        GIVES_WAY returns whether another member is to get a queue: then no new lease is granted. Raises Overloaded, and
        grants nothing, if the table is full.
        """
        self._make_room(asker.group, wanted, now_ms)
        fresh_token = max(self._last_token + 1, 0 if self._epoch else now_ms)
        answers: list[Lease | None] = []
        for key, token in wanted:
            lease = self.get(asker.group, key)
            if token:
                renewed = self._renew(asker, key, lease, token, now_ms)
                # A restart restores its full time in any case, unless it had ended when the record
                # was written.
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

    def accept_unrecorded(
        self, group: str, key: QueueKey, token: int, lease_ms: int, now_ms: int
    ) -> None:
        """Record the use of TOKEN, which is valid: from now on no older token is accepted."""
        if self._is_earlier(self.get(group, key), token):
            asker = LeasingMember(group=group, member_id="", lease_ms=lease_ms)
            self._make_room(group, [QueueRequest(key, token)], now_ms)
            believed = self._put(asker, key, self.get(group, key), token, now_ms)
            self._changed(group, key, believed, now_ms)

    def extend(self, group: str, key: QueueKey, token: int, lease_ms: int, now_ms: int) -> None:
        """Renew TOKEN, which is valid, for its full time from NOW_MS on; for LEASE_MS if it has no record.

        Raises Overloaded as `ask` does.
        """
        lease = self.get(group, key)
        if lease is None or lease.token != token:
            self.accept_unrecorded(group, key, token, lease_ms, now_ms)
            return
        was_over = not lease.is_live(now_ms)
        # The clock may have been set back.
        lease.expires_ms = max(lease.expires_ms, now_ms + lease.lease_ms)
        if was_over:
            self._changed(group, key, lease, now_ms)

    def _renew(
        self, asker: LeasingMember, key: QueueKey, lease: Lease | None, token: int, now_ms: int
    ) -> Lease | None:
        if lease is not None and token == lease.token:
            if lease.is_released or lease.member_id not in ("", asker.member_id):
                return None
            return self._put(asker, key, lease, token, now_ms)
        if self._is_earlier(lease, token):
            return self._put(asker, key, lease, token, now_ms)
        return None

    def _put(
        self, asker: LeasingMember, key: QueueKey, before: Lease | None, token: int, now_ms: int
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

    def release(self, group: str, key: QueueKey, member_id: str, token: int) -> bool:
        """End MEMBER_ID's lease of KEY with TOKEN (0: with any token); return whether the queue is free now."""
        lease = self.get(group, key)
        if lease is None or lease.is_released:
            return False
        if lease.member_id not in ("", member_id) or token not in (0, lease.token):
            return False
        lease.expires_ms = 0
        self._changed(group, key, lease, 0)
        return True

    def end(self, group: str, key: QueueKey) -> bool:
        """End the lease of KEY, of any owner; return whether there was one."""
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
        # Tokens of an earlier run must not be accepted from now on.
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

    def _make_room(self, group: str, wanted: Sequence[QueueRequest], now_ms: int) -> None:
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
                f"{self._count} queues have owners here, the limit is {self._limit()} (broker.leases_max):"
                " release some, or raise the limit",
                field="queues",
                limit=self._limit(),
                value=self._count + more,
            )

    def _changed(self, group: str, key: QueueKey, lease: Lease, now_ms: int) -> None:
        self._on_change(group, _key_text(key), _row(lease, now_ms))

    def _tokens_changed(self) -> None:
        self._on_change(*TOKENS_ROW, [self._last_token, self._floor])

    def rows(self, now_ms: int) -> Iterator[tuple[str, str, Row]]:
        """Yield group, key and row of all records, as `restore` takes them. They may change meanwhile."""
        yield *TOKENS_ROW, [self._last_token, self._floor]
        for group in list(self._groups):
            for key, lease in list(self._groups.get(group, {}).items()):
                yield group, _key_text(key), _row(lease, now_ms)

    def restore(self, rows: Iterable[tuple[str, str, Row]], now_ms: int) -> None:
        """Load what `rows` gave into a new table. A lease that was held has its full time again.

        Raises ValueError, LookupError or TypeError for malformed rows; then the table is unchanged.
        """
        groups: dict[str, dict[QueueKey, Lease]] = {}
        last_token = floor = count = 0
        for group, text, row in rows:
            if (group, text) == TOKENS_ROW:
                last_token, floor = map(int, row)
            elif count < self._limit():
                queue, _, topic = text.partition(" ")
                groups.setdefault(group, {})[QueueKey(topic, int(queue))] = _restored(row, now_ms)
                count += 1
        tokens = (one.token for records in groups.values() for one in records.values())
        if max(last_token, floor, *tokens) > TOKEN_MAX:
            raise ValueError(f"a token exceeds the limit {TOKEN_MAX}")
        self._groups, self._count = groups, count
        self._floor = max(self._floor, floor)
        self._last_token = self._begin_token = max(self._last_token, last_token)


def _key_text(key: QueueKey) -> str:
    return f"{key.queue} {key.topic}"


def _row(lease: Lease, now_ms: int) -> Row:
    state = RELEASED if lease.is_released else HELD if lease.is_live(now_ms) else OVER
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


def _taken_from(asker: LeasingMember, before: Lease | None) -> tuple[str, ...]:
    """Return the members from which the instance of ASKER took the queue of BEFORE, including this step."""
    if before is None or not asker.instance_id or before.instance_id != asker.instance_id:
        return ()
    if before.member_id == asker.member_id:
        return before.taken_from
    return (*before.taken_from, before.member_id)[-_TAKEN_FROM_MAX:]


def _may_have(asker: LeasingMember, lease: Lease | None, now_ms: int) -> bool:
    """Return whether ASKER may get a new lease of the queue of LEASE."""
    if lease is None or not lease.is_live(now_ms) or lease.member_id == asker.member_id:
        return True
    is_instance = bool(asker.instance_id) and asker.instance_id == lease.instance_id
    return is_instance and asker.member_id not in lease.taken_from
