"""The leases by which a member holds queues: it requests, renews and releases them, in one request per broker.

    wanted ──granted──► held ──released──► gone
      ▲                  │
      └── unwanted       └──lost: refused, or not renewed in time

The broker delays its reply while another member holds the queue (`wait_ms`), so a lease is granted as soon as the queue
is free. Grants that are not wanted any more are released at once.

A fetch renews the lease of its queue. If no fetch was answered in time, a lease request renews it when a quarter of its
time is left, together with all other leases of that broker. After a broken connection it is renewed at once, because a
restarted broker does not know the lease. The time of a lease counts from before the request was sent. A lease that was
not renewed counts as lost when a tenth of its time is left, so before another member can get the queue.

Not thread-safe: its event loop owns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ...proto.errors import PocketMQError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..claims import check_leases
from ..queue import Queue, in_parts
from ..tasks import Alarm
from .parts import ConsumerParts

logger = logging.getLogger(__name__)

#: A lease is renewed when 1/4 of its time is left, and lost when 1/10 is left. A broker waits up to 1/3 of it before it
#: answers, because the time of a granted lease counts from before the request.
_RENEWAL: Final = 4
_MARGIN: Final = 10
_WAIT: Final = 3
#: Assumed duration of leases until a broker has sent its own.
_LEASE_MS: Final = 15_000
_PAUSE_MS: Final = 100
_PAUSE_MAX_MS: Final = 1_000


class LeaseHolder(Protocol):
    """Called when leases are granted, renewed or lost."""

    def granted(self, queue: Queue, token: int, committed: int, waited_ms: int) -> None:
        """Called when the lease of QUEUE was granted, after WAITED_MS."""
        ...

    def expired(self, queue: Queue) -> None:
        """Called when the lease of QUEUE is lost: another member may hold it."""
        ...

    def renewed(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """Called when a request that was sent at SENT_MS has renewed the lease of QUEUE.

        BREAKS: how often connections to its broker had broken when it was sent.
        """
        ...

    def look_again(self) -> None:
        """Called after an error that suggests a change of queues."""
        ...


@dataclass(slots=True)
class _Lease:
    token: int
    #: The broker has renewed it for `lease_ms` at this time or later.
    from_ms: int
    lease_ms: int
    #: Whether the broker may have restarted and not know the lease.
    is_doubtful: bool = False

    @property
    def ends_ms(self) -> int:
        """When it counts as lost, by the client's clock."""
        return self.from_ms + self.lease_ms - self.lease_ms // _MARGIN

    @property
    def renew_ms(self) -> int:
        """When a lease request has to renew it, unless a fetch does."""
        if self.is_doubtful:
            return self.from_ms
        return self.from_ms + self.lease_ms - self.lease_ms // _RENEWAL


