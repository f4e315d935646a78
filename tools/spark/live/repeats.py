"""Dropping what a Spark sink has sent more than once, where the broker did not: by the rows' own keys (row_keys.py).

A repeat is a message with the same key and the same body as another. One with the same key and another body is none: a
task that ran again got its rows in another order, and both are kept rather than one lost. Messages without a key, which
no Spark sink has sent, are all kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....proto.errors import ConfigError
from .row_keys import SPARK_SEQUENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEEDED: Final = ("brokerName", "topic", "queueId", "queueOffset", "properties", "body")
_KEY: Final = "__spark_sequence"


def without_repeats(frame: DataFrame, *, within: str | None = None) -> DataFrame:
    """Return FRAME, messages as `format("rocketmq")` reads them, without repeats.

    A stream needs WITHIN, such as "1 hour", or else it would remember every key for ever: repeats that come later than
    that, by storeTimestamp, are not told any more. Raises ConfigError where a column is missing, or a stream's WITHIN.
    """
    from pyspark.sql import functions as F

    needed = (*_NEEDED, "storeTimestamp") if within else _NEEDED
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"without_repeats needs the columns {', '.join(missing)}: drop them afterwards",
            field=missing[0],
        )
    if frame.isStreaming and within is None:
        raise ConfigError(
            'without_repeats of a stream needs a bound, within="1 hour", or it would remember every key for ever',
            field="within",
        )
    place = F.concat_ws("\x01", "brokerName", "topic", "queueId", "queueOffset")
    keyed = frame.withColumn(_KEY, F.coalesce(F.col("properties")[SPARK_SEQUENCE], place))
    keys = [_KEY, "body"]
    if within is None:
        return keyed.dropDuplicates(keys).drop(_KEY)
    marked = keyed.withWatermark("storeTimestamp", within)
    return marked.dropDuplicatesWithinWatermark(keys).drop(_KEY)
