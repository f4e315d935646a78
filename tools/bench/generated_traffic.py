"""Small records over many queues, each field computed from the record's number.

Record i is number i // Q of queue i mod Q, counted over all topics. It has one of eight tags, one key (`K` and ten
digits of i), and a body of 16 to 47 bytes. Sizes repeat only after 1,000 records, so no reader profits from equal
sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.properties import KEYS, TAGS
from ...proto.record import Host, Record, encode_record
from ...store.format.log import BLANK_SIZE

Longs = NDArray[np.int64]

TAGS_OF_RECORDS: Final = tuple(f"Tag{letter}" for letter in "ABCDEFGH")
KEY_DIGITS: Final = 10
TOPIC_PREFIX: Final = "Bench"
TOPIC_DIGITS: Final = 3
_BODY_LEAST: Final = 16
_KINDS: Final = 32
_PERIOD: Final = 1_000
_HOST: Final = Host.parse("127.0.0.1", 10911)
_FIRST_MS: Final = 1_760_000_000_000
_RECORDS_A_MS: Final = 50


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """COUNT records over TOPICS topics of QUEUES queues each, in log files of LOG_FILE_BYTES."""

    count: int
    topics: int = 1
    queues: int = 4
    log_file_bytes: int = 64 << 20

    @property
    def queue_count(self) -> int:
        """How many queues there are in all."""
        return self.topics * self.queues

    def topic(self, number: int) -> str:
        """Return the name of topic NUMBER."""
        return f"{TOPIC_PREFIX}{number:0{TOPIC_DIGITS}d}"

    @cached_property
    def kinds(self) -> NDArray[np.int8]:
        """Which template each record is made from: its tag and the size of its body follow from that."""
        period = (np.arange(_PERIOD, dtype=np.int64) * 2_654_435_761 >> 7) % _KINDS
        return np.resize(period.astype(np.int8), self.count)

    @cached_property
    def sizes(self) -> Longs:
        """The size of each record."""
        by_kind = np.array([len(template.record) for template in templates()], np.int64)
        sizes: Longs = by_kind[self.kinds]
        return sizes

    @cached_property
    def starts(self) -> Longs:
        """The log offset of each record."""
        ends = np.cumsum(self.sizes)
        starts = ends - self.sizes
        first, moved = 0, 0
        while first < self.count:
            # MOVED is how far the records from FIRST on are pushed back by the blanks before them.
            file_end = (int(starts[first]) + moved) // self.log_file_bytes * self.log_file_bytes
            room = file_end + self.log_file_bytes - BLANK_SIZE - moved
            behind = int(np.searchsorted(ends, room, side="right"))
            starts[first:behind] += moved
            if behind < self.count:
                moved = file_end + self.log_file_bytes - int(ends[behind] - self.sizes[behind])
            first = behind
        return starts

    @property
    def log_end(self) -> int:
        """Where the log ends."""
        return int(self.starts[-1] + self.sizes[-1])

    def store_ms(self, records: Longs) -> Longs:
        """Return when RECORDS were stored."""
        return _FIRST_MS + records // _RECORDS_A_MS

    def digits(self, records: Longs) -> NDArray[np.uint8]:
        """Return the digits of the keys of RECORDS, a row each."""
        return _digits(records, KEY_DIGITS)

    def topic_digits(self, records: Longs) -> NDArray[np.uint8]:
        """Return the digits of the topics of RECORDS, a row each."""
        return _digits(records % self.queue_count // self.queues, TOPIC_DIGITS)


@dataclass(frozen=True, slots=True)
class Template:
    """A record, and the positions of the digits of topic and key in it."""

    record: bytes
    tag: str
    topic_digits_at: int
    key_digits_at: int


def templates() -> list[Template]:
    """Return the records of each kind, with zeros for what differs within a kind."""
    found = []
    for kind in range(_KINDS):
        tag = TAGS_OF_RECORDS[kind % len(TAGS_OF_RECORDS)]
        size = _BODY_LEAST + kind
        key = "K" + "0" * KEY_DIGITS
        record = encode_record(
            Record(
                topic=TOPIC_PREFIX + "0" * TOPIC_DIGITS,
                body=bytes(33 + (kind + 7 * at) % 90 for at in range(size)),
                born_host=_HOST,
                store_host=_HOST,
                properties={TAGS: tag, KEYS: key},
            )
        )
        topic_at = record.rindex(TOPIC_PREFIX.encode()) + len(TOPIC_PREFIX)
        found.append(Template(record, tag, topic_at, record.rindex(key.encode()) + 1))
    return found


def _digits(numbers: Longs, width: int) -> NDArray[np.uint8]:
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    cells: NDArray[np.uint8] = (numbers[:, None] // powers % 10 + 48).astype(np.uint8)
    return cells
