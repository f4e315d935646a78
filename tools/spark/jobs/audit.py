"""A store audit: log, queues and index of a fleet held together, every record's CRC, every file's length and head.

    from pocketmq.tools.spark.jobs.audit import audit
    audit(spark, "/data/broker-*/store").show()        # no rows: nothing is wrong

A row is one kind of fault of one broker, topic and queue: how often, from which to which log offset, and one reason.

    length of a file, missing file, index file, table, bytes behind the end    by names, lengths, heads
    damaged record           bytes of the log that are no sound record, or whose body does not fit its CRC
    entry without record     a queue entry points where no such record is
    record without entry     a record that its queue does not have
    entry of another record  topic, queue, offset or size are not those of the record that the entry points to
    key without index entry  a key that look-ups do not find, though the index goes back that far
    index entry without record

Entries and index entries in front of the log's first file are no fault: their records have expired. In a store that a
broker writes to meanwhile, the newest records may not have their entries yet.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ....proto.byte_ranges import java_hashes
from ....proto.errors import ConfigError, CorruptIndex
from ....proto.record import SYS_INNER_BATCH
from ....store.apache.settings import ApacheSettings
from ....store.checkpoints import CHECKPOINT_SIZE
from ....store.disk import Disk
from ....store.file_sizes import settings_of
from ....store.format.agreement import COMPARED_COLUMNS, SERVED_SQL
from ....store.format.index import index_file_size
from ....store.format.log import is_blank
from ....store.format.queues import LIGHT_PREFIX
from ....store.format.state_tables import parse_consumer_offsets, parse_groups, parse_topics
from ....store.index_check import check_index_file
from ....store.index_file import IndexFile
from ....store.listing import missing_between, queue_folders, row_files, zeros_from
from ....store.log_range import log_end
from ....store.message_keys import key_hashes
from ....store.offsets_file import LMQ_OFFSETS_FILE, OFFSETS_FILE
from ....store.overlay_disk import OverlayDisk
from ...stores.locations import StoreLocation, locate
from .reading import Reading, of_each_store

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

#: Column → type, as Spark names it.
_COLUMNS: Final = {
    "brokerName": "string",
    "fault": "string",
    "topic": "string",
    "queueId": "int",
    "count": "bigint",
    "firstOffset": "bigint",
    "lastOffset": "bigint",
    "why": "string",
}
_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
_RECORDS: Final = (
    "brokerName string, topic string, queueId int, queueOffset bigint, physicalOffset bigint, storeSize int,"
    " sysFlag int, keys string, properties map<string,string>, badRecord string"
)
_ENTRIES: Final = "brokerName string, topic string, queueId int, queueOffset bigint, physicalOffset bigint, size int"
_KEYS: Final = "brokerName string, keyHash int, physicalOffset bigint"


def audit(
    spark: SparkSession, *stores: str, settings: Mapping[str, str] | None = None
) -> DataFrame:
    """Return what is wrong with STORES; no rows where nothing is. Raises ConfigError for two stores of one broker."""
    from pyspark.sql import functions as f

    given = dict(settings or {})
    locations = locate(stores, settings=given)
    _require_different(locations)
    reading = Reading(bad_records="rows", check_crc=True, fail_on_data_loss=False, settings=given)
    messages = reading.dataset(spark, stores, "messages", _RECORDS)
    records = messages.where("badRecord is null")
    begins = _log_begins(spark, locations)
    faults = [
        of_each_store(spark, locations, partial(_file_faults, given), _SCHEMA),
        _summed(
            messages.where("badRecord is not null"), f.lit("damaged record"), f.col("badRecord")
        ),
        _entry_faults(records, _rest(spark, stores, given, "consumequeue", _ENTRIES), begins),
        *_index_faults(records, _rest(spark, stores, given, "index", _KEYS), begins),
    ]
    found = faults[0]
    for more in faults[1:]:
        found = found.unionByName(more)
    return found.orderBy("brokerName", "firstOffset", "fault", "topic", "queueId")


def _require_different(locations: list[StoreLocation]) -> None:
    names = Counter(location.broker_name for location in locations)
    name, count = names.most_common(1)[0]
    if count > 1:
        raise ConfigError(
            f"{count} stores are of broker {name!r}: audit them one after the other",
            field="store",
            value=name,
        )


def _rest(
    spark: SparkSession, stores: tuple[str, ...], given: Mapping[str, str], name: str, columns: str
) -> DataFrame:
    reading = Reading(bad_records="skip", fail_on_data_loss=False, settings=given)
    return reading.dataset(spark, stores, name, columns)


def _log_begins(spark: SparkSession, locations: list[StoreLocation]) -> DataFrame:
    """Return where the log of each broker begins."""
    rows = []
    for location in locations:
        files = location.open_disk().list(f"{location.root}/commitlog")
        bases = [int(one.name) for one in files if one.size and one.name.isdigit()]
        rows.append((location.broker_name, min(bases, default=0)))
    return spark.createDataFrame(rows, "brokerName string, logBegin bigint")


def _file_faults(
    settings: Mapping[str, str], location: StoreLocation
) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    rows = [_row(location.broker_name, fault) for fault in file_faults(location, settings)]
    kinds = {"string": pyarrow.string(), "int": pyarrow.int32(), "bigint": pyarrow.int64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in _COLUMNS.items()])
    yield pyarrow.RecordBatch.from_pylist(rows, schema)


def _row(broker: str, fault: Fault) -> dict[str, Any]:
    return {
        "brokerName": broker,
        "fault": fault.fault,
        "topic": fault.topic,
        "queueId": fault.queue_id,
        "count": 1,
        "firstOffset": fault.offset,
        "lastOffset": fault.offset,
        "why": f"{fault.path}: {fault.why}",
    }


def _summed(rows: DataFrame, fault: Column, why: Column) -> DataFrame:
    """Return ROWS, each a FAULT (null: none) because of WHY, by broker, fault, topic and queue."""
    from pyspark.sql import functions as f

    return (
        rows.withColumn("fault", fault)
        .withColumn("why", why)
        .where("fault is not null")
        .groupBy("brokerName", "fault", "topic", "queueId")
        .agg(
            f.count("*").alias("count"),
            f.min("physicalOffset").alias("firstOffset"),
            f.max("physicalOffset").alias("lastOffset"),
            f.min_by("why", "physicalOffset").alias("why"),
        )
        .select(*_COLUMNS)
    )


def _entry_faults(records: DataFrame, entries: DataFrame, begins: DataFrame) -> DataFrame:
    """Return how RECORDS and ENTRIES disagree. Inner batches and what is not committed need no entry of this kind."""
    from pyspark.sql import functions as f

    place = ["brokerName", "physicalOffset"]
    said = entries.where(~f.startswith("topic", f.lit(LIGHT_PREFIX))).select(
        *place, *(f.col(name).alias(f"entry_{name}") for name in COMPARED_COLUMNS)
    )
    there = records.select(*place, *COMPARED_COLUMNS.values(), "sysFlag").withColumn(
        "isBatch", f.expr(f"(sysFlag & {SYS_INNER_BATCH}) <> 0")
    )
    both = said.join(there, place, "full_outer").join(f.broadcast(begins), "brokerName")
    pairs = COMPARED_COLUMNS.items()
    differs = " or ".join(f"entry_{name} <> {of_record}" for name, of_record in pairs)
    fault = (
        f.when(f.expr("sysFlag is null and physicalOffset >= logBegin"), "entry without record")
        .when(
            f.expr(f"entry_size is null and not isBatch and {SERVED_SQL}"),
            "record without entry",
        )
        .when(f.expr(f"not isBatch and ({differs})"), "entry of another record")
    )
    why = f.when(
        f.col("entry_size").isNotNull(),
        f.format_string(
            "entry %d of %s/%d says log offset %d, %d bytes",
            *("entry_queueOffset", "entry_topic", "entry_queueId", "physicalOffset", "entry_size"),
        ),
    ).otherwise(
        f.format_string(
            "%s/%d has no entry %d of the record at log offset %d",
            *("topic", "queueId", "queueOffset", "physicalOffset"),
        )
    )
    named = both.withColumn("topic", f.coalesce("topic", "entry_topic")).withColumn(
        "queueId", f.coalesce("queueId", "entry_queueId")
    )
    return _summed(named, fault, why)


def _index_faults(
    records: DataFrame, index: DataFrame, begins: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """Return keys of RECORDS that are not in INDEX, as far back as it goes, and its entries without a record."""
    from pyspark.sql import functions as f

    place = ["brokerName", "physicalOffset"]
    words = f.expr(
        "filter(concat(array(properties['UNIQ_KEY']), split(coalesce(keys, ''), ' ')),"
        " word -> word is not null and word <> '')"
    )
    keys = (
        records.where("(sysFlag & 12) <> 12")
        .withColumn("word", f.explode(words))
        .select(*place, "topic", "queueId", f.concat_ws("#", "topic", "word").alias("key"))
    )
    hashed = keys.mapInArrow(
        _with_hashes,
        "brokerName string, physicalOffset bigint, topic string, queueId int, key string, keyHash int",
    )
    first = index.groupBy("brokerName").agg(f.min("physicalOffset").alias("indexBegin"))
    missing = (
        hashed.join(f.broadcast(first), "brokerName")
        .where("physicalOffset >= indexBegin")
        .join(index.select(*place, "keyHash"), [*place, "keyHash"], "left_anti")
    )
    astray = (
        index.join(f.broadcast(begins), "brokerName")
        .where("physicalOffset >= logBegin")
        .join(records.select(*place), place, "left_anti")
        .withColumn("topic", f.lit(None).cast("string"))
        .withColumn("queueId", f.lit(None).cast("int"))
    )
    return (
        _summed(missing, f.lit("key without index entry"), f.concat(f.lit("key "), f.col("key"))),
        _summed(
            astray,
            f.lit("index entry without record"),
            f.format_string("key hash %d says log offset %d", "keyHash", "physicalOffset"),
        ),
    )


def _with_hashes(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow

    for batch in batches:
        hashes = key_hashes(java_hashes(batch.column("key").to_pylist()))
        yield batch.append_column("keyHash", pyarrow.array(hashes))


# ---------------------------------------------------------------- faults of files

_LOOKED_AT_BYTES: Final = 16 << 20
_TABLES: Final[Mapping[str, Callable[[str], Any]]] = {
    "topics.json": parse_topics,
    OFFSETS_FILE: parse_consumer_offsets,
    LMQ_OFFSETS_FILE: parse_consumer_offsets,
    "subscriptionGroup.json": parse_groups,
}


class Fault(NamedTuple):
    """One thing that is wrong: FAULT is its kind, OFFSET where it begins, None where that means nothing."""

    fault: str
    path: str
    offset: int | None
    why: str
    topic: str | None = None
    queue_id: int | None = None


def file_faults(location: StoreLocation, given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield what is wrong with the files of the store at LOCATION; GIVEN are settings by Apache's names."""
    disk = location.open_disk()
    settings = settings_of(disk, location.root, given)
    log = posixpath.join(location.root, "commitlog")
    yield from _row_faults(disk, log, settings.log_file_size)
    yield from _behind_end(disk, log)
    for topic, queue_id, folder in queue_folders(
        disk, posixpath.join(location.root, "consumequeue")
    ):
        for fault in _row_faults(disk, folder, settings.queue_file_bytes):
            yield fault._replace(topic=topic, queue_id=queue_id)
    overlay = OverlayDisk(disk, on_this_machine=location.is_local)
    yield from _index(overlay, posixpath.join(location.root, "index"), settings)
    yield from _tables(disk, location.root)
    yield from _checkpoint(disk, posixpath.join(location.root, "checkpoint"))


