"""Transaction checks: asking a producer of the group whether its open transaction commits or rolls back.

A half message is checked first `transaction_timeout_ms` after it was stored (or after its own
CHECK_IMMUNITY_TIME_IN_SECONDS), then every `transaction_check_interval_ms`, up to `transaction_checks_max` times. A
check stores the half message again at the end of the half queue, with TRANSACTION_CHECK_TIMES one higher, marks the
older one as resolved, and asks one listener of the group. The count rises even without a listener. One interval after
the last check the message moves to TRANS_CHECK_MAX_TIME_TOPIC; so does one older than the retention time. All times
are the broker's, so a wrong clock of a producer changes nothing.

Limits: `_CHUNK` half messages, or `_CHUNK_BYTES`, per turn of the loop. One timer serves all.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from ...proto.access.policies import PUB, of_topic
from ...proto.clock import Clock
from ...proto.errors import InvalidArgument, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Stream
from ...proto.run import Run
from ...proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, check_group
from ..config import BrokerConfig
from ..messages.lookup import at_once
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics import Topics
from .half_queue import HalfQueue
from .open_halves import OpenHalf
from .outcomes import Outcome, Outcomes
from .records import HalfCopies

logger = logging.getLogger(__name__)


_CHUNK: Final = 256
_CHUNK_BYTES: Final = 4 * 1024 * 1024
#: Entries of resolved half messages are removed when there are more of them than open ones, and
#: this number.
_STALE_MIN: Final = 1_000


class Checks:
    """Checks the open half messages of HALVES. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        halves: HalfQueue,
        outcomes: Outcomes,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = halves.store
        self._topics = topics
        self._appends = halves.appends
        self._halves = halves
        self._outcomes = outcomes
        self._timers = timers
        self._clock = clock
        self.listeners = Listeners()
        self._due: list[tuple[int, int, OpenHalf]] = []
        self._timer: Timer | None = None
        #: The next chunk of due checks.
        self._next_chunk: asyncio.Handle | None = None
        self._running = False

    def start(self) -> None:
        """Start to check."""
        self._running = True
        self._arm()

    def close(self) -> None:
        """Stop checking."""
        self._running = False
        if self._timer is not None:
            self._timers.cancel(self._timer)
        if self._next_chunk is not None:
            self._next_chunk.cancel()
            self._clock.release()
            self._next_chunk = None

    def stream(self, stream: Stream) -> Listener:
        """Add a stream of a producer that answers checks."""
        return Listener(stream, self.listeners)

    def opened(self, half: OpenHalf) -> None:
        """Schedule the check of HALF, which became open."""
        wait_ms = self._config.transaction_check_interval_ms
        if not half.times:
            own = half.immunity_ms >= 0
            wait_ms = half.immunity_ms if own else self._config.transaction_timeout_ms
        self._enter(half, half.stored_ms + wait_ms)

    def _enter(self, half: OpenHalf, due_ms: int) -> None:
        half.due_ms = due_ms
        heapq.heappush(self._due, (due_ms, half.queue_offset, half))
        self._arm()

    def _arm(self) -> None:
        """Set the timer for the next check."""
        if not self._running or self._next_chunk is not None or not self._due:
            return
        if len(self._due) > 2 * len(self._halves.open) + _STALE_MIN:
            self._due = [(half.due_ms, half.queue_offset, half) for half in self._halves.open]
            heapq.heapify(self._due)
            if not self._due:
                return
        due_ms = self._due[0][0]
        if self._timer is None:
            self._timer = self._timers.at(due_ms, self._fire)
        elif not self._timer.active or due_ms < self._timer.deadline_ms:
            self._timers.reschedule(self._timer, due_ms)

    def _fire(self) -> None:
        """Run due checks, one chunk now and the others in the next turns, all with this time."""
        now_ms = self._clock.now_ms()
        due: list[OpenHalf] = []
        room = _CHUNK_BYTES
        while self._due and self._due[0][0] <= now_ms and len(due) < _CHUNK and room > 0:
            due_ms, _, half = heapq.heappop(self._due)
            if self._halves.open.holds(half) and half.due_ms == due_ms:
                due.append(half)
                room -= half.size
        if due:
            self._check_all(due, now_ms)
        if self._due and self._due[0][0] <= now_ms:
            self._clock.hold()
            self._next_chunk = asyncio.get_running_loop().call_soon(self._check_next_chunk)
        else:
            self._arm()

    def _check_next_chunk(self) -> None:
        self._next_chunk = None
        try:
            self._fire()
        finally:
            self._clock.release()

    def _check_all(self, due: Sequence[OpenHalf], now_ms: int) -> None:
        asked: list[OpenHalf] = []
        given_up: list[OpenHalf] = []
        for half in due:
            too_old = now_ms - half.stored_ms > self._store.config.retention_ms
            too_often = half.times >= self._config.transaction_checks_max
            (given_up if too_old or too_often else asked).append(half)
        try:
            if given_up:
                self._give_up(given_up)
            if asked:
                self._ask(asked)
        except PocketMQError as error:
            logger.error("transactions cannot be checked reason=%s", error.message)
            self._try_again(due, now_ms)
        except Exception:  # The outermost call of this work: a bug must not stop all checks.
            logger.exception("transaction checks failed, will be retried")
            self._try_again(due, now_ms)

    def _try_again(self, due: Sequence[OpenHalf], now_ms: int) -> None:
        """Schedule those of DUE that could not be checked again one interval later."""
        for half in due:
            if self._halves.open.holds(half) and half.due_ms <= now_ms:
                self._enter(half, now_ms + self._config.transaction_check_interval_ms)

    def _ask(self, halves: Sequence[OpenHalf]) -> None:
        """Store HALVES again, and ask their producers."""
        halves, records = self._read(halves)
        if not halves:
            return
        copies = HalfCopies(records)
        again = [copies.checked(row, half.times + 1) for row, half in enumerate(halves)]
        appended = self._appends.append_one(Run.of(HALF_TOPIC, 0, again))
        self._appends.when_confirmed(appended.end_offset, partial(self._stored_again, halves))

    def _stored_again(self, halves: Sequence[OpenHalf], error: PocketMQError | None) -> None:
        """Ask the producers of HALVES, unless there is an ERROR: then another master does."""
        if error is not None:
            return
        # The new records are open by now, and know the older ones as their predecessors.
        newest = [self._halves.open.get(*half.key) for half in halves]
        for older, half in zip(halves, newest, strict=True):
            if half is not None and half is not older:
                # If its properties have no space for the count, it is only in memory.
                half.times = max(half.times, older.times + 1)
        rolled_back = self._overtaken(halves, newest)
        stored = [half for half in newest if half is not None and half.also]
        for half in stored:
            self._halves.settle_older(half)
        self._halves.mark(rolled_back)
        for half in stored:
            self._send(half)

    def _overtaken(
        self, halves: Sequence[OpenHalf], newest: Sequence[OpenHalf | None]
    ) -> list[int]:
        """Return the offsets of those NEWEST whose transactions were rolled back before they were confirmed.

        HALVES are the older ones. Committed and given-up transactions are settled.
        """
        offsets = []
        for older, half in zip(halves, newest, strict=True):
            if half is None or half is older or half.also:
                continue
            outcome = at_once(self._outcomes.find(*half.key))
            if outcome is not None and (outcome.committed or outcome.given_up):
                self._halves.settle([half])
            else:
                self._halves.open.remove(half)
                offsets.append(half.queue_offset)
        return offsets

    def _give_up(self, halves: Sequence[OpenHalf]) -> None:
        """Give up HALVES, which no producer resolved: they move to TRANS_CHECK_MAX_TIME_TOPIC."""
        halves, records = self._read(halves)
        if not halves:
            return
        self._topics.for_group(CHECK_MAX_TIME_TOPIC, 1)
        copies = HalfCopies(records)
        ends = [copies.given_up(row) for row in range(len(halves))]
        self._appends.append_one(Run.of(CHECK_MAX_TIME_TOPIC, 0, ends))
        self._settle(halves)
        for half in halves:
            logger.warning(
                "transaction given up group=%s topic=%s id=%s checks=%d",
                half.group,
                half.topic,
                half.transaction_id,
                half.times,
            )

    def _settle(self, halves: Sequence[OpenHalf]) -> None:
        for half in halves:
            self._outcomes.remember(half.key, Outcome(False, half.topic, given_up=True))
        self._halves.settle(halves)
        self._halves.mark([])

    def _read(self, halves: Sequence[OpenHalf]) -> tuple[list[OpenHalf], list[bytes]]:
        """Return those of HALVES that are still in the log, and their records; the others are settled."""
        found = [(half, self._store.read_at(half.log_offset, half.size)) for half in halves]
        gone = [half for half, record in found if record is None]
        if gone:
            logger.warning("half messages not in the log any more count=%d", len(gone))
            self._settle(gone)
        there = [(half, record) for half, record in found if record is not None]
        return [half for half, _ in there], [record for _, record in there]

    def _send(self, half: OpenHalf) -> None:
        listener = self.listeners.choose(half.group, half.topic, half.transaction_id)
        if listener is None:
            return
        record = self._store.read_at(half.log_offset, half.size)
        if record is not None:
            listener.send(
                pb.TransactionCheck(
                    group=half.group,
                    topic=half.topic,
                    transaction_id=half.transaction_id,
                    times=half.times,
                    half_log_offset=half.log_offset,
                    record=record,
                )
            )


