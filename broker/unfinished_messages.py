"""Delivered messages without a result yet: a virtual clock waits for them.

Delivery times follow the virtual clock, but consumers run in real time. If the clock did not wait, hours of retries
would be due while a listener runs for the first time. So the clock does not advance while one of these is true:

    groups that share queues    a message that was fetched under a lease is neither committed nor returned; the owner
                                of a queue is about to fetch again; a topic of the members, or their retry topic, has
                                messages in a queue that no member owns yet
    groups that pop             a push consumer has a message that it neither acknowledged, returned nor forwarded;
                                there is a message for a consumer that is about to receive again; a simple consumer has
                                a message of this move whose invisible duration has not ended

It does not wait for results that the broker cannot see: of consumers without a group, fetches without a lease, and
retries inside a client (in order, in its own process).

Limit: the clock waits for PATIENCE_S of real time after the last change. Then the log names whom it waited for, and
this move does not wait for them again. The event loop owns all of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final

from ..proto.clock import VirtualClock
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.topics import retry_topic
from ..store.message_store import MessageStore
from .groups.coordination import Coordination
from .groups.lease_table import QueueKey
from .messages.fetch_reply import Done
from .offsets import Offsets
from .pop.receives import ReceiveRequest, ReceiveResult
from .pop.service import PopService
from .topics import Topics

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.001
_TOLD_MAX: Final = 5
#: Limit of the offsets per queue that are remembered as returned.
_RETURNED_MAX: Final = 10_000

#: A queue as a group has it: (group, topic, queue).
_GroupQueue = tuple[str, str, int]
#: What the clock waits for, and its progress: the value changes with each result.
_Open = dict[tuple[Hashable, ...], Hashable]


class UnfinishedMessages:
    """Stops a moving CLOCK until the delivered messages have a result."""

    def __init__(
        self,
        clock: VirtualClock,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        pops: PopService,
        coordination: Coordination,
    ) -> None:
        self._clock = clock
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._pops = pops
        self._coordination = coordination
        #: Whether anything has happened since the last wait was complete, and where the log ended
        #: then.
        self._has_changed = True
        self._settled_end = 0
        #: The token of a waiting fetch; the token of the last completed fetch, and the end of its
        #: messages.
        self._waiting: dict[_GroupQueue, int] = {}
        self._fetched: dict[_GroupQueue, tuple[int, int]] = {}
        #: Offsets of messages that were returned and may not be committed yet.
        self._returned: dict[_GroupQueue, set[int]] = {}
        #: When a push consumer last received, or got an answer, by (group, topic), in real time.
        self._pushed_s: dict[tuple[str, str], float] = {}
        #: Messages that simple consumers received in this move: group and topic by handle.
        self._received: dict[str, tuple[str, str]] = {}
        self._moving = self._is_over = False
        self._given_up: set[tuple[Hashable, ...]] = set()

    def start(self) -> None:
        """Start holding the clock."""
        self._clock.before_move.append(self._begin)
        self._clock.before_leaving.append(self.settle)
        self._clock.after_move.append(self._end)

    def stop(self) -> None:
        """Stop holding the clock: a move that waits continues."""
        self._is_over = True
        if self.settle in self._clock.before_leaving:
            self._clock.before_move.remove(self._begin)
            self._clock.before_leaving.remove(self.settle)
            self._clock.after_move.remove(self._end)

    def _begin(self, target_ms: int) -> None:
        self._moving = self._has_changed = True
        self._given_up.clear()

    def _end(self) -> None:
        self._moving = False
        self._received.clear()

    def fetching(self, request: pb.FetchRequest, done: Done) -> Done:
        """Record a fetch; return the callback for its answer, which calls DONE."""
        if not request.lease:
            return done
        key, token = (request.group, request.topic, request.queue), request.lease
        self._waiting[key] = token

        def answered(reply: pb.FetchReply) -> None:
            self._has_changed = True
            if self._waiting.get(key) == token:
                del self._waiting[key]
            if reply.records:
                reply.clock_waits = True
                self._fetched[key] = token, reply.next_offset
            done(reply)

        return answered

    def sent_back(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Record that a message was stored again, as a retry or a dead letter."""
        returned = self._returned.setdefault((group, topic, queue), set())
        if len(returned) >= _RETURNED_MAX:
            returned.clear()
        returned.add(offset)

    def receiving(
        self, asked: ReceiveRequest, done: Callable[[ReceiveResult], None]
    ) -> Callable[[ReceiveResult], None]:
        """Record a receive; return the callback for its result, which calls DONE."""
        key = asked.group, asked.topic
        if asked.auto_renew:
            self._pushed_s[key] = _now_s()

        def popped(popped: ReceiveResult) -> None:
            self._has_changed = True
            if asked.auto_renew:
                self._pushed_s[key] = _now_s()
            elif self._moving:
                self._received.update((delivery.handle, key) for delivery in popped.deliveries)
            done(popped)

        return popped

    async def settle(self) -> bool:
        """Wait until the clock may leave the present time; return whether that took any time."""
        # A redelivery to a push consumer that is about to receive counts as no event.
        has_arrived = self._store.max_log_offset != self._settled_end
        if not self._has_changed and not has_arrived and not self._pushed_s:
            return False
        waited, before, since_s = False, self._open(), _now_s()
        while before:
            waited = True
            await asyncio.sleep(_LOOK_S)
            if self._is_over:
                break
            now = self._open()
            if now != before:
                before, since_s = now, _now_s()
            elif _now_s() - since_s >= PATIENCE_S:
                self._give_up(now)
                before = self._open()
        self._has_changed = False
        self._settled_end = self._store.max_log_offset
        return waited

    def _give_up(self, found: _Open) -> None:
        self._given_up.update(found)
        told = "; ".join(" ".join(map(str, who)) for who in list(found)[:_TOLD_MAX])
        more = f"; and {len(found) - _TOLD_MAX} more" if len(found) > _TOLD_MAX else ""
        logger.warning(
            "clock continues without results now_ms=%d waited_s=%.0f waited_for=%s%s",
            self._clock.now_ms(),
            PATIENCE_S,
            told,
            more,
        )

    def _open(self) -> _Open:
        """Return what the clock must wait for."""
        found = self._open_queues() | self._open_pops()
        return {who: state for who, state in found.items() if who not in self._given_up}

    def _open_queues(self) -> _Open:
        found: _Open = {}
        coordination = self._coordination
        groups = coordination.coordinator.read_topics()
        read = {(group, topic) for group, topics in groups for topic in topics}
        for group, key, lease in coordination.held():
            read.add((group, retry_topic(group)))
            place = group, key.topic, key.queue
            committed = self._committed(group, key)
            token, end = self._fetched.get(place, (0, 0))
            is_fetching = self._waiting.get(place) == lease.token
            if not is_fetching or (token == lease.token and committed < end):
                found[place] = committed, end, is_fetching
        for group, name in read:
            found |= self._unread(group, name)
        return found

    def _unread(self, group: str, name: str) -> _Open:
        """Return the queues of topic NAME that have messages for GROUP and no owner."""
        topic = self._topics.find(name)
        found: _Open = {}
        for number in range(0 if topic is None else topic.read_queues):
            key = QueueKey(name, number)
            if self._coordination.holder(group, key) is None:
                end, committed = self._store.queue_bounds(*key)[1], self._committed(group, key)
                if committed < end:
                    found[group, *key] = committed, end
        return found

    def _committed(self, group: str, key: QueueKey) -> int:
        """Return the offset up to which GROUP has processed KEY: committed, or returned directly after that."""
        offset = self._offsets.committed(key.topic, group, key.queue) or 0
        returned = self._returned.get((group, key.topic, key.queue))
        while returned and offset in returned:
            offset += 1
        return offset

    def _open_pops(self) -> _Open:
        pops, oldest_s = self._pops, _now_s() - PATIENCE_S
        found: _Open = {("client", owner): count for owner, count in pops.unacknowledged().items()}
        self._received = {
            handle: key for handle, key in self._received.items() if pops.is_in_flight(*key, handle)
        }
        for group, topic in self._received.values():
            found["group", group, "topic", topic] = len(self._received)
        self._pushed_s = {
            key: pushed_s for key, pushed_s in self._pushed_s.items() if pushed_s > oldest_s
        }
        for group, topic in self._pushed_s:
            if pops.has_some_left(group, topic):
                found["push consumers of", group, topic] = True
        return found


def _now_s() -> float:
    return asyncio.get_running_loop().time()
