"""The stores that benchmarks read, with the records of generated_traffic.py.

    queues     10 M entries in four queues of nine files each; of the log only the last file holds its records
    messages   1 M records of 157 B in three log files, four queues
    lag        the same over 10,000 queues, with three groups at different offsets in each

All were stopped cleanly. Log files without records read as zeros; readers of queues do not read them, and recovery
begins at the last file. As in a broker, a record that would leave less than 8 bytes begins the next file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...proto.java_hash import java_hash
from ...proto.record import LOG_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, STORE_TIMESTAMP_AT
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
from .generated_traffic import Longs, Template, Traffic, templates

#: RocketMQ's size.
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
    """Return the values of KIND that are at every byte of DATA, to be written as well."""
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
