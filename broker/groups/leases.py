"""Leases of queues: one member may read and commit a queue for its group, for some time.

The fence refuses a commit or fetch with another token than that of the lease (lease_table.py). A fetch under a token
renews the lease when it arrives.

A request that gets no queue waits, if it asks for that, until a queue is released or its lease ends. Waiting requests
are served in order, but a request of an older generation gives way to one of a newer generation that waits for the same
queue: its assignment is outdated. A request that has waited takes no queue from its own member, which got it by another
request meanwhile: the newer token would fence the reader with the older one.

Limits: `lease_waits_max` requests wait, further ones are answered at once; QUEUES_MAX queues per request. Times are the
machine's. Not thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Final

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import LATER, Call, Later, MethodTable, service, unary
from ..config import BrokerConfig
from ..consumer_groups import Groups, check_own_choice
from ..offsets import Offsets
from ..timing.purgatory import Purgatory, WatchedOperation
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics import Topics
from .field_checks import check_least, check_member, check_range
from .kept_leases import LeaseStore
from .lease_table import LEASE_MOST_MS, TOKEN_MAX, Lease, LeasingMember, QueueKey, QueueRequest
from .member_checks import others_member

logger = logging.getLogger(__name__)


#: Limit of queues per request: the event loop does nothing else meanwhile.
QUEUES_MAX: Final = 10_000
LEASE_LEAST_MS: Final = 1_000


class LeaseService:
    """The leases of this broker's queues. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        timers: Timers,
        kept: LeaseStore,
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
        #: Timers of queues that requests wait for: the lease may have ended then.
        self._expiries: dict[Hashable, Timer] = {}

    def methods(self) -> MethodTable:
        """Return the methods by which members request and release queues."""
        return service(
            "pocketmq.v1.Broker",
            {
                "LeaseQueues": unary(pb.LeaseRequest, pb.LeaseReply, self.lease),
                "ReleaseQueues": unary(pb.ReleaseRequest, pb.ReleaseReply, self.release),
            },
        )

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for a queue."""
        return len(self._waits)

    def of_group(self, group: str) -> list[pb.HeldLease]:
        """Return the present leases of members of GROUP."""
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

    def _check_user(self, asker: LeasingMember, wanted: Sequence[QueueRequest]) -> None:
        """Raise NotAuthorized if another user's member or instance of the same name owns one of WANTED."""
        for key, _ in wanted:
            lease = self._kept.holder(asker.group, key)
            if lease is None or lease.user in ("", asker.user):
                continue
            is_instance = bool(asker.instance_id) and asker.instance_id == lease.instance_id
            if is_instance or lease.member_id == asker.member_id:
                raise others_member(asker.member_id, asker.instance_id, asker.group)

    def lease(self, request: pb.LeaseRequest, call: Call) -> pb.LeaseReply | Later:
        """Grant and renew leases, at once or when one of the queues is free."""
        asker, wanted = self._checked(request, call.user.name)
        wait = _Wait(self, asker, wanted, request.generation, call)
        wait.since_token = self._leases.last_token
        # Only queues with token 0 can become free.
        keys = [(asker.group, want.key) for want in wanted if not want.token]
        for group, key in keys:
            # A lease may have ended before its timer fires: requests that wait for the queue come
            # first.
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

    def _checked(
        self, request: pb.LeaseRequest, user: str
    ) -> tuple[LeasingMember, list[QueueRequest]]:
        asker = asker_of(request, self._config.lease_ms, user)
        wanted = wanted_in(request.queues)
        self._check_there(wanted)
        self._check_user(asker, wanted)
        self._groups.ensure(request.group)
        return asker, wanted

    def _check_there(self, wanted: Sequence[QueueRequest]) -> None:
        """Raise the error of the first queue if none of WANTED can be read; otherwise serve those that can."""
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
        """Return the answer to WAIT; None, and grant nothing, if no queue is free and not PARTLY."""
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
        """Return whether the member got KEY while WAIT lasted, or a request of a newer generation waits for it.

        A queue that the member had before stays with it: until it releases the queue, no other member can get it.
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

    def _notify(self, group: str, key: QueueKey) -> None:
        """Let the requests that wait for KEY try again, in order; the first one that can get it does."""
        self._waits.notify((group, key))

    def _look_at_expiry(self, group: str, key: QueueKey) -> None:
        """Let the requests that wait for KEY try again when its lease ends."""
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

    def release(self, request: pb.ReleaseRequest, call: Call) -> pb.ReleaseReply:
        """End leases, and grant the queues to waiting requests. A queue without a lease is not an error."""
        check_own_choice(request.group)
        check_member("member_id", request.member_id)
        wanted = wanted_in(request.queues)
        self._check_user(
            LeasingMember(request.group, request.member_id, user=call.user.name), wanted
        )
        for key, token in wanted:
            if self._leases.release(request.group, key, request.member_id, token):
                self._notify(request.group, key)
        return pb.ReleaseReply()

    def end(self, group: str, keys: Iterable[tuple[str, int]]) -> None:
        """End all leases of KEYS, (topic, queue), for GROUP."""
        for topic, queue in keys:
            key = QueueKey(topic, queue)
            if self._leases.end(group, key):
                logger.info("lease ended group=%s topic=%s queue=%d", group, topic, queue)
            self._notify(group, key)

    def forget_group(self, group: str) -> None:
        """End all leases of GROUP."""
        for key in self._leases.forget_group(group):
            self._notify(group, key)

    def forget_topic(self, topic: str) -> None:
        """End all leases of the queues of TOPIC."""
        for group, keys in self._leases.forget_topic(topic).items():
            for key in keys:
                self._notify(group, key)

    def wind_down(self) -> None:
        """Answer all waiting requests: the broker is about to stop."""
        self._waits.complete_all()


class _Wait:
    """One request for leases: an operation of the purgatory."""

    __slots__ = ("_call", "_leases", "asker", "generation", "since_token", "wanted")

    def __init__(
        self,
        leases: LeaseService,
        asker: LeasingMember,
        wanted: Sequence[QueueRequest],
        generation: int,
        call: Call,
    ) -> None:
        self._leases = leases
        self._call = call
        self.asker = asker
        self.wanted = wanted
        self.generation = generation
        #: Leases granted after the request have higher tokens.
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


def asker_of(request: pb.LeaseRequest, default_lease_ms: int, user: str = "") -> LeasingMember:
    """Return the member of USER in REQUEST; DEFAULT_LEASE_MS applies if it has no duration. Raises InvalidArgument."""
    check_own_choice(request.group)
    check_member("member_id", request.member_id)
    if request.instance_id:
        check_member("instance_id", request.instance_id)
    check_least("wait_ms", request.wait_ms, 0)
    check_least("generation", request.generation, 0)
    if request.lease_ms:
        check_range("lease_ms", request.lease_ms, LEASE_LEAST_MS, LEASE_MOST_MS)
    return LeasingMember(
        group=request.group,
        member_id=request.member_id,
        instance_id=request.instance_id,
        lease_ms=request.lease_ms or default_lease_ms,
        user=user,
    )


def wanted_in(queues: Sequence[pb.QueueLease]) -> list[QueueRequest]:
    """Return the distinct QUEUES of a request. Raises InvalidArgument."""
    if not 1 <= len(queues) <= QUEUES_MAX:
        raise errors.InvalidArgument(
            f"queues: {len(queues)} in one request, must be 1 to {QUEUES_MAX}: use several requests",
            field="queues",
            limit=QUEUES_MAX,
            value=len(queues),
        )
    wanted: dict[QueueKey, QueueRequest] = {}
    for one in queues:
        check_range("token", one.token, 0, TOKEN_MAX)
        key = QueueKey(one.topic, one.queue)
        if key in wanted:
            raise errors.InvalidArgument(
                f"queues: queue {key.queue} of {key.topic[:64]!r} is listed twice: list it once",
                field="queues",
                value=key.queue,
            )
        wanted[key] = QueueRequest(key, one.token)
    return list(wanted.values())