_QUEUED_BYTES_MAX: Final = 1024 * 1024
#: Limit of topics per listener.
_TOPICS_MAX: Final = 10_000


class Answering(Protocol):
    """A listener that can be asked."""

    @property
    def group(self) -> str:
        """The producer group for which it answers."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether it reads its stream fast enough to get more checks."""
        ...

    def is_for(self, topic: str) -> bool:
        """Return whether it is preferred for TOPIC."""
        ...

    def sent(self, transaction_id: str) -> bool:
        """Return whether it is known to have sent the half message of TRANSACTION_ID."""
        ...

    def may_see(self, topic: str) -> bool:
        """Return whether it may get the content of a message for TOPIC."""
        ...

    def send(self, check: pb.TransactionCheck) -> None:
        """Send a check."""
        ...


class Listener:
    """One open stream of a producer that answers checks."""

    def __init__(self, stream: Stream, listeners: Listeners) -> None:
        self._stream = stream
        self._listeners = listeners
        self.group = ""
        self.topics: frozenset[str] = frozenset()

    def on_message(self, message: pb.TransactionListener) -> None:
        """Start to listen for a group; a later message changes the topics."""
        check_group(message.group)
        if self.group and message.group != self.group:
            raise InvalidArgument(
                f"this stream listens for group {self.group!r}: open another stream for {message.group[:64]!r}",
                field="group",
                value=message.group[:64],
            )
        if len(message.topics) > _TOPICS_MAX:
            raise InvalidArgument(
                f"topics: {len(message.topics)} topics of one listener, the limit is {_TOPICS_MAX}: list fewer, or none"
                " for all topics of the group",
                field="topics",
                limit=_TOPICS_MAX,
                value=len(message.topics),
            )
        self.topics = frozenset(message.topics)
        if not self.group:
            self.group = message.group
            self._listeners.add(self)

    @property
    def has_room(self) -> bool:
        """Return whether it reads its stream fast enough to get more checks."""
        return self._stream.queued_bytes < _QUEUED_BYTES_MAX

    def is_for(self, topic: str) -> bool:
        """Return whether it listed TOPIC, or no topics."""
        return not self.topics or topic in self.topics

    def sent(self, transaction_id: str) -> bool:
        """Always false: it is not known here."""
        return False

    def send(self, check: pb.TransactionCheck) -> None:
        self._stream.send(check)

    def may_see(self, topic: str) -> bool:
        """Return whether its user may send to TOPIC: a check contains the body of the message."""
        return self._stream.user.may(self._stream, of_topic(topic, PUB))

    def on_end(self) -> None:
        self._listeners.remove(self)
        self._stream.finish()

    def on_close(self) -> None:
        self._listeners.remove(self)


