"""The small datasets of a store: its queues, its committed offsets, and its lag, as after a broker's recovery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ...store.os_disk import allow_many_files
from ..lag.cold import store_rows
from ..stores.cold_store import ColdStore
from ..stores.locations import StoreLocation
from ..stores.schemas import arrow
from .store_options import StoreOptions

if TYPE_CHECKING:
    import pyarrow

TABLES: Final = ("queues", "offsets", "lag")


def table_batch(location: StoreLocation, options: StoreOptions) -> pyarrow.RecordBatch:
    """Return the whole dataset of OPTIONS of the store at LOCATION. Raises StoreRefused where no broker would start."""
    allow_many_files()
    scan = options.scan
    store = ColdStore.open(
        location,
        now_ms=options.now_ms,
        given=scan.settings,
        recovery=options.recovery,
        index=False,
    )
    rows = [
        {"brokerName": location.broker_name, **row} for row in _ROWS[scan.dataset](store, options)
    ]
    schema = scan.schema()
    cut = [{name: row[name] for name in schema.names} for row in rows]
    return arrow().RecordBatch.from_pylist(cut, schema=schema)


def _queues(store: ColdStore, options: StoreOptions) -> Iterator[dict[str, Any]]:
    for queue in store.queues():
        yield {
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
        }


def _offsets(store: ColdStore, options: StoreOptions) -> Iterator[dict[str, Any]]:
    for one in store.committed_offsets():
        yield {
            "topic": one.topic,
            "queueId": one.queue_id,
            "group": one.group,
            "committedOffset": one.offset,
        }


def _lag(store: ColdStore, options: StoreOptions) -> Iterator[dict[str, Any]]:
    for row in store_rows(store, options.now_ms):
        yield row.to_json()


_ROWS: Final = {"queues": _queues, "offsets": _offsets, "lag": _lag}