def _row_faults(disk: Disk, folder: str, size: int) -> Iterator[Fault]:
    """Yield files of FOLDER of a length other than SIZE, and what is missing between files."""
    for entry in disk.list(folder):
        if not entry.is_folder and entry.name.isdigit() and entry.size != size:
            path = posixpath.join(folder, entry.name)
            why = f"{entry.size:,} bytes long, not {size:,}"
            yield Fault("length of a file", path, int(entry.name), why)
    for start, end in missing_between(row_files(disk, folder)):
        yield Fault("missing file", folder, start, f"bytes {start:,} to {end:,} are in no file")


def _behind_end(disk: Disk, folder: str) -> Iterator[Fault]:
    """Yield what stands behind the last record of the log: a record cut short, or a rest of an earlier life."""
    files = row_files(disk, folder)
    if not files:
        return
    file = files[-1]
    end, zeros = log_end(disk, file), zeros_from(disk, file)
    data = disk.read_at(file.path, end - file.start, min(zeros - end, _LOOKED_AT_BYTES))
    used = len(data.rstrip(b"\0"))
    if used and not is_blank(data, 0, file.end - end):
        yield Fault("bytes behind the end", file.path, end, f"{used:,} bytes that are no record")


def _index(disk: Disk, folder: str, settings: ApacheSettings) -> Iterator[Fault]:
    slots, entries = settings.index_slots, settings.index_entries
    wanted = index_file_size(slots, entries)
    files = [one for one in disk.list(folder) if not one.is_folder and one.name.isdigit()]
    usual = Counter(one.size for one in files).most_common(1)
    for one in files:
        path = posixpath.join(folder, one.name)
        if one.size != usual[0][0]:
            yield Fault("length of a file", path, None, f"{one.size:,} bytes long, not {wanted:,}")
        elif one.size == wanted:
            try:
                check_index_file(IndexFile(disk, path, slots, entries, create=False))
            except CorruptIndex as error:
                yield Fault("index file", path, None, error.message)


def _tables(disk: Disk, root: str) -> Iterator[Fault]:
    """Yield config files that do not parse, and missing topics where there are queues."""
    for name, parse in _TABLES.items():
        path = posixpath.join(root, "config", name)
        if not disk.exists(path):
            if name == "topics.json" and disk.list(posixpath.join(root, "consumequeue")):
                yield Fault("missing file", path, None, "there are queues, and no table of topics")
            continue
        try:
            parse(disk.read(path).decode("utf-8"))
        except ValueError as error:
            yield Fault("table", path, None, f"does not parse: {error}")


def _checkpoint(disk: Disk, path: str) -> Iterator[Fault]:
    if not disk.exists(path):
        yield Fault("missing file", path, None, "nothing tells how far the device is up to date")
    elif disk.size(path) != CHECKPOINT_SIZE:
        why = f"{disk.size(path):,} bytes long, not {CHECKPOINT_SIZE:,}"
        yield Fault("length of a file", path, None, why)
