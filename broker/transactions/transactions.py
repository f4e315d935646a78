"""Transactions: half messages in, their senders' outcomes, and what comes of them.

COMMIT appends the message to its real queue and then marks the half message as resolved, in one turn of the loop, in
this order: whatever is cut off behind, a mark never stands without its message, and a message without its mark is
found at the next start. ROLLBACK marks only. All outcomes of one turn share the work, and an op message. An outcome
is answered when it is as safe as the store's setting promises.

    asked again, the same outcome      it is answered again, `repeated`
    the other outcome                  TransactionResolved
    an id of nobody, or another group  TransactionNotFound
    another topic or half message      InvalidArgument
    UNSPECIFIED                        nothing happens: the sender is asked later (checks.py)

A half message with a time of its own (CHECK_IMMUNITY_TIME_IN_SECONDS) takes no outcome from its sender after that
time, only answers to a check; as Apache's, so that a late sender and a check do not contradict each other.

Bounds: `transactions_open_max` half messages; beyond, `check_room` refuses further ones before they are stored. What is
sent in one turn of the loop counts together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from ...proto.clock import Clock
from ...proto.errors import (
    InvalidArgument,
    Overloaded,
    StoreError,
    TooLate,
    TransactionNotFound,
)
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import LATER, Call, Later, MethodTable, bidi, service, unary
from ...store.message_store import MessageStore
from ..appends import Appends
from ..config import BrokerConfig
from ..lookup import in_turns
from ..offsets import Offsets
from ..timers import Timers
from ..topics import Topics
from .checks import Checks
from .decisions import Decisions, resolved_already
from .half_queue import HalfQueue
from .listeners import Listeners
from .open_halves import OpenHalf
from .outcomes import Outcome, Outcomes

logger = logging.getLogger(__name__)

_RESOLUTIONS: Final = (pb.RESOLUTION_UNSPECIFIED, pb.COMMIT, pb.ROLLBACK)


class Transactions:
    """The transactions of STORE. The event loop owns it."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        appends: Appends,
        timers: Timers,
        clock: Clock,
    ) -> None:
        """TIMERS and CLOCK are those of the messages' time."""
        self._config = config
        self._store = store
        self._now_ms: Callable[[], int] = clock.now_ms
        self._outcomes = Outcomes(store)
        self._halves = HalfQueue(store, appends, offsets, self._outcomes, clock)
        self._checks = Checks(config, topics, self._halves, self._outcomes, timers, clock)
        self._decisions = Decisions(self._halves, self._outcomes, clock.now_ms)
        #: Half messages of this turn that are not in the table yet.
        self._expected = 0
        self._running = False
        self._halves.on_open.append(self._came)

    def open_by_topic(self) -> dict[str, int]:
        """Return how many transactions have no outcome, by the topic that they are for."""
        return dict(Counter(half.topic for half in self._halves.open))

    @property
    def open_count(self) -> int:
        """How many transactions have no outcome."""
        return self._halves.open.transactions

    def oldest_log_offset(self) -> int | None:
        """Return where in the log the oldest half message without an outcome begins; None if there is none."""
        return min((half.log_offset for half in self._halves.open), default=None)

    @property
    def listening(self) -> int:
        """How many producers answer checks."""
        return len(self.listeners)

    @property
    def listeners(self) -> Listeners:
        """Those who answer checks."""
        return self._checks.listeners

    def start(self) -> None:
        """Find what is open, and begin to check. Before the first half message arrives; on a running loop."""
        self._halves.start()
        self._checks.start()
        self._running = True

    def close(self) -> None:
        """Check no more, and commit how far the queues are done. When no calls arrive any more; before the store."""
        if not self._running:
            return
        self._running = False
        self._decisions.carry_out_all()
        self._checks.close()
        try:
            self._halves.close()
        except StoreError as error:  # The next start reads more.
            logger.error("progress of transactions not saved reason=%s", error.message)

    def check_room(self, count: int) -> None:
        """Raise Overloaded unless COUNT half messages may be stored in this turn of the loop."""
        limit = self._config.transactions_open_max
        there = len(self._halves.open) + self._halves.unread + self._expected
        if there + count > limit:
            raise Overloaded(
                f"{there} half messages have no outcome, the limit is {limit}: commit or roll back some,"
                " or raise broker.transactions_open_max",
                field="transactions_open_max",
                limit=limit,
                value=there,
            )
        if not self._expected:
            asyncio.get_running_loop().call_soon(self._expect_none)
        self._expected += count

    def _came(self, half: OpenHalf) -> None:
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

    # --- what is asked

    def end(self, request: pb.EndTransactionRequest, call: Call) -> pb.EndTransactionReply | Later:
        """Take the outcome of a transaction; it is answered when it is safe."""
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
        """Refuse a place that is not one of this transaction's half messages; 0 names none."""
        at = request.half_log_offset
        if at in (0, half.log_offset) or self._outcomes.is_half_of(at, request.transaction_id):
            return
        raise InvalidArgument(
            f"half_log_offset is {at}: the half message of transaction {request.transaction_id!r} lies at"
            f" {half.log_offset}; leave it out, or take it from the receipt",
            field="half_log_offset",
            value=at,
        )

    def _check_immunity(self, request: pb.EndTransactionRequest, half: OpenHalf) -> None:
        if half.immunity_ms < 0 or request.from_check:
            return
        limit_ms = max(half.immunity_ms, self._config.transaction_timeout_ms)
        since_ms = self._now_ms() - half.stored_ms
        if half.times or since_ms > limit_ms:
            raise TooLate(
                f"transaction {request.transaction_id!r} had {limit_ms} ms of its own for an outcome"
                " (CHECK_IMMUNITY_TIME_IN_SECONDS), which are over: answer the next check",
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

        in_turns(self._find(request), found, call.fail)

    def _find(self, request: pb.EndTransactionRequest) -> Generator[None, None, Outcome]:
        """Return, in turns, what became of the transaction; raise TransactionNotFound."""
        outcome = yield from self._outcomes.find(request.group, request.transaction_id)
        if outcome is not None:
            return outcome
        self._store.check_readable()
        if (yield from self._outcomes.is_known(request.transaction_id)):
            raise TransactionNotFound(
                f"transaction {request.transaction_id!r} is not one of group {request.group!r}: another group sent its"
                " half message, and may end it",
                field="group",
                value=request.group,
            )
        raise TransactionNotFound(
            f"no half message of transaction {request.transaction_id!r} and group {request.group!r} is here: check the"
            " id, and that this is the broker that took the message",
            field="transaction_id",
            value=request.transaction_id,
        )


def _check_fields(request: pb.EndTransactionRequest) -> None:
    for field in ("group", "topic", "transaction_id"):
        if not getattr(request, field):
            raise InvalidArgument(
                f"{field} is empty: name the transaction by group, topic and transaction id, as its half message has"
                " them",
                field=field,
            )
    if request.resolution not in _RESOLUTIONS:
        raise InvalidArgument(
            f"resolution is {int(request.resolution)}: use COMMIT (1), ROLLBACK (2), or none (0)",
            field="resolution",
            limit=pb.ROLLBACK,
            value=int(request.resolution),
        )


def _check_topic(request: pb.EndTransactionRequest, topic: str) -> None:
    if request.topic != topic:
        raise InvalidArgument(
            f"topic is {request.topic!r}, but transaction {request.transaction_id!r} is about a message for {topic!r}",
            field="topic",
            value=request.topic,
        )
