"""The stores that benchmarks read: small records over many queues, each field computed from the record's number.

    queues     10 M entries in four queues of nine files each; of the log only the last file holds its records
    messages   1 M records of 157 B in three log files, four queues
    lag        the same over 10,000 queues, with three groups at different offsets in each

All were stopped cleanly. Log files without records read as zeros; readers of queues do not read them, and recovery
begins at the last file. Record i is number i // Q of queue i mod Q, counted over all topics. It has one of eight tags,
one key (`K` and ten digits of i), and a body of 16 to 47 bytes. Sizes repeat only after 1,000 records, so no reader
profits from equal sizes. As in a broker, a record that would leave less than 8 bytes begins the next file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.java_hash import java_hash
from ...proto.properties import KEYS, TAGS
from ...proto.record import (
    LOG_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    Host,
    Record,
    encode_record,
)
from ...store.checkpoints import CHECKPOINT_SIZE, Checkpoint
from ...store.files import file_name
from ...store.format.log import BLANK_SIZE, blank
from ...store.format.queues import ENTRY
from ...store.format.state_tables import (
    ConsumerOffsets,
    TopicConfig,
    TopicTable,
    render_consumer_offsets,
    render_topics,
)

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
    """A record, and where in it the digits of topic and key stand."""

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


# ---------------------------------------------------------------- the stores that benches read


#: Apache's size.
QUEUE_FILE_BYTES: Final = 6_000_000

QUEUES: Final = Traffic(count=10_000_000)
MESSAGES: Final = Traffic(count=1_000_000)
LAG: Final = Traffic(count=1_000_000, topics=100, queues=100)
GROUPS: Final = 3


def queue_store(root: Path, traffic: Traffic = QUEUES) -> Path:
    """Write into ROOT a store for scans of queues; return ROOT."""
    return _write(root, traffic, log_files=1)


def message_store(root: Path, traffic: Traffic = MESSAGES) -> Path:
    """Write into ROOT a store for scans of messages; return ROOT."""
    return _write(root, traffic)


def lag_store(root: Path, traffic: Traffic = LAG) -> Path:
    """Write into ROOT a store with many queues and groups; return ROOT."""
    return _write(root, traffic)


def _write(root: Path, traffic: Traffic, *, log_files: int | None = None) -> Path:
    write_log(root / "commitlog", traffic, files_written=log_files)
    write_queues(root / "consumequeue", traffic, file_bytes=QUEUE_FILE_BYTES)
    write_tables(root, traffic, groups=GROUPS)
    return root


Bytes = NDArray[np.uint8]

_BORN_AT: Final = 40


def write_log(folder: Path, traffic: Traffic, *, files_written: int | None = None) -> None:
    """Write the commit log of TRAFFIC; with FILES_WRITTEN only the last so many files, and the others as holes."""
    folder.mkdir(parents=True)
    size = traffic.log_file_bytes
    count = -(-traffic.log_end // size)
    for number in range(count):
        path = folder / file_name(number * size)
        with path.open("wb") as file:
            if files_written is None or number >= count - files_written:
                file.write(_log_file(traffic, number * size).data)
            file.truncate(size)


def _log_file(traffic: Traffic, base: int) -> Bytes:
    """Return the log file that begins at offset BASE, up to its last record or through its blank."""
    size = traffic.log_file_bytes
    first, behind = np.searchsorted(traffic.starts, (base, base + size)).tolist()
    records = np.arange(first, behind, dtype=np.int64)
    end = int(traffic.starts[behind - 1] + traffic.sizes[behind - 1]) - base
    data = np.zeros(size if behind < traffic.count else end, np.uint8)
    kinds = traffic.kinds[first:behind]
    for kind, template in enumerate(templates()):
        _put(data, base, traffic, records[kinds == kind], template)
    if behind < traffic.count:
        data[end : end + BLANK_SIZE] = bytearray(blank(size - end))
    return data


def _put(data: Bytes, base: int, traffic: Traffic, records: Longs, template: Template) -> None:
    """Write RECORDS, all made from TEMPLATE, into DATA, which is the log from offset BASE on."""
    if not len(records):
        return
    log_offsets = traffic.starts[records]
    at = log_offsets - base
    _at_each(data, f"V{len(template.record)}")[at] = np.void(template.record)
    longs, ints = _at_each(data, ">i8"), _at_each(data, ">i4")
    ints[at + QUEUE_ID_AT] = records % traffic.queue_count % traffic.queues
    longs[at + QUEUE_OFFSET_AT] = records // traffic.queue_count
    longs[at + LOG_OFFSET_AT] = log_offsets
    longs[at + _BORN_AT] = longs[at + STORE_TIMESTAMP_AT] = traffic.store_ms(records)
    for place, digits in (
        (template.topic_digits_at, traffic.topic_digits(records)),
        (template.key_digits_at, traffic.digits(records)),
    ):
        _at_each(data, f"V{digits.shape[1]}")[at + place] = digits.view(f"V{digits.shape[1]}")[:, 0]


def _at_each(data: Bytes, kind: str) -> NDArray[np.generic]:
    """Return the values of KIND that stand at every byte of DATA, to be written as well."""
    return np.ndarray((len(data) - np.dtype(kind).itemsize + 1,), kind, data, strides=(1,))


def write_queues(folder: Path, traffic: Traffic, *, file_bytes: int) -> None:
    """Write the consume queues of TRAFFIC in files of FILE_BYTES."""
    tags_codes = np.array([java_hash(template.tag) for template in templates()], np.int64)
    entries = ENTRY.zeros(traffic.count)
    entries["log_offset"] = traffic.starts
    entries["size"] = traffic.sizes
    entries["tags_code"] = tags_codes[traffic.kinds]
    for number in range(traffic.queue_count):
        topic, queue = divmod(number, traffic.queues)
        own = entries[number :: traffic.queue_count].tobytes()
        place = folder / traffic.topic(topic) / str(queue)
        place.mkdir(parents=True)
        for at in range(0, len(own), file_bytes):
            with (place / file_name(at)).open("wb") as file:
                file.write(own[at : at + file_bytes])
                file.truncate(file_bytes)


def write_tables(root: Path, traffic: Traffic, *, groups: int) -> None:
    """Write topics, the offsets of GROUPS groups in all queues, and the checkpoint of a clean stop.

    Group g has read all but g sevenths of each queue.
    """
    folder = root / "config"
    folder.mkdir()
    topics = [traffic.topic(number) for number in range(traffic.topics)]
    configs = {
        name: TopicConfig(name=name, read_queues=traffic.queues, write_queues=traffic.queues)
        for name in topics
    }
    (folder / "topics.json").write_text(render_topics(TopicTable(topics=configs)))
    offsets = {
        f"{name}@group-{group}": _committed(traffic, number, group)
        for number, name in enumerate(topics)
        for group in range(groups)
    }
    text = render_consumer_offsets(ConsumerOffsets(offsets=offsets))
    (folder / "consumerOffset.json").write_text(text)
    last_ms = int(traffic.store_ms(np.array([traffic.count - 1], np.int64))[0])
    last = int(traffic.starts[-1])
    checkpoint = Checkpoint(last_ms, last_ms, last_ms, 0, last, last)
    (root / "checkpoint").write_bytes(checkpoint.pack().ljust(CHECKPOINT_SIZE, b"\0"))


def _committed(traffic: Traffic, topic: int, group: int) -> dict[int, int]:
    """Return what GROUP has committed in the queues of TOPIC."""
    found = {}
    for queue in range(traffic.queues):
        number = topic * traffic.queues + queue
        count = -(-(traffic.count - number) // traffic.queue_count)
        found[queue] = count - count * group // 7
    return found
