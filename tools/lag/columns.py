"""Lag rows as an Arrow batch, which is what Parquet files and Spark tasks take. Needs pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..stores.schemas import arrow, schema_of
from .rows import LagRow, columns_of

if TYPE_CHECKING:
    import pyarrow


def lag_batch(rows: Iterable[LagRow]) -> pyarrow.RecordBatch:
    """Return ROWS as one batch with the columns of the dataset "lag"."""
    return arrow().RecordBatch.from_pydict(columns_of(rows), schema=schema_of("lag"))
