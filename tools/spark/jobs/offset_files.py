"""Committed offsets from consumerOffset.json files for Spark: of stores, of backups, of a whole fleet at once.

Where lmqConsumerOffset.json is newer, which a Java broker with enableLmq writes instead, that file is read.

As for RocketMQ's broker, a file with an entry that cannot be read gives way to its `.bak`. If that is no better, the
entries that can be read count, and a warning names the others. A file without one entry that can be read is an error,
so that it is never taken for "no lag".
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ....proto.errors import CorruptState
from ....store.disk import Disk
from ....store.format.java_json import parse
from ....store.format.state_tables import ConsumerOffsets, parse_consumer_offsets
from ....store.offsets_file import offsets_file
from ...stores.locations import StoreLocation, locate
from .store_tasks import of_each_store

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_NAMES: Final = ("broker", "topic", "queue", "group", "committed_offset")
_COLUMNS: Final = "broker string, topic string, queue int, `group` string, committed_offset bigint"  # fmt: skip


def committed_offsets(
    spark: SparkSession, *stores: str, broker_name: str | None = None
) -> DataFrame:
    """Return broker, topic, queue, group and committed_offset of every offset that STORES hold.

    STORES are as `lag` takes them. A store that never had the file has no rows. The query fails where neither the file
    nor its `.bak` can be read, and says which. Keys without "@" belong to no group and are left out.
    """
    return of_each_store(spark, locate(stores, broker_name=broker_name), rows_of_store, _COLUMNS)


def rows_of_store(location: StoreLocation) -> Iterator[pyarrow.RecordBatch]:
    """Yield the offsets of the store at LOCATION; nothing where it has neither the file nor its backup."""
    import pyarrow

    disk = location.open_disk()
    path = posixpath.join(location.root, "config", offsets_file(disk, location.root))
    table = _table(disk, path, location.url)
    rows = [
        dict(zip(_NAMES, (location.broker_name, topic, queue, group, offset), strict=True))
        for key, queues in table.offsets.items()
        for topic, at, group in (key.partition("@"),)
        if at
        for queue, offset in queues.items()
    ]
    if rows:
        types = (pyarrow.string(), pyarrow.string(), pyarrow.int32(), pyarrow.string(), pyarrow.int64())  # fmt: skip
        schema = pyarrow.schema(list(zip(_NAMES, types, strict=True)))
        yield pyarrow.RecordBatch.from_pylist(rows, schema)


def _table(disk: Disk, path: str, store: str) -> ConsumerOffsets:
    """Return the table in the file PATH of STORE, or in its backup. Raises CorruptState."""
    texts = [disk.read(one) for one in (path, path + ".bak") if disk.exists(one)]
    if not any(texts):
        return ConsumerOffsets()
    tables = [table for table in map(_parsed, filter(None, texts)) if table is not None]
    if not tables:
        raise CorruptState(
            f"{path} and its .bak hold no offsetTable that can be read: repair one of the two",
            path=path,
        )
    table = next((one for one in tables if not one.unread), tables[0])
    for name, entry in table.unread.items():
        logger.warning(
            "table entry left out store=%s reason=%s",
            store,
            f"{path}: the entry {name[:200]!r} is left out: {entry.reason}",
        )
    return table


def _parsed(data: bytes) -> ConsumerOffsets | None:
    """Return the table in DATA; None where there is none, or not one entry that can be read."""
    text = data.decode("utf-8-sig", "replace")
    try:
        table = parse_consumer_offsets(text)
        if table.offsets:
            return table
        document = parse(text)
    except ValueError:
        return None
    has_table = isinstance(document, dict) and isinstance(document.get("offsetTable"), dict)
    return table if has_table and not table.unread else None
