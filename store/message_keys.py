"""The keys of a record in the index.

A record has these keys, in this order: `topic#UNIQ_KEY`, `topic#word` for each word of KEYS (between single spaces,
empty ones are ignored), and `topic#T#TAGS`. Only their hashes are computed: the Java hash of the part with the topic,
continued over the bytes of the value in the record. Source: IndexService of Apache RocketMQ 5.5.0; store-format.md
sections 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import CELLS_MAX, hash_ranges, hash_rows, left_aligned, split
from ..proto.java_hash import java_hash
from ..proto.property_ranges import PropertyRanges
from ..proto.record import Buffer
from ..proto.record_run import Longs, RunColumns, as_bytes
from ..proto.run import UniformRecords
from ..proto.scanned import key_seeds

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]

_SPACE: Final = 0x20


def key_hashes(hashes: Ints) -> Ints:
    """Return the stored form of Java HASHES: their absolute value, 0 for the one that has none."""
    positive: Ints = np.maximum(np.abs(hashes), 0)
    return positive


class MessageKeys:
    """Keys of records: their hashes, and the row of the record that each belongs to, in order of rows."""

    def __init__(self, hashes: Ints, rows: NDArray[np.intp]) -> None:
        self.hashes = hashes
        self.rows = rows

    def one_each(self, count: int) -> bool:
        """Does each of COUNT records have exactly one key?"""
        return len(self.rows) == count and bool((self.rows[1:] > self.rows[:-1]).all())


def keys_of(
    data: Buffer | Bytes,
    columns: RunColumns,
    topic: str | None,
    properties: PropertyRanges | None,
) -> MessageKeys:
    """Return the keys of all records, in the order in which RocketMQ enters them."""
    array = as_bytes(data)
    properties = PropertyRanges(array, columns) if properties is None else properties
    plain: int | Ints
    tagged: int | Ints
    if topic is None:
        topics = hash_ranges(array, columns.topic_start, columns.topic_size)
        plain, tagged = _continued(topics, "#"), _continued(topics, "#T#")
    else:
        plain, tagged = java_hash(f"{topic}#"), java_hash(f"{topic}#T#")
    kinds = [
        make(array, *properties.find(name), seed)
        for name, make, seed in (
            ("UNIQ_KEY", _single, plain),
            ("KEYS", _words, plain),
            ("TAGS", _single, tagged),
        )
        if properties.has(name)
    ]
    kinds = [kind for kind in kinds if len(kind.rows)]
    return _in_order(kinds, len(columns))


def keys_of_few(values: Sequence[Mapping[bytes, bytes]], topic: str) -> list[tuple[int, int]]:
    """Return hash and row of each key of records of TOPIC with the properties VALUES; as `keys_of` does."""
    plain, tagged = key_seeds(topic)
    keys: list[tuple[int, int]] = []
    for row, properties in enumerate(values):
        words = [properties.get(b"UNIQ_KEY", b""), *properties.get(b"KEYS", b"").split(b" ")]
        keys += [(_key_hash(word, plain), row) for word in words if word]
        if tags := properties.get(b"TAGS"):
            keys.append((_key_hash(tags, tagged), row))
    return keys


def keys_of_alike(alike: UniformRecords, topic: str) -> MessageKeys:
    """Return the keys of the uniform records ALIKE of TOPIC; as `keys_of` does."""
    plain, tagged = key_seeds(topic)
    kinds: list[int | Ints] = [
        key_hashes(hash_rows(alike.own[name], plain))
        for name in (b"UNIQ_KEY", b"KEYS")
        if name in alike.own
    ]
    if tags := alike.second.get(b"TAGS"):
        kinds.append(_key_hash(tags, tagged))
    of_first = keys_of_few([alike.first], topic)
    count, own = len(of_first), len(kinds)
    others = len(alike.sizes) - 1
    hashes = np.empty(count + others * own, np.int32)
    hashes[:count] = [key_hash for key_hash, _ in of_first]
    rows = np.zeros(len(hashes), np.intp)
    if own:
        merged = hashes[count:].reshape(others, own)
        for place, kind in enumerate(kinds):
            merged[:, place] = kind
        rows[count:].reshape(others, own)[:] = np.arange(1, others + 1)[:, None]
    return MessageKeys(hashes, rows)


def _key_hash(value: bytes, seed: int) -> int:
    found = abs(java_hash(value.decode("utf-8", "replace"), seed))
    return found if found < 1 << 31 else 0


def has_keys(data: Buffer | Bytes, columns: RunColumns) -> bool:
    """Does any of the records have a key?"""
    return bool(len(keys_of(data, columns, None, None).rows))


def _continued(hashes: Ints, text: str) -> Ints:
    """Return the hash of each prefix followed by TEXT."""
    grown = hashes.view(np.uint32)
    for unit in text.encode("ascii"):
        grown = grown * np.uint32(31) + np.uint32(unit)
    return grown.view(np.int32)


def _single(array: Bytes, starts: Longs, sizes: Longs, seed: int | Ints) -> MessageKeys:
    """Return one key for each record whose range is not empty."""
    (rows,) = (sizes > 0).nonzero()
    if len(rows) < len(sizes):
        starts, sizes = starts[rows], sizes[rows]
        seed = seed[rows] if isinstance(seed, np.ndarray) else seed
    return MessageKeys(key_hashes(hash_ranges(array, starts, sizes, seed=seed)), rows)


def _words(array: Bytes, starts: Longs, sizes: Longs, seed: int | Ints) -> MessageKeys:
    """Return one key for each word of each range."""
    if not _has_space(array, starts, sizes):
        return _single(array, starts, sizes, seed)
    parts = split(array, starts, sizes, _SPACE)
    seeds = seed[parts.rows] if isinstance(seed, np.ndarray) else seed
    hashes = hash_ranges(array, parts.starts, parts.ends - parts.starts, seed=seeds)
    return MessageKeys(key_hashes(hashes), parts.rows)


def _has_space(array: Bytes, starts: Longs, sizes: Longs) -> bool:
    """May one of the ranges contain a space? False is certain."""
    width = int(sizes.max())
    if width * len(sizes) > CELLS_MAX:
        return True
    return bool((left_aligned(array, starts, sizes, width) == _SPACE).any())


def _in_order(kinds: list[MessageKeys], count: int) -> MessageKeys:
    """Merge the KINDS of keys of COUNT records: by record, and for one record in the order of the kinds."""
    if len(kinds) <= 1:
        return kinds[0] if kinds else MessageKeys(np.empty(0, np.int32), np.empty(0, np.int64))
    if all(kind.one_each(count) for kind in kinds):
        merged = np.empty((count, len(kinds)), np.int32)
        for place, kind in enumerate(kinds):
            merged[:, place] = kind.hashes
        return MessageKeys(merged.reshape(-1), np.repeat(kinds[0].rows, len(kinds)))
    rows = np.concatenate([kind.rows for kind in kinds])
    narrow = rows.astype(np.int16) if count <= 1 << 15 else rows  # It is sorted in linear time.
    order = np.argsort(narrow, kind="stable")
    return MessageKeys(np.concatenate([kind.hashes for kind in kinds])[order], rows[order])
