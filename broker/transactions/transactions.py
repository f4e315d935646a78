"""Transactions: half messages, and their commit or rollback by the producer.

COMMIT appends the message to its real queue and then marks the half message as resolved, in one turn of the event loop.
In this order a mark never exists without its message, and a message without its mark is found at the next start.
ROLLBACK only marks. All requests of one turn share one op message of each kind. A request is answered when its result
is as safe as the store's setting promises. If the store refuses, the transaction stays open and the producer gets the
reason.

    the same request again             answered again, `repeated`
    the opposite request               TransactionResolved
    unknown id, or another group       TransactionNotFound
    another topic or half message      InvalidArgument
    UNSPECIFIED                        nothing happens: the producer is asked later (checks.py)

After its CHECK_IMMUNITY_TIME_IN_SECONDS a half message can only be resolved by the answer to a check, as in RocketMQ.
Limit: `transactions_open_max`; `check_room` refuses more before they are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias

from ...proto import errors
from ...proto.clock import Clock
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import LATER, Call, Later, MethodTable, bidi, service, unary
from ...proto.run import Run
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..messages.appender import Appender
from ..messages.lookup import at_once, in_steps
from ..offsets import Offsets
from ..timing.timers import Timers
from ..topics import Topics
from .checks import Checks, Listeners
from .half_queue import HalfQueue
from .open_halves import Key, OpenHalf
from .outcomes import Outcome, Outcomes
from .records import HalfCopies

logger = logging.getLogger(__name__)


_CHUNK_BYTES: Final = 4 * 1024 * 1024


class _Decision:
    """A commit or rollback of this turn of the event loop, and the calls that wait for its answer."""

    __slots__ = ("calls", "commit", "key")

    def __init__(self, key: Key, *, commit: bool) -> None:
        self.key = key
        self.commit = commit
        self.calls: list[Call] = []

    def fail(self, error: errors.PocketMQError) -> None:
        for call in self.calls:
            call.fail(error)


_Pair: TypeAlias = tuple[_Decision, OpenHalf]
_Decided: TypeAlias = tuple[_Decision, Outcome]


class Decisions:
    """Executes commits and rollbacks of HALVES. The event loop owns it."""

    def __init__(self, halves: HalfQueue, outcomes: Outcomes, now_ms: Callable[[], int]) -> None:
        """NOW_MS returns the time of messages, as a timer time."""
        self._now_ms = now_ms
        self._store = halves.store
        self._appends = halves.appends
        self._halves = halves
        self._outcomes = outcomes
        self._arrived: dict[Key, _Decision] = {}

    def take(self, key: Key, call: Call, *, commit: bool) -> None:
        """Commit or roll back transaction KEY at the end of this turn of the loop, and answer CALL.

        Raises TransactionResolved if the opposite arrived earlier in the same turn.
        """
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self.carry_out)
        decision = self._arrived.get(key)
        if decision is None:
            decision = self._arrived[key] = _Decision(key, commit=commit)
        elif decision.commit != commit:
            raise resolved_already(key[1], "committed" if decision.commit else "rolled back")
        decision.calls.append(call)

    def repeat(self, outcome: Outcome, call: Call) -> None:
        """Answer CALL with a result that is in the log already."""
        self._answer(self._store.max_log_offset, [([call], outcome.reply(repeated=True))])

    def carry_out_all(self) -> None:
        """Execute all decisions, at a stop."""
        while self._arrived:
            self.carry_out()

    def _chunk(self) -> list[_Decision]:
        """Remove and return the decisions for one turn."""
        chunk: list[_Decision] = []
        room = _CHUNK_BYTES
        for key, decision in self._arrived.items():
            if room <= 0:
                break
            chunk.append(decision)
            half = self._halves.open.get(*key)
            if half is not None and decision.commit:
                room -= half.size
        for decision in chunk:
            del self._arrived[decision.key]
        return chunk

    def carry_out(self) -> None:
        """Execute the decisions for one turn."""
        decisions = self._chunk()
        if self._arrived:
            asyncio.get_running_loop().call_soon(self.carry_out)
        commits: list[_Pair] = []
        rollbacks: list[_Pair] = []
        for decision in decisions:
            half = self._halves.open.get(*decision.key)
            if half is None:
                self._overtaken(decision)
            else:
                (commits if decision.commit else rollbacks).append((decision, half))
        end_offset, decided = self._commit(commits)
        offsets = [at for _, half in rollbacks for at in (half.queue_offset, *half.also)]
        marked = self._halves.mark(offsets)
        if not isinstance(marked, errors.PocketMQError):
            decided += self._roll_back(rollbacks)
            end_offset = max(end_offset, marked)
        else:
            for decision, _ in rollbacks:
                decision.fail(marked)
        now_ms = self._now_ms()
        began_ms = {decision.key: half.stored_ms for decision, half in (*commits, *rollbacks)}
        for decision, outcome in decided:
            self._outcomes.remember(decision.key, outcome)
            waited_ms = now_ms - began_ms[decision.key]
            self._appends.traffic.ended(outcome.topic, waited_ms, committed=outcome.committed)
        self._answer(end_offset, list(_replies(decided)))

    def _overtaken(self, decision: _Decision) -> None:
        """Answer a transaction that was given up in this turn."""
        try:
            outcome = at_once(self._outcomes.find(*decision.key))
        except errors.StoreError as error:
            decision.fail(error)
            return
        name = "given up" if outcome is None else outcome.name
        decision.fail(resolved_already(decision.key[1], name))

    def _commit(self, pairs: Sequence[_Pair]) -> tuple[int, list[_Decided]]:
        """Append the messages of PAIRS; return the log offset after them, and the results."""
        there: list[_Pair] = []
        records: list[bytes] = []
        for decision, half in sorted(pairs, key=_place):
            try:
                record = self._store.read_at(half.log_offset, half.size)
            except errors.StoreError as error:
                decision.fail(error)
                continue
            if record is None:
                decision.fail(_gone(half))
            else:
                there.append((decision, half))
                records.append(record)
        if not there:
            return 0, []
        copies = HalfCopies(records)
        groups = [
            list(rows) for _, rows in groupby(range(len(there)), lambda row: _target(there[row]))
        ]
        runs = []
        for rows in groups:
            topic, queue = _target(there[rows[0]])
            runs.append(Run.of(topic, queue, [copies.committed(row, topic, queue) for row in rows]))
        end_offset = 0
        decided: list[_Decided] = []
        for rows, appended in zip(groups, self._appends.append(runs), strict=True):
            group = [there[row] for row in rows]
            if isinstance(appended, errors.PocketMQError):
                for decision, _ in group:
                    decision.fail(appended)
                continue
            self._halves.settle([half for _, half in group])
            end_offset = max(end_offset, appended.end_offset)
            decided += _committed(group, appended)
        return end_offset, decided

    def _roll_back(self, pairs: Sequence[_Pair]) -> Iterator[_Decided]:
        for decision, half in pairs:
            self._halves.open.remove(half)
            yield decision, Outcome(False, half.topic)
        self._halves.reached()

    def _answer(
        self, end_offset: int, replies: Sequence[tuple[Sequence[Call], pb.EndTransactionReply]]
    ) -> None:
        """Answer once everything before END_OFFSET is safe."""

        def safe(error: errors.PocketMQError | None) -> None:
            for calls, reply in replies:
                for call in calls:
                    if error is None:
                        call.reply(reply)
                    else:
                        call.fail(error)

        if replies:
            self._appends.when_safe(end_offset, safe)


def _place(pair: _Pair) -> tuple[str, int, int]:
    half = pair[1]
    return half.topic, half.queue, half.queue_offset


def _target(pair: _Pair) -> tuple[str, int]:
    return pair[1].topic, pair[1].queue


def _committed(group: Iterable[_Pair], appended: Appended) -> Iterator[_Decided]:
    offsets = appended.log_offsets.tolist()
    for row, (decision, half) in enumerate(group):
        yield (
            decision,
            Outcome(
                True,
                half.topic,
                half.queue,
                appended.first_queue_offset + row,
                offsets[row],
                appended.store_timestamp_ms,
            ),
        )


def _replies(
    decided: Iterable[_Decided],
) -> Iterator[tuple[list[Call], pb.EndTransactionReply]]:
    """Yield the answers; further calls with the same request in the same turn get `repeated`."""
    for decision, outcome in decided:
        yield decision.calls[:1], outcome.reply(repeated=False)
        yield decision.calls[1:], outcome.reply(repeated=True)


def resolved_already(transaction_id: str, outcome: str) -> errors.TransactionResolved:
    """Return the error for a commit or rollback that comes after another."""
    return errors.TransactionResolved(
        f"transaction {transaction_id!r} was {outcome} already, which is final",
        transaction_id=transaction_id,
        outcome=outcome,
    )


def _gone(half: OpenHalf) -> errors.TransactionNotFound:
    return errors.TransactionNotFound(
        f"the half message of transaction {half.transaction_id!r} is not in the log any more: its retention time has"
        " passed",
        transaction_id=half.transaction_id,
    )


_RESOLUTIONS: Final = (pb.RESOLUTION_UNSPECIFIED, pb.COMMIT, pb.ROLLBACK)


class Transactions:
    """The transactions of STORE. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        appends: Appender,
        timers: Timers,
        clock: Clock,
    ) -> None:
        """TIMERS and CLOCK use the time of messages."""
        self._config = config
        self._store = store
        self._now_ms: Callable[[], int] = clock.now_ms
        self._outcomes = Outcomes(store)
        self._halves = HalfQueue(store, appends, offsets, self._outcomes, clock, self._opened)
        self._checks = Checks(config, topics, self._halves, self._outcomes, timers, clock)
        self._decisions = Decisions(self._halves, self._outcomes, clock.now_ms)
        #: Half messages of this turn that are not in the table yet.
        self._expected = 0
        self._running = False

    def open_by_topic(self) -> dict[str, int]:
        """Return the number of open transactions by their topic."""
        return dict(Counter(half.topic for half in self._halves.open))

    def open_halves(self) -> list[OpenHalf]:
        """Return the open half messages, the newest of each transaction."""
        return list(self._halves.open)

    @property
    def open_count(self) -> int:
        """The number of open transactions."""
        return self._halves.open.transactions

    def oldest_log_offset(self) -> int | None:
        """Return the log offset of the oldest open half message; None if there is none."""
        return min((half.log_offset for half in self._halves.open), default=None)

    @property
    def listening(self) -> int:
        """The number of producers that answer checks."""
        return len(self.listeners)

    @property
    def listeners(self) -> Listeners:
        """The producers that answer checks."""
        return self._checks.listeners

    def start(self) -> None:
        """Find open transactions, and start to check. Call this on a running loop, before the first half message
        arrives.
        """
        self._halves.start()
        self._checks.start()
        self._running = True

    def close(self) -> None:
        """Stop checking, and commit the progress of the queues. Call this when no calls arrive any more, before the
        store closes.
        """
        if not self._running:
            return
        self._running = False
        self._decisions.carry_out_all()
        self._checks.close()
        try:
            self._halves.close()
        except errors.StoreError as error:  # The next start reads more of the log.
            logger.error("progress of transactions not saved reason=%s", error.message)

    def check_room(self, count: int) -> None:
        """Raise Overloaded unless COUNT half messages may be stored in this turn of the loop."""
        limit = self._config.transactions_open_max
        there = len(self._halves.open) + self._halves.unread + self._expected
        if there + count > limit:
            raise errors.Overloaded(
                f"{there} transactions are open, the limit is {limit} (broker.transactions_open_max): commit or"
                " roll back some, or raise the limit",
                field="transactions_open_max",
                limit=limit,
                value=there,
            )
        if not self._expected:
            asyncio.get_running_loop().call_soon(self._expect_none)
        self._expected += count

    def _opened(self, half: OpenHalf) -> None:
        self._checks.opened(half)
        self._expected = max(0, self._expected - 1)

    def _expect_none(self) -> None:
        self._expected = 0

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            "pocketmq.v1.Broker",
            {
                "EndTransaction": unary(pb.EndTransactionRequest, pb.EndTransactionReply, self.end),
                "TransactionChecks": bidi(
                    pb.TransactionListener, pb.TransactionCheck, self._checks.stream
                ),
            },
        )

    def end(self, request: pb.EndTransactionRequest, call: Call) -> pb.EndTransactionReply | Later:
        """Commit or roll back a transaction; the answer is sent when that is safe."""
        _check_fields(request)
        if request.resolution == pb.RESOLUTION_UNSPECIFIED:
            return pb.EndTransactionReply(topic=request.topic, queue_offset=-1, log_offset=-1)
        if self._halves.open.get(request.group, request.transaction_id) is None:
            # Its half message opens when it is confirmed.
            self._halves.appends.when_all_confirmed(partial(self._end, request, call), call.fail)
        else:
            self._end(request, call)
        return LATER

    def _end(self, request: pb.EndTransactionRequest, call: Call) -> None:
        commit = request.resolution == pb.COMMIT
        half = self._halves.open.get(request.group, request.transaction_id)
        if half is None:
            self._answer_again(request, call, commit=commit)
            return
        _check_topic(request, half.topic)
        self._check_half(request, half)
        self._check_immunity(request, half)
        self._decisions.take(half.key, call, commit=commit)

    def _check_half(self, request: pb.EndTransactionRequest, half: OpenHalf) -> None:
        """Raise an error if a given place is not that of a half message of this transaction; 0 means none."""
        at = request.half_log_offset
        if at in (0, half.log_offset) or self._outcomes.is_half_of(at, request.transaction_id):
            return
        raise errors.InvalidArgument(
            f"half_log_offset is {at}, but the half message of transaction {request.transaction_id!r} is at"
            f" {half.log_offset}: leave it out, or take it from the receipt",
            field="half_log_offset",
            value=at,
        )

    def _check_immunity(self, request: pb.EndTransactionRequest, half: OpenHalf) -> None:
        if half.immunity_ms < 0 or request.from_check:
            return
        limit_ms = max(half.immunity_ms, self._config.transaction_timeout_ms)
        since_ms = self._now_ms() - half.stored_ms
        if half.times or since_ms > limit_ms:
            raise errors.AlreadyDelivered(
                f"transaction {request.transaction_id!r} had to be committed or rolled back within {limit_ms} ms"
                " (CHECK_IMMUNITY_TIME_IN_SECONDS), which have passed: answer the next check",
                field="resolution",
                limit=limit_ms,
                value=since_ms,
            )

    def _answer_again(self, request: pb.EndTransactionRequest, call: Call, *, commit: bool) -> None:
        """Answer for a transaction that is not open."""

        def found(outcome: Outcome) -> None:
            _check_topic(request, outcome.topic)
            if outcome.committed != commit:
                raise resolved_already(request.transaction_id, outcome.name)
            self._decisions.repeat(outcome, call)

        in_steps(self._find(request), found, call.fail)

    def _find(self, request: pb.EndTransactionRequest) -> Generator[None, None, Outcome]:
        """Find, in steps, how the transaction ended; raise TransactionNotFound."""
        outcome = yield from self._outcomes.find(request.group, request.transaction_id)
        if outcome is not None:
            return outcome
        self._store.check_readable()
        if (yield from self._outcomes.is_known(request.transaction_id)):
            raise errors.TransactionNotFound(
                f"transaction {request.transaction_id!r} does not belong to group {request.group!r}: only the group"
                " that sent its half message may end it",
                field="group",
                value=request.group,
            )
        raise errors.TransactionNotFound(
            f"no half message of transaction {request.transaction_id!r} and group {request.group!r} exists here: check"
            " the id, and that this broker has the message",
            field="transaction_id",
            value=request.transaction_id,
        )


def _check_fields(request: pb.EndTransactionRequest) -> None:
    for field in ("group", "topic", "transaction_id"):
        if not getattr(request, field):
            raise errors.InvalidArgument(
                f"{field} is empty: set group, topic and transaction id of the half message",
                field=field,
            )
    if request.resolution not in _RESOLUTIONS:
        raise errors.InvalidArgument(
            f"resolution is {int(request.resolution)}: use COMMIT (1), ROLLBACK (2), or none (0)",
            field="resolution",
            limit=pb.ROLLBACK,
            value=int(request.resolution),
        )


def _check_topic(request: pb.EndTransactionRequest, topic: str) -> None:
    if request.topic != topic:
        raise errors.InvalidArgument(
            f"topic is {request.topic!r}, but transaction {request.transaction_id!r} is about a message for another"
            " topic: use that one",
            field="topic",
            value=request.topic,
        )
