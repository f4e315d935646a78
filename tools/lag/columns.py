"""Lag rows as an Arrow table, which is what Parquet files and Spark tasks take. Needs pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...proto.errors import ConfigError
from .rows import LagRow, columns_of

if TYPE_CHECKING:
    import pyarrow


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            "lag rows in columns need pyarrow, which is not installed: pip install 'pocketmq[arrow]'",
            field="pyarrow",
        ) from error
    return pyarrow


def lag_schema() -> pyarrow.Schema:
    """Return the schema: names as in JSON, whole numbers of 64 bits (queueId of 32), reasons a list of strings."""
    pa = _pyarrow()
    long, text = pa.int64(), pa.string()
    kinds = {
        "brokerName": text,
        "topic": text,
        "queueId": pa.int32(),
        "group": text,
        "committedOffset": long,
        "minOffset": long,
        "maxOffset": long,
        "lag": long,
        "lagBytes": long,
        "oldestUnreadAgeMs": long,
        "verdict": text,
        "reasons": pa.list_(text),
    }
    return pa.schema(list(kinds.items()))


def lag_batch(rows: Iterable[LagRow]) -> pyarrow.RecordBatch:
    """Return ROWS as one batch of `lag_schema`."""
    pa = _pyarrow()
    return pa.RecordBatch.from_pydict(columns_of(rows), schema=lag_schema())
