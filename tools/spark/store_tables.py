"""The small datasets of a store: its queues, its committed offsets, and its lag, as after a broker's recovery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ...store.view import OpenedStore
from ..lag.cold import store_rows
from ..stores.locations import StoreLocation
from ..stores.schemas import arrow
from .store_options import StoreOptions

if TYPE_CHECKING:
    import pyarrow

TABLES: Final = ("queues", "offsets", "lag")


def table_batch(location: StoreLocation, options: StoreOptions) -> pyarrow.RecordBatch:
    """Return the whole dataset of OPTIONS of the store at LOCATION. Raises StoreRefused where no broker would start."""
    store = options.opening.open(location)
    rows = [
        {"brokerName": location.broker_name, **row}
        for row in _ROWS[options.scan.dataset](store, options.opening.now_ms)
    ]
    return arrow().RecordBatch.from_pylist(rows, schema=options.scan.schema())


def _queues(store: OpenedStore, now_ms: int) -> Iterator[dict[str, Any]]:
    for queue in store.queues():
        yield {
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
        }


def _offsets(store: OpenedStore, now_ms: int) -> Iterator[dict[str, Any]]:
    for one in store.committed_offsets():
        yield {
            "topic": one.topic,
            "queueId": one.queue_id,
            "group": one.group,
            "committedOffset": one.offset,
        }


def _lag(store: OpenedStore, now_ms: int) -> Iterator[dict[str, Any]]:
    for row in store_rows(store, now_ms):
        yield row.to_json()


_ROWS: Final = {"queues": _queues, "offsets": _offsets, "lag": _lag}
