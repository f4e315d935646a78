"""Committed offsets read by Spark from consumerOffset.json files: of stores, of backups, of a whole fleet at once.

Where lmqConsumerOffset.json is newer, which a Java broker with enableLmq writes instead, that is read.

The files are JSON but for their keys, which are bare numbers ({0:250,1:251}); Spark's reader, left to itself, makes of
such a file nothing without a word: no rows, hence "no lag". So the schema is given, bare keys are allowed, and a file
that does not parse to an offsetTable is an error, unless its `.bak` does (a broker that starts on a file that was cut
short takes that). Keys in quotes, as other writers put them, are read as well.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ....store.state_files import offsets_file
from ...stores.locations import StoreLocation, locate
from .reading import of_each_store

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

_TEXTS: Final = "brokerName string, path string, main string, backup string"
_CORRUPT: Final = "_corrupt_record"
_TABLE: Final = f"offsetTable map<string,map<string,bigint>>, {_CORRUPT} string"
_OPTIONS: Final = {"allowUnquotedFieldNames": "true", "columnNameOfCorruptRecord": _CORRUPT}


def committed_offsets(
    spark: SparkSession, *stores: str, broker_name: str | None = None
) -> DataFrame:
    """Return brokerName, topic, queueId, group and committedOffset of every offset that STORES hold.

    STORES are as `lag` takes them. A store that never had the file has no rows. The query fails where neither the file
    nor its `.bak` can be read, and says which. Keys without "@" are nobody's and left out.
    """
    from pyspark.sql import functions as f

    texts = of_each_store(spark, locate(stores, broker_name=broker_name), _texts, _TEXTS)
    where = f.col("path")
    unreadable = f.concat(
        f.lit("CorruptState: "),
        where,
        f.lit(" and its .bak hold no offsetTable that can be read: repair one of the two"),
    )
    table = f.coalesce(_offset_table("main"), _offset_table("backup"), f.raise_error(unreadable))
    queues = texts.select("brokerName", f.explode(table).alias("key", "queues")).where(
        f.instr("key", "@") > 0
    )
    return queues.select(
        "brokerName", "key", f.explode("queues").alias("queueId", "committedOffset")
    ).select(
        "brokerName",
        f.substring_index("key", "@", 1).alias("topic"),
        f.col("queueId").cast("int").alias("queueId"),
        f.expr("substring(key, instr(key, '@') + 1)").alias("group"),
        "committedOffset",
    )


def _offset_table(column: str) -> Column:
    """Return the table in the text COLUMN; null where it does not parse, or has none."""
    from pyspark.sql import functions as f

    parsed = f.from_json(f.col(column), _TABLE, _OPTIONS)
    return f.when(parsed[_CORRUPT].isNull(), parsed["offsetTable"])


def _texts(location: StoreLocation) -> Iterator[pyarrow.RecordBatch]:
    """Yield the texts of the file and its backup in the store at LOCATION; nothing where neither is there."""
    import pyarrow

    disk = location.open_disk()
    path = posixpath.join(location.root, "config", offsets_file(disk, location.root))
    texts: list[str | None] = [
        disk.read(one).decode("utf-8-sig", "replace") if disk.exists(one) else None
        for one in (path, path + ".bak")
    ]
    if any(texts):
        row: dict[str, Any] = dict(
            zip(
                ("brokerName", "path", "main", "backup"),
                (location.broker_name, path, *texts),
                strict=True,
            )
        )
        yield pyarrow.RecordBatch.from_pylist(
            [row], pyarrow.schema([(name, pyarrow.string()) for name in row])
        )
