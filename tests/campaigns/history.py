"""The history of a replica set, and whether it may have been: a pure check of what was sent, answered and found.

Clients and whoever looks at the set write down what happened while it was disturbed; at the end, when it has come to
rest, its logs are read. `check` then says what must not have been, each with its rule:

    acknowledged   what acks="replicas" acknowledged is in the log once, at the place that the receipt names
    once           nothing is in the log twice, acknowledged or not, and nothing that was not sent
    order          a producer's messages stand in each queue as it sent them
    fetched        what was handed out is in the final log at its place, byte by byte
    skipped        who has read a queue to its end was handed all of it
    equal          up to the confirm offset all replicas have the same files, byte by byte
    offsets        no committed offset is above the log
    epochs         the epochs of the registry, and of each replica, grow; replicas agree where each began
    one master     in each epoch one replica called itself master, the one that the registry has
    set aside      nobody set a store aside: all logs are of one history

Messages are known by numbers; their bytes by digests (`digest_of`). Nothing here waits, reads a file or asks a clock.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, NamedTuple

Rule = Literal[
    "acknowledged", "once", "order", "fetched", "skipped", "equal", "offsets", "epochs", "one master", "set aside",
]  # fmt: skip
#: What is told of one rule.
EXAMPLES_MAX: Final = 5
_DIGEST_BYTES: Final = 8


class Violation(NamedTuple):
    """What must not have been."""

    rule: Rule
    sentence: str


class Sent(NamedTuple):
    """A producer handed over message NUMBER for QUEUE; its own numbers grow in each queue."""

    number: int
    producer: str
    acks: str
    queue: int


class Acknowledged(NamedTuple):
    """The receipt of a message: OFFSET is its place in QUEUE, -1 if the broker dropped a repeat without telling."""

    number: int
    queue: int
    offset: int


class Fetched(NamedTuple):
    """READER was handed messages of QUEUE from offset FIRST on; their digests."""

    reader: str
    queue: int
    first: int
    digests: Sequence[int]


class Committed(NamedTuple):
    """GROUP may go on in QUEUE at OFFSET: a broker said so, or a replica's files do."""

    group: str
    queue: int
    offset: int


class Reign(NamedTuple):
    """REPLICA said that it is master in EPOCH."""

    replica: int
    epoch: int


class Stored(NamedTuple):
    """A record of the final log; NUMBER None: its body is none that was made."""

    number: int | None
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFiles:
    """What one replica has on its device in the end.

    END: of its log;  FILES: of each log file, by its name, the digest of what lies below the confirm offset;
    EPOCHS: each with its start;  SET_ASIDE: names of stores that it has put out of the way.
    """

    replica: int
    end: int
    files: Mapping[str, str]
    epochs: Sequence[tuple[int, int]]
    set_aside: Sequence[str] = ()


@dataclass(slots=True)
class History:
    """What happened, in the order in which it was heard of."""

    sent: dict[int, Sent] = field(default_factory=dict)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    fetched: list[Fetched] = field(default_factory=list)
    #: Readers that say of a queue that they have read it to its end.
    finished: set[tuple[str, int]] = field(default_factory=set)
    committed: list[Committed] = field(default_factory=list)
    #: What replicas said of themselves.
    reigns: list[Reign] = field(default_factory=list)
    #: What the registry said, in its order.
    cells: list[Reign] = field(default_factory=list)
    #: The end: up to where the log is confirmed, its queues from offset 0 on, and the files of each replica.
    confirm: int = 0
    queues: dict[int, Sequence[Stored]] = field(default_factory=dict)
    replicas: list[ReplicaFiles] = field(default_factory=list)

    def acknowledged_with(self, acks: str) -> Iterator[Acknowledged]:
        """Yield the receipts of what was sent with ACKS."""
        return (one for one in self.acknowledged if self.sent[one.number].acks == acks)


def digest_of(data: bytes | memoryview) -> int:
    """Return what stands for the bytes of a record."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest())


def check(history: History) -> list[Violation]:
    """Return what must not have been: at most `EXAMPLES_MAX` of each rule, and how many more there are."""
    rules: Mapping[Rule, Iterable[str]] = {
        "acknowledged": _acknowledged(history),
        "once": _once(history),
        "order": _order(history),
        "fetched": _fetched(history),
        "skipped": _skipped(history),
        "equal": _equal(history),
        "offsets": _offsets(history),
        "epochs": _epochs(history),
        "one master": _one_master(history),
        "set aside": _set_aside(history),
    }
    found: list[Violation] = []
    for rule, sentences in rules.items():
        told = list(sentences)
        found += [Violation(rule, sentence) for sentence in told[:EXAMPLES_MAX]]
        if (more := len(told) - EXAMPLES_MAX) > 0:
            found.append(Violation(rule, f"and {more} more"))
    return found


# ---------------------------------------------------------------- messages


def _places(history: History) -> Mapping[int, list[tuple[int, int]]]:
    """Return where each number is in the log, as (queue, offset)."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for queue, rows in history.queues.items():
        for offset, row in enumerate(rows):
            if row.number is not None:
                places[row.number].append((queue, offset))
    return places