class Leases:
    """Leases of one member of the group."""

    def __init__(self, parts: ConsumerParts, member_id: str, holder: LeaseHolder) -> None:
        self._parts = parts
        self._session = parts.session
        self._member_id = member_id
        self._holder = holder
        #: The latest known generation of the group.
        self.generation = 0
        #: By queue: since when it is wanted. The identity of the list distinguishes one request from the next.
        self._wanted: dict[Queue, list[int]] = {}
        self._held: dict[Queue, _Lease] = {}
        self._lease_ms = parts.config.lease_ms or _LEASE_MS
        #: By broker: the tokens of queues to release, and the task that sends them.
        self._leaving: dict[str, tuple[dict[Queue, int], asyncio.Task[None]]] = {}
        self._alarms: dict[str, Alarm] = {}
        self._watch = Alarm(self._session.clock, self._session.tasks)
        self._is_watching = False

    @property
    def wanted(self) -> Collection[Queue]:
        """The queues whose lease is requested and not granted yet."""
        return self._wanted.keys()

    def note_generation(self, generation: int) -> None:
        """Use GENERATION of the group in requests, unless a later one is known."""
        self.generation = max(self.generation, generation)

    def want(self, queues: Iterable[Queue]) -> None:
        """Request the leases of QUEUES until they are granted or `unwant` is called."""
        now_ms = self._session.clock.now_ms()
        by_broker: dict[str, dict[Queue, list[int]]] = {}
        for queue in queues:
            if queue not in self._wanted and queue not in self._held:
                wish = self._wanted[queue] = [now_ms]
                by_broker.setdefault(queue.broker, {})[queue] = wish
        for broker, wishes in by_broker.items():
            for part in in_parts(wishes.items()):
                self._session.tasks.spawn(self._ask_until_granted(broker, dict(part)))

    def unwant(self, queues: Iterable[Queue]) -> None:
        """Stop requesting the leases of QUEUES."""
        for queue in queues:
            self._wanted.pop(queue, None)

    async def _ask_until_granted(self, broker: str, wishes: dict[Queue, list[int]]) -> None:
        clock = self._session.clock
        pause_ms = _PAUSE_MS
        while open_wishes := {q: w for q, w in wishes.items() if self._wanted.get(q) is w}:
            try:
                await self._ask(broker, open_wishes)
                pause_ms = _PAUSE_MS
            except PocketMQError as error:
                self._log_failure("leases not granted, retrying", broker, error, pause_ms)
                self._renew_routes(open_wishes)
                await clock.sleep_until(clock.now_ms() + pause_ms)
                pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _ask(self, broker: str, wishes: dict[Queue, list[int]]) -> None:
        sent_ms = self._session.clock.now_ms()
        rows = [pb.QueueLease(topic=queue.topic, queue=queue.number) for queue in wishes]
        reply = await self._request(broker, rows, self._lease_ms // _WAIT)
        self._lease_ms = reply.lease_ms
        unwanted: dict[Queue, int] = {}
        for (queue, wish), answer in zip(wishes.items(), reply.queues, strict=True):
            if not answer.token:
                continue
            if self._wanted.get(queue) is wish:
                self._take(queue, answer, sent_ms, reply.lease_ms)
            elif queue not in self._held:
                unwanted[queue] = answer.token
        if unwanted:
            await self._release(broker, unwanted)
        if not any(answer.token for answer in reply.queues):
            # A broker that answers at once must not be asked again without a pause.
            since_ms = self._session.clock.now_ms() - sent_ms
            if since_ms < _PAUSE_MAX_MS:
                await self._session.clock.sleep_until(sent_ms + _PAUSE_MAX_MS)

    async def _request(
        self, broker: str, rows: Iterable[pb.QueueLease], wait_ms: int
    ) -> pb.LeaseReply:
        config = self._parts.config
        request = pb.LeaseRequest(
            group=self._parts.group,
            member_id=self._member_id,
            instance_id=config.instance_id,
            queues=rows,
            lease_ms=config.lease_ms,
            wait_ms=wait_ms,
            generation=self.generation,
        )
        timeout_ms = wait_ms + config.request_timeout_ms
        reply = await self._session.ask(broker, "LeaseQueues", request, pb.LeaseReply, timeout_ms)
        check_leases(request.queues, reply, f"broker {broker}")
        return reply

    def _take(self, queue: Queue, answer: pb.QueueLease, sent_ms: int, lease_ms: int) -> None:
        now_ms = self._session.clock.now_ms()
        (since_ms,) = self._wanted.pop(queue)
        self._held[queue] = _Lease(answer.token, sent_ms, lease_ms)
        self._watch.ring()
        self._renew_in_time(queue.broker)
        self._holder.granted(queue, answer.token, answer.committed, now_ms - since_ms)

    def fetched(self, queue: Queue, token: int, sent_ms: int) -> None:
        """Count the lease of QUEUE from SENT_MS, because a fetch with TOKEN that was sent then was answered."""
        lease = self._held.get(queue)
        # No need to wake the tasks that wait for the end of the lease: they check it again then.
        if lease is not None and lease.token == token:
            lease.from_ms = max(lease.from_ms, sent_ms)

    def doubt(self, queue: Queue) -> None:
        """Renew the lease of QUEUE as soon as its broker can be reached, because the connection broke."""
        lease = self._held.get(queue)
        if lease is not None and not lease.is_doubtful:
            lease.is_doubtful = True
            self._renew_in_time(queue.broker)

    def _renew_in_time(self, broker: str) -> None:
        if broker in self._alarms:
            self._alarms[broker].ring()
        else:
            self._alarms[broker] = Alarm(self._session.clock, self._session.tasks)
            self._session.tasks.spawn(self._renew_regularly(broker, self._alarms[broker]))
        if not self._is_watching:
            self._is_watching = True
            self._session.tasks.spawn(self._watch_ends())

    async def _renew_regularly(self, broker: str, alarm: Alarm) -> None:
        clock = self._session.clock
        pause_ms = _PAUSE_MS
        while True:
            held = self._held_of(broker)
            if not held:
                await alarm.wait()
                continue
            due_ms = min(lease.renew_ms for lease in held.values())
            if due_ms > clock.now_ms():
                await alarm.wait_until(due_ms)
                continue
            try:
                for part in in_parts(held.items()):
                    await self._renew(broker, dict(part))
                pause_ms = _PAUSE_MS
            except PocketMQError as error:
                self._log_failure("leases not renewed, retrying", broker, error, pause_ms)
                self._renew_routes(held)
                await clock.sleep_until(clock.now_ms() + pause_ms)
                pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    def _held_of(self, broker: str) -> dict[Queue, _Lease]:
        return {queue: lease for queue, lease in self._held.items() if queue.broker == broker}

    async def _renew(self, broker: str, held: dict[Queue, _Lease]) -> None:
        sent_ms, breaks = self._session.clock.now_ms(), self._session.routes.breaks(broker)
        rows = [
            pb.QueueLease(topic=queue.topic, queue=queue.number, token=lease.token)
            for queue, lease in held.items()
        ]
        reply = await self._request(broker, rows, 0)
        for (queue, lease), answer in zip(held.items(), reply.queues, strict=True):
            if self._held.get(queue) is not lease:
                continue
            if answer.token == lease.token:
                lease.from_ms = max(lease.from_ms, sent_ms)
                lease.lease_ms = reply.lease_ms
                lease.is_doubtful = False
                self._holder.renewed(queue, sent_ms, breaks)
                self._watch.ring()
            else:
                self._lose(queue, self._refusal(answer.holder))

    def _refusal(self, holder: str) -> str:
        """Return why a lease was not renewed. HOLDER: the member that has it, as the broker replied; "": none."""
        if holder == self._member_id:  # There is no other reason to refuse the holder.
            return "the queue was removed from its topic"
        return f"held by member {holder}" if holder else "the lease has expired"

    async def _watch_ends(self) -> None:
        """Lose each lease that was not renewed before its end."""
        clock = self._session.clock
        while True:
            if not self._held:
                await self._watch.wait()
                continue
            await self._watch.wait_until(min(lease.ends_ms for lease in self._held.values()))
            now_ms = clock.now_ms()
            for queue, lease in list(self._held.items()):
                if lease.ends_ms <= now_ms:
                    self._lose(queue, "not renewed in time")

    def _lose(self, queue: Queue, why: str) -> None:
        del self._held[queue]
        logger.warning("queue lost %s", Facts(group=self._parts.group, queue=queue, reason=why))
        self._holder.expired(queue)

    def drop(self, queue: Queue) -> None:
        """Forget the lease of QUEUE, because its broker replied that this member does not hold it."""
        self._held.pop(queue, None)

    async def release(self, queue: Queue) -> None:
        """Release QUEUE. Queues that are released in the same turn of the event loop are in one request.

        If the broker cannot be reached, there is no retry: the lease expires by itself.
        """
        lease = self._held.pop(queue, None)
        if lease is None:
            return
        if queue.broker not in self._leaving:
            sending = self._session.tasks.spawn(self._release_soon(queue.broker))
            self._leaving[queue.broker] = {}, sending
        row, sending = self._leaving[queue.broker]
        row[queue] = lease.token
        await asyncio.wait((sending,))

    async def _release_soon(self, broker: str) -> None:
        await asyncio.sleep(0)
        tokens, _ = self._leaving.pop(broker)
        for part in in_parts(tokens.items()):
            await self._release(broker, dict(part))

    async def _release(self, broker: str, tokens: dict[Queue, int]) -> None:
        request = pb.ReleaseRequest(
            group=self._parts.group,
            member_id=self._member_id,
            queues=[
                pb.QueueLease(topic=queue.topic, queue=queue.number, token=token)
                for queue, token in tokens.items()
            ],
        )
        try:
            await self._session.ask(
                broker,
                "ReleaseQueues",
                request,
                pb.ReleaseReply,
                self._parts.config.request_timeout_ms,
            )
        except PocketMQError as error:
            logger.info(
                "queues not released, their leases will expire %s",
                Facts(group=self._parts.group, broker=broker, reason=error.message),
            )

    def _log_failure(self, event: str, broker: str, error: PocketMQError, pause_ms: int) -> None:
        first = pause_ms == _PAUSE_MS
        level = logging.WARNING if first else logging.DEBUG
        facts = Facts(group=self._parts.group, broker=broker, reason=error.message)
        logger.log(level, "%s %s", event, facts)

    def _renew_routes(self, queues: Iterable[Queue]) -> None:
        for topic in {queue.topic for queue in queues}:
            self._session.routes.refresh(topic)
        self._holder.look_again()
