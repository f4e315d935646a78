"""The columns of every dataset, as Arrow has them: one explicit schema each, for Parquet, Spark and --json alike.

Times are timestamps in microseconds, UTC (what Spark wants), though the store keeps milliseconds;
what is not known is null. A reader takes the requested columns, in their order: `projected`.

pyarrow is optional: it is imported when the first schema is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ...proto.errors import ConfigError
from ...proto.extras import pip_install

if TYPE_CHECKING:
    import pyarrow

#: Column → type, in the order in which they are shown.
_MESSAGES: Final = {
    "broker": "string",
    "topic": "string",
    "queue": "int32",
    "queue_offset": "int64",
    "log_offset": "int64",
    "store_size": "int32",
    "store_timestamp": "time",
    "born_timestamp": "time",
    "born_host": "string",
    "store_host": "string",
    "flag": "int32",
    "sys_flag": "int32",
    "reconsume_times": "int32",
    "body_crc": "int32",
    "prepared_transaction_offset": "int64",
    "message_id": "string",
    "tags": "string",
    "keys": "string",
    "sharding_key": "string",
    "properties": "map",
    "body": "binary",
}
#: Columns that are there only when they are asked for.
_EXTRA: Final = {"messages": {"raw_properties": "string", "bad_record": "string"}}

_COLUMNS: Final = {
    "messages": _MESSAGES,
    "consumequeue": {
        "broker": "string",
        "topic": "string",
        "queue": "int32",
        "queue_offset": "int64",
        "log_offset": "int64",
        "size": "int32",
        "tags_code": "int64",
    },
    "index": {
        "broker": "string",
        "file": "string",
        "slot": "int32",
        "key_hash": "int32",
        "log_offset": "int64",
        "store_timestamp": "time",
        "previous": "int32",
    },
    "files": {
        "broker": "string",
        "kind": "string",
        "path": "string",
        "base_offset": "int64",
        "size_bytes": "int64",
        "used_bytes": "int64",
        "first_timestamp": "time",
        "last_timestamp": "time",
    },
    "queues": {
        "broker": "string",
        "topic": "string",
        "queue": "int32",
        "min_offset": "int64",
        "max_offset": "int64",
    },
    "offsets": {
        "broker": "string",
        "topic": "string",
        "queue": "int32",
        "group": "string",
        "committed_offset": "int64",
    },
    "lag": {
        "broker": "string",
        "topic": "string",
        "queue": "int32",
        "group": "string",
        "committed_offset": "int64",
        "min_offset": "int64",
        "max_offset": "int64",
        "lag": "int64",
        "lag_bytes": "int64",
        "oldest_unread_age_ms": "int64",
        "skipped": "int64",
        "verdict": "string",
        "reasons": "strings",
    },
}


def arrow() -> Any:
    """Return the module pyarrow. Raises ConfigError, which says what to install, without it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"columns need pyarrow, which is not installed: {pip_install('arrow')}",
            field="pyarrow",
        ) from error
    return pyarrow


def datasets() -> list[str]:
    """Return the names of all datasets that have a schema here."""
    return list(_COLUMNS)


@cache
def schema_of(dataset: str, extra: tuple[str, ...] = ()) -> pyarrow.Schema:
    """Return the schema of DATASET with all its columns, and those of EXTRA that come only when they are wanted."""
    columns = _COLUMNS[dataset] | {name: _EXTRA[dataset][name] for name in extra}
    return arrow().schema([(name, _type(kind)) for name, kind in columns.items()])


def projected(dataset: str, names: Sequence[str]) -> pyarrow.Schema:
    """Return the schema of DATASET with the columns NAMES alone, in their order; ConfigError for one it has not."""
    known = _COLUMNS[dataset] | _EXTRA.get(dataset, {})
    for name in names:
        if name not in known:
            raise ConfigError(
                f"dataset {dataset} has no column {name!r}: it has {', '.join(known)}",
                field="schema",
                value=name,
            )
    return arrow().schema([(name, _type(known[name])) for name in names])


def _type(kind: str) -> Any:
    pa = arrow()
    if kind == "time":
        return pa.timestamp("us", tz="UTC")
    if kind == "strings":
        return pa.list_(pa.string())
    if kind == "map":
        return pa.map_(pa.string(), pa.string())
    return pa.type_for_alias(kind)
