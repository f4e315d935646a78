"""The choice by latency: fast brokers get more, one that fails or lags is left alone for a while, and none is starved.

Among the brokers that do well, shares go by latency: one that is up to twice as slow as the fastest (below 10 ms: any)
gets a full share, slower ones less in proportion, but never under 1/16. Within a broker the queues go round.

A broker is *left alone* when a request fails on its way or there (a retriable error), or takes LAG_MS or more:

    latency of one request, at least (ms)   550     1,800   3,000   5,000   15,000
    left alone for (ms)                     2,000   5,000   6,000   10,000  30,000

Failures in a row climb the second line from its start. After that time one run goes there as a *probe*, and no other
before its result or the next time is over: a result below LAG_MS brings the broker back with a full share, another one
leaves it alone again. Where all brokers are left alone, all are used, as if none were. (Apache's latency fault
tolerance has such a table; it knows neither shares nor probes by single runs.)

Not thread-safe: the producer's event loop owns it. It keeps a few numbers for each broker and topic that it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...proto.clock import Clock, SystemClock
from ...proto.errors import PocketMQError
from ..message import Message
from ..queue import Queue

#: A request that takes this long lags, whatever the others do.
LAG_MS: Final = 550
_LAGS_MS: Final = (LAG_MS, 1_800, 3_000, 5_000, 15_000)
_SPANS_MS: Final = (2_000, 5_000, 6_000, 10_000, 30_000)
LEAST_SHARE: Final = 1 / 16
#: Differences below this are noise.
_FLOOR_MS: Final = 5.0
#: What the newest request weighs in the mean.
_NEWEST: Final = 0.25


@dataclass(slots=True)
class _Broker:
    """What is known of one broker."""

    #: The mean of its last requests; 0: none yet.
    latency_ms: float = 0.0
    failures: int = 0
    #: When it is probed next; None: it does well.
    probe_at_ms: int | None = None
    span_ms: int = 0
    #: A probe is out.
    probing: bool = False

    def leave_alone(self, now_ms: int, span_ms: int, *, probing: bool = False) -> None:
        self.probing = probing
        self.span_ms = span_ms
        self.probe_at_ms = now_ms + span_ms


@dataclass(slots=True)
class _Round:
    """Where the turn is in one topic."""

    queues: Sequence[Queue]
    by_broker: dict[str, list[Queue]]
    turns: dict[str, int] = field(default_factory=dict)
    credit: dict[str, float] = field(default_factory=dict)

    def next_of(self, broker: str) -> Queue:
        turn = self.turns.get(broker, -1) + 1
        self.turns[broker] = turn
        row = self.by_broker[broker]
        return row[turn % len(row)]


class LeastLatency:
    """Prefers fast brokers: see above."""

    for_a_run = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._brokers: dict[str, _Broker] = {}
        self._rounds: dict[str, _Round] = {}

    def choose(self, message: Message, queues: Sequence[Queue]) -> Queue:
        turn = self._rounds.get(message.topic)
        if turn is None or turn.queues is not queues:
            turn = self._rounds[message.topic] = _Round(queues, _grouped(queues))
        broker = self._to_probe(turn) or self._next_broker(turn)
        return turn.next_of(broker)

    def on_result(self, queue: Queue, latency_ms: float, error: PocketMQError | None) -> None:
        """Learn that a request to QUEUE took LATENCY_MS and ended with ERROR, or well.

        An error that is not the broker's fault, like a topic that is not there, says nothing of it.
        """
        broker = self._brokers.setdefault(queue.broker, _Broker())
        now_ms = self._clock.now_ms()
        if error is not None:
            # What left before the first failure and fails now as well says nothing new.
            if error.retriable and (broker.probe_at_ms is None or broker.probing):
                broker.leave_alone(now_ms, _SPANS_MS[min(broker.failures, len(_SPANS_MS) - 1)])
                broker.failures += 1
            return
        span_ms = _span_ms(latency_ms)
        if span_ms:
            broker.latency_ms = latency_ms
            broker.leave_alone(now_ms, span_ms)
            return
        if broker.probe_at_ms is not None or not broker.latency_ms:
            broker.latency_ms = latency_ms
        else:
            broker.latency_ms += _NEWEST * (latency_ms - broker.latency_ms)
        broker.failures = 0
        broker.probe_at_ms = None
        broker.probing = False

    def _to_probe(self, turn: _Round) -> str | None:
        """Return a broker whose time to be left alone is over; it is left alone again until the result."""
        now_ms = self._clock.now_ms()
        for name in turn.by_broker:
            broker = self._brokers.get(name)
            probe_at_ms = None if broker is None else broker.probe_at_ms
            if broker is not None and probe_at_ms is not None and now_ms >= probe_at_ms:
                broker.leave_alone(now_ms, broker.span_ms, probing=True)
                return name
        return None

    def _next_broker(self, turn: _Round) -> str:
        """Return the next broker such that each gets its share, evenly spread (smooth weighted round robin)."""
        names = [name for name in turn.by_broker if not self._is_left_alone(name)]
        names = names or list(turn.by_broker)
        if len(names) == 1:
            return names[0]
        shares = self._shares(names)
        credit = turn.credit
        for name, share in zip(names, shares, strict=True):
            credit[name] = credit.get(name, 0.0) + share
        chosen = max(names, key=credit.__getitem__)
        credit[chosen] -= sum(shares)
        return chosen

    def _is_left_alone(self, name: str) -> bool:
        broker = self._brokers.get(name)
        return broker is not None and broker.probe_at_ms is not None

    def _shares(self, names: Sequence[str]) -> list[float]:
        known = [self._brokers[name].latency_ms if name in self._brokers else 0.0 for name in names]
        fastest = max(min((ms for ms in known if ms), default=_FLOOR_MS), _FLOOR_MS)
        return [max(LEAST_SHARE, min(1.0, 2 * fastest / ms)) if ms else 1.0 for ms in known]


def _span_ms(latency_ms: float) -> int:
    """Return for how long a broker that took LATENCY_MS is left alone; 0: not at all."""
    for lag_ms, span_ms in zip(reversed(_LAGS_MS), reversed(_SPANS_MS), strict=True):
        if latency_ms >= lag_ms:
            return span_ms
    return 0


def _grouped(queues: Sequence[Queue]) -> dict[str, list[Queue]]:
    by_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker, []).append(queue)
    return by_broker