class Listeners:
    """The producers that answer checks, by group. One is asked per check.

    The producer that sent the half message is preferred, if known; otherwise they take turns, those that listen for the
    topic first. Limits per listener: `_QUEUED_BYTES_MAX` unsent bytes (beyond it, the listener is skipped),
    `_TOPICS_MAX` topics.
    """

    def __init__(self) -> None:
        self._by_group: dict[str, list[Answering]] = {}

    def __len__(self) -> int:
        return sum(len(listeners) for listeners in self._by_group.values())

    def add(self, listener: Answering) -> None:
        self._by_group.setdefault(listener.group, []).append(listener)

    def remove(self, listener: Answering) -> None:
        listeners = self._by_group.get(listener.group, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._by_group.pop(listener.group, None)

    def choose(self, group: str, topic: str, transaction_id: str) -> Answering | None:
        """Return the listener of GROUP to ask about TRANSACTION_ID, of a message for TOPIC; None: all are busy."""
        listeners = self._by_group.get(group, [])
        ready = [one for one in listeners if one.has_room and one.may_see(topic)]
        if not ready:
            return None
        chosen = next((one for one in ready if one.sent(transaction_id)), None)
        if chosen is None:
            chosen = next((one for one in ready if one.is_for(topic)), ready[0])
        listeners.remove(chosen)
        listeners.append(chosen)
        return chosen