def _acknowledged(history: History) -> Iterator[str]:
    places = _places(history)
    for one in history.acknowledged_with("replicas"):
        if not (found := places.get(one.number)):
            yield (
                f"message {one.number} was acknowledged at offset {one.offset} of queue {one.queue}, and is nowhere"
            )
        elif one.offset >= 0 and (one.queue, one.offset) not in found:
            yield (
                f"message {one.number} was acknowledged at offset {one.offset} of queue {one.queue}, and is at {found}"
            )


def _once(history: History) -> Iterator[str]:
    for number, places in _places(history).items():
        if number not in history.sent:
            yield f"message {number} was never sent, and is at {places}"
        elif len(places) > 1:
            yield f"message {number} is in the log {len(places)} times: {places}"
    for queue, rows in history.queues.items():
        for offset, row in enumerate(rows):
            if row.number is None:
                yield f"what is at offset {offset} of queue {queue} was never sent: its body is damaged"


def _order(history: History) -> Iterator[str]:
    for queue, rows in history.queues.items():
        latest: dict[str, int] = {}
        for offset, row in enumerate(rows):
            if row.number is None or row.number not in history.sent:
                continue
            sent = history.sent[row.number]
            if sent.queue != queue:
                yield f"message {row.number} was sent to queue {sent.queue}, and is in queue {queue}"
            before = latest.get(sent.producer, -1)
            if row.number < before:
                yield (
                    f"queue {queue} has {sent.producer}'s message {row.number} at {offset}, behind {before}"
                )
            latest[sent.producer] = max(before, row.number)


def _fetched(history: History) -> Iterator[str]:
    for reader, queue, first, digests in history.fetched:
        rows = history.queues.get(queue, ())
        for offset, digest in enumerate(digests, first):
            if offset >= len(rows):
                yield (
                    f"{reader} was handed offset {offset} of queue {queue}, which ends at {len(rows)}"
                )
            elif rows[offset].digest != digest:
                yield f"{reader} was handed other bytes at offset {offset} of queue {queue}"


def _skipped(history: History) -> Iterator[str]:
    handed: dict[tuple[str, int], set[int]] = defaultdict(set)
    for reader, queue, first, digests in history.fetched:
        handed[reader, queue].update(range(first, first + len(digests)))
    for reader, queue in sorted(history.finished):
        missing = sorted(
            set(range(len(history.queues.get(queue, ())))) - handed.get((reader, queue), set())
        )
        if missing:
            yield (
                f"{reader} has read queue {queue} to its end, and was never handed {len(missing)} offsets,"
                f" {missing[0]} the first"
            )


def _offsets(history: History) -> Iterator[str]:
    for group, queue, offset in history.committed:
        if offset > (end := len(history.queues.get(queue, ()))):
            yield f"group {group} has committed {offset} of queue {queue}, which ends at {end}"


# ---------------------------------------------------------------- replicas


def _equal(history: History) -> Iterator[str]:
    for one in history.replicas:
        if one.end < history.confirm:
            yield f"the log of replica {one.replica} ends at {one.end}, and {history.confirm} is confirmed"
    for one, other in pairwise(history.replicas):
        for name in sorted(one.files.keys() | other.files.keys()):
            if one.files.get(name) != other.files.get(name):
                yield (
                    f"log file {name} of replicas {one.replica} and {other.replica} differs below {history.confirm}"
                )


def _epochs(history: History) -> Iterator[str]:
    for before, after in pairwise(history.cells):
        if after.epoch < before.epoch:
            yield f"the registry's epoch fell from {before.epoch} to {after.epoch}"
    starts: dict[int, tuple[int, int]] = {}
    for one in history.replicas:
        for (before_epoch, before_start), (epoch, start) in pairwise(one.epochs):
            if epoch <= before_epoch or start <= before_start:
                yield (
                    f"replica {one.replica} has epoch {epoch} from {start} behind {before_epoch} from {before_start}"
                )
        for epoch, start in one.epochs:
            where, who = starts.setdefault(epoch, (start, one.replica))
            if where != start:
                yield (
                    f"epoch {epoch} began at {where} for replica {who}, and at {start} for {one.replica}"
                )
        newest = max((cell.epoch for cell in history.cells), default=0)
        if one.epochs and one.epochs[-1][0] > newest:
            yield f"replica {one.replica} has epoch {one.epochs[-1][0]}, and the registry {newest}"


def _one_master(history: History) -> Iterator[str]:
    masters: dict[int, set[int]] = defaultdict(set)
    for replica, epoch in (*history.cells, *history.reigns):
        if replica:
            masters[epoch].add(replica)
    for epoch, replicas in sorted(masters.items()):
        if len(replicas) > 1:
            yield f"epoch {epoch} had the masters {sorted(replicas)}"


def _set_aside(history: History) -> Iterator[str]:
    for one in history.replicas:
        for name in one.set_aside:
            yield f"replica {one.replica} has set {name} aside"


def tally(history: History) -> dict[str, int]:
    """Return how much there was to check: a history in which nothing happened proves nothing."""
    acks = Counter(history.sent[one.number].acks for one in history.acknowledged)
    return {
        "sent": len(history.sent),
        **{f"acknowledged_{name}": count for name, count in sorted(acks.items())},
        "stored": sum(map(len, history.queues.values())),
        "fetched": sum(len(one.digests) for one in history.fetched),
        "committed": len(history.committed),
        "epochs": max((one.epoch for one in history.cells), default=0),
        "log_bytes": history.confirm,
    }
