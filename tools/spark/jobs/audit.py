"""A store audit: log, queues and index of a fleet compared, every record's CRC, every file's length and header.

    from pocketmq.tools.spark.jobs.audit import audit
    audit(spark, "/data/broker-*/store").show()        # no rows: nothing is wrong

A row is one kind of fault of one broker, topic and queue: how often, from which to which log offset, and one reason.

    length of a file, missing file, index file, table, bytes after the end    by names, lengths, headers
    damaged record           bytes of the log that are no valid record, or whose body does not fit its CRC
    entry without record     a queue entry points where no such record is
    record without entry     a record that its queue does not have
    entry of another record  topic, queue, offset or size are not those of the record that the entry points to
    key without index entry  a key that look-ups do not find, though the index goes back that far
    index entry without record

Entries and index entries in front of the log's first file are no fault: their records have expired. In a store that a
broker writes to meanwhile, the newest records may not have their entries yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ....proto.byte_ranges import java_hashes
from ....proto.errors import ConfigError
from ....proto.record import SYS_INNER_BATCH
from ....store.format.agreement import COMPARED_COLUMNS, SERVED_SQL
from ....store.format.queues import LIGHT_PREFIX
from ....store.message_keys import key_hashes
from ...stores.locations import StoreLocation, locate
from .file_faults import Fault, file_faults
from .reading import Reading
from .store_tasks import of_each_store

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

#: Column → type, as Spark names it.
_COLUMNS: Final = {
    "broker": "string",
    "fault": "string",
    "topic": "string",
    "queue": "int",
    "count": "bigint",
    "first_offset": "bigint",
    "last_offset": "bigint",
    "why": "string",
}
_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
_RECORDS: Final = (
    "broker string, topic string, queue int, queue_offset bigint, log_offset bigint, store_size int,"
    " sys_flag int, keys string, properties map<string,string>, bad_record string"
)
_ENTRIES: Final = (
    "broker string, topic string, queue int, queue_offset bigint, log_offset bigint, size int"
)
_KEYS: Final = "broker string, key_hash int, log_offset bigint"


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
    records = messages.where("bad_record is null")
    begins = _log_begins(spark, locations)
    faults = [
        of_each_store(spark, locations, partial(_file_faults, given), _SCHEMA),
        _summed(
            messages.where("bad_record is not null"), f.lit("damaged record"), f.col("bad_record")
        ),
        _entry_faults(records, _rest(spark, stores, given, "consumequeue", _ENTRIES), begins),
        *_index_faults(records, _rest(spark, stores, given, "index", _KEYS), begins),
    ]
    found = faults[0]
    for more in faults[1:]:
        found = found.unionByName(more)
    return found.orderBy("broker", "first_offset", "fault", "topic", "queue")


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
    return spark.createDataFrame(rows, "broker string, log_begin bigint")


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
        "broker": broker,
        "fault": fault.fault,
        "topic": fault.topic,
        "queue": fault.queue_id,
        "count": 1,
        "first_offset": fault.offset,
        "last_offset": fault.offset,
        "why": f"{fault.path}: {fault.why}",
    }


def _summed(rows: DataFrame, fault: Column, why: Column) -> DataFrame:
    """Return ROWS, each a FAULT (null: none) because of WHY, by broker, fault, topic and queue."""
    from pyspark.sql import functions as f

    return (
        rows.withColumn("fault", fault)
        .withColumn("why", why)
        .where("fault is not null")
        .groupBy("broker", "fault", "topic", "queue")
        .agg(
            f.count("*").alias("count"),
            f.min("log_offset").alias("first_offset"),
            f.max("log_offset").alias("last_offset"),
            f.min_by("why", "log_offset").alias("why"),
        )
        .select(*_COLUMNS)
    )


def _entry_faults(records: DataFrame, entries: DataFrame, begins: DataFrame) -> DataFrame:
    """Return how RECORDS and ENTRIES disagree. Inner batches and what is not committed need no entry of this kind."""
    from pyspark.sql import functions as f

    place = ["broker", "log_offset"]
    said = entries.where(~f.startswith("topic", f.lit(LIGHT_PREFIX))).select(
        *place, *(f.col(name).alias(f"entry_{name}") for name in COMPARED_COLUMNS)
    )
    there = records.select(*place, *COMPARED_COLUMNS.values(), "sys_flag").withColumn(
        "is_batch", f.expr(f"(sys_flag & {SYS_INNER_BATCH}) <> 0")
    )
    both = said.join(there, place, "full_outer").join(f.broadcast(begins), "broker")
    pairs = COMPARED_COLUMNS.items()
    differs = " or ".join(f"entry_{name} <> {of_record}" for name, of_record in pairs)
    fault = (
        f.when(f.expr("sys_flag is null and log_offset >= log_begin"), "entry without record")
        .when(
            f.expr(f"entry_size is null and not is_batch and {SERVED_SQL}"),
            "record without entry",
        )
        .when(f.expr(f"not is_batch and ({differs})"), "entry of another record")
    )
    why = f.when(
        f.col("entry_size").isNotNull(),
        f.format_string(
            "entry %d of %s/%d says log offset %d, %d bytes",
            *("entry_queue_offset", "entry_topic", "entry_queue", "log_offset", "entry_size"),
        ),
    ).otherwise(
        f.format_string(
            "%s/%d has no entry %d of the record at log offset %d",
            *("topic", "queue", "queue_offset", "log_offset"),
        )
    )
    named = both.withColumn("topic", f.coalesce("topic", "entry_topic")).withColumn(
        "queue", f.coalesce("queue", "entry_queue")
    )
    return _summed(named, fault, why)


def _index_faults(
    records: DataFrame, index: DataFrame, begins: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """Return keys of RECORDS that are not in INDEX, as far back as it goes, and its entries without a record."""
    from pyspark.sql import functions as f

    place = ["broker", "log_offset"]
    words = f.expr(
        "filter(concat(array(properties['UNIQ_KEY']), split(coalesce(keys, ''), ' ')),"
        " word -> word is not null and word <> '')"
    )
    keys = (
        records.where("(sys_flag & 12) <> 12")
        .withColumn("word", f.explode(words))
        .select(*place, "topic", "queue", f.concat_ws("#", "topic", "word").alias("key"))
    )
    hashed = keys.mapInArrow(
        _with_hashes,
        "broker string, log_offset bigint, topic string, queue int, key string, key_hash int",
    )
    first = index.groupBy("broker").agg(f.min("log_offset").alias("index_begin"))
    missing = (
        hashed.join(f.broadcast(first), "broker")
        .where("log_offset >= index_begin")
        .join(index.select(*place, "key_hash"), [*place, "key_hash"], "left_anti")
    )
    astray = (
        index.join(f.broadcast(begins), "broker")
        .where("log_offset >= log_begin")
        .join(records.select(*place), place, "left_anti")
        .withColumn("topic", f.lit(None).cast("string"))
        .withColumn("queue", f.lit(None).cast("int"))
    )
    return (
        _summed(missing, f.lit("key without index entry"), f.concat(f.lit("key "), f.col("key"))),
        _summed(
            astray,
            f.lit("index entry without record"),
            f.format_string("key hash %d says log offset %d", "key_hash", "log_offset"),
        ),
    )


def _with_hashes(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow

    for batch in batches:
        hashes = key_hashes(java_hashes(batch.column("key").to_pylist()))
        yield batch.append_column("key_hash", pyarrow.array(hashes))
