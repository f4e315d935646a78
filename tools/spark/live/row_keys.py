"""The keys of rows that Spark sends, the same whenever a row is sent again, and how duplicates are dropped by them.

    SPARK_SEQ = "16 hexadecimal digits:row"

The digits hash query, batch and partition: of a stream its query id and batch id, of a batch its job's id and 0. The
row counts within the task from 0 on. So a task that is tried again, a batch that is repeated after a crash and a task
that runs twice give each row the key that it had, as long as the rows come in the same order.

A duplicate is a message with the same key and the same body as another. One with the same key and another body is none:
a task that ran again got its rows in another order, and both are kept. Messages without a key are all kept.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from ....proto.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


#: The property that carries it.
SPARK_SEQUENCE: Final = "SPARK_SEQ"


#: Columns that identify duplicates.
_NEEDED: Final = ("broker", "topic", "queue", "queue_offset", "properties", "body")


_KEY: Final = "__spark_sequence"


def task_key(query_id: str, batch_id: int, partition: int) -> int:
    """Return 63 bits that say which task of which batch of which query it is; never 0."""
    text = f"{query_id}\n{batch_id}\n{partition}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1 or 1


def row_key(task: int, row: int) -> str:
    """Return the key of row ROW of the task with key TASK."""
    return f"{task:016x}:{row}"


def without_repeats(frame: DataFrame, *, within: str | None = None) -> DataFrame:
    """Return FRAME, messages as `format("rocketmq")` reads them, without duplicates.

    A stream needs WITHIN, such as "1 hour", or else it would remember every key for ever: duplicates that arrive later
    than that, by store_timestamp, are not recognized. Raises ConfigError where a column is missing, or a stream's
    WITHIN.
    """
    from pyspark.sql import functions as F

    needed = (*_NEEDED, "store_timestamp") if within else _NEEDED
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"without_repeats needs the columns {', '.join(missing)}: drop them afterwards",
            field=missing[0],
        )
    if frame.isStreaming and within is None:
        raise ConfigError(
            'without_repeats of a stream needs a limit, such as within="1 hour": else it remembers every key for ever',
            field="within",
        )
    place = F.concat_ws("\x01", "broker", "topic", "queue", "queue_offset")
    keyed = frame.withColumn(_KEY, F.coalesce(F.col("properties")[SPARK_SEQUENCE], place))
    keys = [_KEY, "body"]
    if within is None:
        return keyed.dropDuplicates(keys).drop(_KEY)
    marked = keyed.withWatermark("store_timestamp", within)
    return marked.dropDuplicatesWithinWatermark(keys).drop(_KEY)
