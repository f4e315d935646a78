"""The results of recent transactions: committed, rolled back, or given up. Memory: 5 MB."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import PRODUCER_GROUP, REAL_TOPIC, UNIQ_KEY
from ...proto.record import SYS_COMMIT, SYS_TRANSACTION, Record, decode_or_none
from ...proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from ...store.message_store import MessageStore
from .open_halves import Key

RECENT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a transaction for TOPIC, and the place of its message if it was committed (else offsets are −1)."""

    committed: bool
    topic: str
    queue: int = 0
    queue_offset: int = -1
    log_offset: int = -1
    store_ms: int = 0
    #: No producer resolved it: the limit of checks or of its age was reached.
    given_up: bool = False

    @classmethod
    def committed_as(cls, copy: Record) -> Outcome:
        """Return the result of the transaction with the committed message COPY."""
        at = copy.queue_id, copy.queue_offset, copy.log_offset, copy.store_timestamp_ms
        return cls(True, copy.topic, *at)

    @property
    def name(self) -> str:
        if self.given_up:
            return "given up"
        return "committed" if self.committed else "rolled back"

    def reply(self, *, repeated: bool) -> pb.EndTransactionReply:
        """Return the reply to a request with this result."""
        return pb.EndTransactionReply(
            topic=self.topic,
            queue=self.queue,
            queue_offset=self.queue_offset,
            log_offset=self.log_offset,
            store_timestamp_ms=self.store_ms,
            repeated=repeated,
        )


class Outcomes:
    """Results of transactions in STORE. The event loop owns it.

    The latest `RECENT_MAX` are in memory. Older ones are found with the store's index (100 µs), as long as it has them:
    a committed copy, a half message that was given up, or only a half message, which was then rolled back.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._recent: OrderedDict[Key, Outcome] = OrderedDict()

    def remember(self, key: Key, outcome: Outcome) -> None:
        self._recent[key] = outcome
        self._recent.move_to_end(key)
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def find(self, group: str, transaction_id: str) -> Generator[None, None, Outcome | None]:
        """Find, in steps, the result of a transaction of GROUP that is not open; None: there was none."""
        recent = self._recent.get((group, transaction_id))
        if recent is not None:
            return recent
        for half in self._records(HALF_TOPIC, transaction_id):
            if half is None:
                yield
            elif _is_of(half, group):
                topic = half.properties.get(REAL_TOPIC, "")
                outcome = yield from self.durable(group, transaction_id, topic)
                return outcome or Outcome(False, topic)
        return None

    def durable(
        self, group: str, transaction_id: str, topic: str
    ) -> Generator[None, None, Outcome | None]:
        """Find, in steps, the result that the log has of a transaction for TOPIC: committed, or given up."""
        for copy in self._records(topic, transaction_id):
            if copy is None:
                yield
            elif copy.sys_flag & SYS_TRANSACTION == SYS_COMMIT and _is_of(copy, group):
                return Outcome.committed_as(copy)
        for copy in self._records(CHECK_MAX_TIME_TOPIC, transaction_id):
            if copy is None:
                yield
            elif _is_of(copy, group):
                return Outcome(False, topic, given_up=True)
        return None

    def is_known(self, transaction_id: str) -> Generator[None, None, bool]:
        """Find out, in steps, whether any group has, or had, a half message of this id."""
        for half in self._records(HALF_TOPIC, transaction_id):
            if half is not None:
                return True
            yield
        return False

    def is_half_of(self, log_offset: int, transaction_id: str) -> bool:
        """Return whether the half message of this id is at LOG_OFFSET. True if the log no longer reaches there."""
        if 0 <= log_offset < self._store.min_log_offset:
            return True
        data = self._store.read_at(log_offset)
        record = None if data is None else decode_or_none(data)
        return (
            record is not None
            and record.topic == HALF_TOPIC
            and record.properties.get(UNIQ_KEY) == transaction_id
        )

    def _records(self, topic: str, transaction_id: str) -> Iterator[Record | None]:
        """Yield the records of TOPIC with this id, newest first; None after each step."""
        for data in self._store.looked_up(topic, transaction_id):
            record = decode_or_none(data)  # A damaged one proves nothing.
            if data is None:
                yield None
            elif (
                record is not None
                and record.topic == topic
                and record.properties.get(UNIQ_KEY) == transaction_id
            ):
                yield record


def _is_of(record: Record, group: str) -> bool:
    return record.properties.get(PRODUCER_GROUP) == group
