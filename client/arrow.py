"""Batches of messages as Apache Arrow has them. Needs pyarrow, which is optional.

queue_offset, log_offset    int64
born, stored                timestamp in ms, UTC
reconsume_times             int32
tag                         string, null without one
keys                        list of strings
body                        binary, as it was sent; copied once
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import ConfigError, InvalidArgument
from ..proto.record_run import RunColumns

if TYPE_CHECKING:
    import pyarrow


class ColumnarMessages(Protocol):
    """Messages by the column, as a MessageBatch has them."""

    @property
    def columns(self) -> RunColumns: ...
    @property
    def tags(self) -> Sequence[str | None]: ...
    @property
    def keys(self) -> Sequence[Sequence[str]]: ...
    @property
    def bodies(self) -> Sequence[bytes]: ...
    def body_matrix(self) -> NDArray[np.uint8]: ...


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            "to_arrow needs pyarrow, which is not installed: pip install pyarrow, or 'pocketmq[arrow]'",
            field="pyarrow",
        ) from error
    return pyarrow


def record_batch(batch: ColumnarMessages) -> pyarrow.RecordBatch:
    """Return the messages of BATCH, a row each. Raises ConfigError without pyarrow, and what reading a body raises."""
    arrow = _pyarrow()
    columns = batch.columns
    instant = arrow.timestamp("ms", "UTC")
    fields = {
        "queue_offset": arrow.array(columns.queue_offset),
        "log_offset": arrow.array(columns.log_offset),
        "born": arrow.array(columns.born_ms).cast(instant),
        "stored": arrow.array(columns.store_ms).cast(instant),
        "reconsume_times": arrow.array(columns.reconsume_times),
        "tag": arrow.array(batch.tags, arrow.string()),
        "keys": arrow.array(batch.keys, arrow.list_(arrow.string())),
        "body": _bodies(arrow, batch),
    }
    return arrow.RecordBatch.from_pydict(fields)


def _bodies(arrow: Any, batch: ColumnarMessages) -> Any:
    """Return the bodies as an Arrow array over one buffer, into which they are copied."""
    try:
        matrix = batch.body_matrix()
    except InvalidArgument:
        bodies = list(batch.bodies)
        data = b"".join(bodies)
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    else:
        data = matrix.tobytes()
        sizes = np.full(len(matrix), matrix.shape[1], np.int64)
    return arrow.Array.from_buffers(
        arrow.binary(), len(sizes), [None, arrow.py_buffer(_ends(sizes)), arrow.py_buffer(data)]
    )


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return where each value begins and where the last one ends; a fetch is far below what 32 bits count."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))).astype(np.int32)
