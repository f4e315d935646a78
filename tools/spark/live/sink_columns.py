"""The columns of the sink, and how rows become messages. Pure but for pyarrow.

    body (or value)      binary or string     what is sent; not null, not empty
    topic                string               not needed where the option `topic` is given, which goes before it
    tags, keys (or key)  string               keys: words separated by blanks
    sharding_key         string               rows with the same one go to the same queue, in order
    priority             int                  from 0 on: the queue with this number; not with a sharding_key or a time
    queue, broker        int, string          the very queue, with the option keepQueues; else they are ignored
    delay_level          int                  one of the broker's delays
    deliver_timestamp    timestamp or bigint  when it is delivered; milliseconds
    properties           map<string,string>   the application's own

The broker sets the source's other columns (queue_offset, store_timestamp, …), so they are ignored and rows that were
read can be written as they are. Properties that belong to brokers and producers are ignored as well. TAGS, KEYS,
__SHARDINGKEY and _SYS_MSG_PRIORITY_ among the properties count where their column is missing. Any other column is an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ....client.message import Message, is_reserved
from ....client.queue import Queue
from ....proto.errors import ConfigError, InvalidArgument, PocketMQError
from ....proto.properties import KEY_SEPARATOR, KEYS, PRIORITY, SHARDING_KEY, TAGS, whole_number
from .row_keys import SPARK_SEQUENCE, row_key

_TEXT: Final = ("string",)
_WHOLE: Final = ("int", "bigint", "smallint", "tinyint")
#: Types by column, as Spark writes them.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT,
    "sharding_key": _TEXT,
    "priority": _WHOLE,
    "queue": _WHOLE,
    "broker": _TEXT,
    "delay_level": _WHOLE,
    "deliver_timestamp": ("timestamp", "bigint"),
    "properties": ("map<string,string>",),
}
ALIASES: Final = {"value": "body", "key": "keys"}
IGNORED: Final = frozenset(
    {
        "queue_offset",
        "log_offset",
        "store_size",
        "store_timestamp",
        "born_timestamp",
        "born_host",
        "store_host",
        "flag",
        "sys_flag",
        "reconsume_times",
        "body_crc",
        "prepared_transaction_offset",
        "message_id",
        "raw_properties",
    }
)
#: Properties that count as columns where these are not there.
_AS_COLUMNS: Final = {"tags": TAGS, "keys": KEYS, "sharding_key": SHARDING_KEY}


def sink_columns(
    fields: Iterable[tuple[str, str]], topic: str, *, keep_queues: bool = False
) -> dict[str, int]:
    """Return the position of each column of the sink in FIELDS, names and Spark types. Raises ConfigError.

    TOPIC, KEEP_QUEUES are options; without TOPIC there has to be a column.
    """
    found: dict[str, int] = {}
    for index, (name, kind) in enumerate(fields):
        column = ALIASES.get(name, name)
        if column in IGNORED:
            continue
        if column not in COLUMNS:
            raise ConfigError(
                f"column {name!r} is none of the sink's: rename or drop it; it takes {', '.join(COLUMNS)}",
                field=name,
            )
        if column in found:
            raise ConfigError(f"column {column!r} exists twice, also as {name!r}", field=name)
        if kind not in COLUMNS[column]:
            raise ConfigError(
                f"column {name!r} is {kind}, but must be {' or '.join(COLUMNS[column])}: cast it",
                field=name,
                value=kind,
            )
        found[column] = index
    for column in ("body",) if topic else ("body", "topic"):
        if column not in found:
            hint = ", or write the option topic" if column == "topic" else " (or value)"
            raise ConfigError(f"column {column!r} is missing: add it{hint}", field=column)
    ignored = {"topic"} if topic else set()
    if not keep_queues:
        ignored |= {"queue", "broker"}
    return {column: index for column, index in found.items() if column not in ignored}


@dataclass(frozen=True, slots=True)
class Rows:
    """Makes messages of the rows of the task TASK. COLUMNS: positions. TOPIC is used instead of a column."""

    columns: Mapping[str, int]
    topic: str
    task: int

    def messages(self, batch: Any, first_row: int) -> Iterator[Message]:
        """Yield the messages of BATCH, a pyarrow.RecordBatch, whose rows count from FIRST_ROW on in their task.

        Raises InvalidArgument, which names the row, for what is no message.
        """
        columns = {name: batch.column(index).to_pylist() for name, index in self.columns.items()}
        names = list(columns)
        for row, values in enumerate(zip(*columns.values(), strict=True), first_row):
            try:
                yield self._message(dict(zip(names, values, strict=True)), row)
            except PocketMQError as error:
                raise InvalidArgument(
                    f"row {row} of its task: {error.message}", **(error.details | {"row": row})
                ) from None

    def _message(self, row: dict[str, Any], number: int) -> Message:
        topic, body = self.topic or row.get("topic"), row["body"]
        for name, value in (("topic", topic), ("body", body)):
            if value is None:
                raise InvalidArgument(f"column {name!r} is null: every row needs one", field=name)
        properties = dict(row.get("properties") or ())
        for name, property_name in _AS_COLUMNS.items():
            if name not in row:
                row[name] = properties.get(property_name)
        own = {
            name: value
            for name, value in properties.items()
            if value and not is_reserved(name) and name != SPARK_SEQUENCE
        }
        own[SPARK_SEQUENCE] = row_key(self.task, number)
        return Message(
            topic or "",
            body.encode() if isinstance(body, str) else body,
            keys=[word for word in (row["keys"] or "").split(KEY_SEPARATOR) if word],
            tag=row["tags"] or None,
            sharding_key=row["sharding_key"] or None,
            priority=_priority(row, properties),
            queue=_queue(topic or "", row),
            delay_level=row.get("delay_level") or 0,
            deliver_at=_instant(row.get("deliver_timestamp")),
            properties=own,
        )


def _priority(row: Mapping[str, Any], properties: Mapping[str, str]) -> int | None:
    """Return the priority of ROW; one among PROPERTIES counts where the row asks for nothing that excludes it."""
    if "priority" in row:
        return None if row["priority"] is None else int(row["priority"])
    if row["sharding_key"] or row.get("delay_level") or row.get("deliver_timestamp") is not None:
        return None
    return whole_number(properties.get(PRIORITY) or "")


def _queue(topic: str, row: Mapping[str, Any]) -> Queue | int | None:
    number, broker = row.get("queue"), row.get("broker")
    if number is None:
        return None
    return int(number) if broker is None else Queue(topic, broker, int(number))


def _instant(value: datetime | int | None) -> datetime | int | None:
    """Return VALUE; a timestamp of Spark's without a zone is in UTC, as Arrow brings it."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
