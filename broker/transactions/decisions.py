"""Carrying out outcomes: all that arrive in one turn of the loop together, in one op message of each kind.

First the messages of what is committed, then the marks; see transactions.py for why. An answer leaves when both are as
safe as the store's setting promises. What the store refuses, or cannot read, stays open, and its sender hears why. Of
large messages as many as make `_CHUNK_BYTES` are committed in one turn, the others in the next ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, TypeAlias

from ...proto.errors import PocketMQError, StoreError, TransactionNotFound, TransactionResolved
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Call
from ...proto.run import Run
from ...store.log_writer import Appended
from ..lookup import at_once
from .half_messages import HalfCopies
from .half_queue import HalfQueue
from .open_halves import Key, OpenHalf
from .outcomes import Outcome, Outcomes

_CHUNK_BYTES: Final = 4 * 1024 * 1024


class _Decision:
    """An outcome that arrived in this turn of the loop, and who waits for the answer."""

    __slots__ = ("calls", "commit", "key")

    def __init__(self, key: Key, *, commit: bool) -> None:
        self.key = key
        self.commit = commit
        self.calls: list[Call] = []

    def fail(self, error: PocketMQError) -> None:
        for call in self.calls:
            call.fail(error)


_Pair: TypeAlias = tuple[_Decision, OpenHalf]
_Decided: TypeAlias = tuple[_Decision, Outcome]


class Decisions:
    """Carries out what is decided of HALVES. The event loop owns it."""

    def __init__(self, halves: HalfQueue, outcomes: Outcomes, now_ms: Callable[[], int]) -> None:
        """NOW_MS is the messages' time, as an instant for waits."""
        self._now_ms = now_ms
        self._store = halves.store
        self._appends = halves.appends
        self._halves = halves
        self._outcomes = outcomes
        self._arrived: dict[Key, _Decision] = {}

    def take(self, key: Key, call: Call, *, commit: bool) -> None:
        """Carry out the outcome of transaction KEY at the end of this turn of the loop, and answer CALL.

        Raises TransactionResolved if the other one arrived in the same turn before.
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
        """Answer CALL with an OUTCOME that is in the log already."""
        self._answer(self._store.max_log_offset, [([call], outcome.reply(repeated=True))])

    def carry_out_all(self) -> None:
        """Carry out what has arrived, at a stop."""
        while self._arrived:
            self.carry_out()

    def _chunk(self) -> list[_Decision]:
        """Take the decisions of one turn off those that have arrived."""
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
        """Carry out what has arrived."""
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
        if not isinstance(marked, PocketMQError):
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
        """Answer for a transaction that was given up in this very turn."""
        try:
            outcome = at_once(self._outcomes.find(*decision.key))
        except StoreError as error:
            decision.fail(error)
            return
        name = "given up" if outcome is None else outcome.name
        decision.fail(resolved_already(decision.key[1], name))

    def _commit(self, pairs: Sequence[_Pair]) -> tuple[int, list[_Decided]]:
        """Append the messages of PAIRS; return the end of the log behind them, and what is committed."""
        there: list[_Pair] = []
        records: list[bytes] = []
        for decision, half in sorted(pairs, key=_place):
            try:
                record = self._store.read_at(half.log_offset, half.size)
            except StoreError as error:
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
            if isinstance(appended, PocketMQError):
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

        def safe(error: PocketMQError | None) -> None:
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
    """Yield the answers; whoever said the same in the same turn repeated it."""
    for decision, outcome in decided:
        yield decision.calls[:1], outcome.reply(repeated=False)
        yield decision.calls[1:], outcome.reply(repeated=True)


def resolved_already(transaction_id: str, outcome: str) -> TransactionResolved:
    """Return the error for an outcome that comes after another."""
    return TransactionResolved(
        f"transaction {transaction_id!r} was {outcome} already: an outcome is final",
        transaction_id=transaction_id,
        outcome=outcome,
    )


def _gone(half: OpenHalf) -> TransactionNotFound:
    return TransactionNotFound(
        f"the half message of transaction {half.transaction_id!r} is not in the log any more: it was kept as long as"
        " the store keeps messages",
        transaction_id=half.transaction_id,
    )
