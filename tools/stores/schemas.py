"""The columns of every dataset, as Arrow has them: one explicit schema each, for Parquet, Spark and --json alike.

Names are RocketMQ's. Times are timestamps in microseconds, UTC (what Spark wants), though the store keeps milliseconds;
what is not known is null. A reader takes the columns that somebody wants, in their order: `projected`.

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
    "brokerName": "string",
    "topic": "string",
    "queueId": "int32",
    "queueOffset": "int64",
    "physicalOffset": "int64",
    "storeSize": "int32",
    "storeTimestamp": "time",
    "bornTimestamp": "time",
    "bornHost": "string",
    "storeHost": "string",
    "flag": "int32",
    "sysFlag": "int32",
    "reconsumeTimes": "int32",
    "bodyCrc": "int32",
    "preparedTransactionOffset": "int64",
    "messageId": "string",
    "tags": "string",
    "keys": "string",
    "shardingKey": "string",
    "properties": "map",
    "body": "binary",
}
#: Columns that are there only when they are asked for.
_EXTRA: Final = {"messages": {"rawProperties": "string", "badRecord": "string"}}

_COLUMNS: Final = {
    "messages": _MESSAGES,
    "consumequeue": {
        "brokerName": "string",
        "topic": "string",
        "queueId": "int32",
        "queueOffset": "int64",
        "physicalOffset": "int64",
        "size": "int32",
        "tagsCode": "int64",
    },
    "index": {
        "brokerName": "string",
        "file": "string",
        "slot": "int32",
        "keyHash": "int32",
        "physicalOffset": "int64",
        "storeTimestamp": "time",
        "previous": "int32",
    },
    "files": {
        "brokerName": "string",
        "kind": "string",
        "path": "string",
        "baseOffset": "int64",
        "sizeBytes": "int64",
        "usedBytes": "int64",
        "firstTimestamp": "time",
        "lastTimestamp": "time",
    },
    "queues": {
        "brokerName": "string",
        "topic": "string",
        "queueId": "int32",
        "minOffset": "int64",
        "maxOffset": "int64",
    },
    "offsets": {
        "brokerName": "string",
        "topic": "string",
        "queueId": "int32",
        "group": "string",
        "committedOffset": "int64",
    },
    "lag": {
        "brokerName": "string",
        "topic": "string",
        "queueId": "int32",
        "group": "string",
        "committedOffset": "int64",
        "minOffset": "int64",
        "maxOffset": "int64",
        "lag": "int64",
        "lagBytes": "int64",
        "oldestUnreadAgeMs": "int64",
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
