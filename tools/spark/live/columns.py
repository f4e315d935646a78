"""The columns of the live source: those of every dataset of messages, or Kafka's names for them.

    Kafka's        is                                       type
    key            keys (KEYS), as bytes                    binary
    value          body                                     binary
    topic          topic                                    string
    partition      queueId: unique on one broker only       int
    offset         queueOffset                              bigint
    timestamp      storeTimestamp                           timestamp
    timestampType  1: when the log took it                  int
    headers        properties, with includeHeaders=true     array<struct<key:string,value:binary>>

A reader makes the columns that the user's schema names, in its order.

The columns of the sink, and how rows become messages. Pure but for pyarrow.

    body (or value)      binary or string     what is sent; not null, not empty
    topic                string               not needed where the option `topic` is given, which goes before it
    tags, keys (or key)  string               keys: words separated by blanks
    shardingKey          string               rows with the same one go to the same queue, in order
    priority             int                  from 0 on: the queue with this number; not with a shardingKey or a time
    queueId, brokerName  int, string          the very queue, with the option keepQueues; else they are ignored
    delayLevel           int                  one of the broker's delays
    deliverTimestamp     timestamp or bigint  when it is delivered; milliseconds
    properties           map<string,string>   the application's own

What the source has besides (queueOffset, storeTimestamp, …) is a broker's to give: those columns are ignored, so that
what was read can be written as it is; so are properties that belong to brokers and producers. TAGS, KEYS,
__SHARDINGKEY and _SYS_MSG_PRIORITY_ among the properties count where their column is not there. Any other column is an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....client.message import Message, is_reserved
from ....client.queue import Queue
from ....proto.errors import ConfigError, InvalidArgument, PocketMQError
from ....proto.properties import KEY_SEPARATOR, KEYS, PRIORITY, SHARDING_KEY, TAGS, whole_number
from ....proto.record_run import as_bytes
from ...stores.scan.message_columns import MessageColumns
from ...stores.schemas import arrow, projected, schema_of
from .ranges import Fetched, Losses
from .row_keys import SPARK_SEQUENCE, row_key

if TYPE_CHECKING:
    import pyarrow

#: Kafka's column → ours that it is made of, and its type.
_KAFKA: Final = {
    "key": ("keys", "binary"),
    "value": ("body", "binary"),
    "topic": ("topic", "string"),
    "partition": ("queueId", "int32"),
    "offset": ("queueOffset", "int64"),
    "timestamp": ("storeTimestamp", "time"),
    "timestampType": ("queueId", "int32"),
    "headers": ("properties", "headers"),
}
_LOG_APPEND_TIME: Final = 1
#: A dataset of files has it, a broker serves no bad records.
_NOT_LIVE: Final = "badRecord"


def live_schema(style: str, *, headers: bool = False) -> pyarrow.Schema:
    """Return the schema with all columns of STYLE, "rocketmq" or "kafka"; that may have HEADERS."""
    if style == "rocketmq":
        return schema_of("messages")
    return _kafka_schema([name for name in _KAFKA if headers or name != "headers"])


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns NAMES in STYLE, of messages that lie on brokers."""

    names: tuple[str, ...]
    style: str = "rocketmq"

    @classmethod
    def of(cls, names: Iterable[str], style: str) -> Layout:
        """Return the layout of NAMES. Raises ConfigError, which names the column, for one that is not there."""
        layout = cls(tuple(names), style)
        layout.schema()
        return layout

    def schema(self) -> pyarrow.Schema:
        """Return the schema of its batches."""
        if self.style == "kafka":
            return _kafka_schema(self.names)
        if _NOT_LIVE in self.names:
            raise ConfigError(
                f"the live source has no column {_NOT_LIVE!r}: leave it out of the schema",
                field="schema",
                value=_NOT_LIVE,
            )
        return projected("messages", self.names)

    def batch(self, part: Fetched, losses: Losses) -> pyarrow.RecordBatch:
        """Return the messages of PART; a body that cannot be decompressed is a loss, and left out."""
        names = [_KAFKA[name][0] for name in self.names] if self.style == "kafka" else self.names
        broker = part.run.broker
        ours = MessageColumns(projected("messages", list(dict.fromkeys(names))), broker)
        columns = part.run.columns.take(slice(part.begin, part.end))

        def refuse(bodies: list[tuple[int, str]]) -> None:
            for row, why in bodies:
                offset = int(columns.queue_offset[row])
                losses.report(f"broker {broker}, queue offset {offset}: {why}")

        batch = ours.batch(as_bytes(part.run.data), columns, refuse)
        if self.style != "kafka":
            return batch
        arrays = [_as_kafka(name, batch.column(_KAFKA[name][0])) for name in self.names]
        return arrow().RecordBatch.from_arrays(arrays, schema=self.schema())


def _kafka_schema(names: Iterable[str]) -> pyarrow.Schema:
    fields = []
    for name in names:
        if name not in _KAFKA:
            raise ConfigError(
                f"schemaStyle=kafka has no column {name!r}: it has {', '.join(_KAFKA)}",
                field="schema",
                value=name,
            )
        fields.append((name, _kafka_type(_KAFKA[name][1])))
    return arrow().schema(fields)


def _kafka_type(kind: str) -> Any:
    pa = arrow()
    if kind == "time":
        return pa.timestamp("us", tz="UTC")
    if kind == "headers":
        return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.type_for_alias(kind)


def _as_kafka(name: str, ours: Any) -> Any:
    pa = arrow()
    if name == "key":
        return ours.cast(pa.binary())
    if name == "timestampType":
        return pa.array(np.full(len(ours), _LOG_APPEND_TIME, np.int32))
    if name == "headers":
        pairs = pa.StructArray.from_arrays(
            [ours.keys, ours.items.cast(pa.binary())], ["key", "value"]
        )
        return pa.ListArray.from_arrays(ours.offsets, pairs)
    return ours


# ---------------------------------------------------------------- the columns of the sink


_TEXT: Final = ("string",)
_WHOLE: Final = ("int", "bigint", "smallint", "tinyint")
#: Types by column, as Spark writes them.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT,
    "shardingKey": _TEXT,
    "priority": _WHOLE,
    "queueId": _WHOLE,
    "brokerName": _TEXT,
    "delayLevel": _WHOLE,
    "deliverTimestamp": ("timestamp", "bigint"),
    "properties": ("map<string,string>",),
}
ALIASES: Final = {"value": "body", "key": "keys"}
IGNORED: Final = frozenset(
    {
        "queueOffset",
        "physicalOffset",
        "storeSize",
        "storeTimestamp",
        "bornTimestamp",
        "bornHost",
        "storeHost",
        "flag",
        "sysFlag",
        "reconsumeTimes",
        "bodyCrc",
        "preparedTransactionOffset",
        "messageId",
        "rawProperties",
    }
)
#: Properties that count as columns where these are not there.
_AS_COLUMNS: Final = {"tags": TAGS, "keys": KEYS, "shardingKey": SHARDING_KEY}


def sink_columns(
    fields: Iterable[tuple[str, str]], topic: str, *, keep_queues: bool = False
) -> dict[str, int]:
    """Return where each column of the sink stands among FIELDS, names and Spark types. Raises ConfigError.

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
            raise ConfigError(f"column {column!r} is there twice, as {name!r} too", field=name)
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
        ignored |= {"queueId", "brokerName"}
    return {column: index for column, index in found.items() if column not in ignored}


@dataclass(frozen=True, slots=True)
class Rows:
    """Makes messages of the rows of the task TASK, whose COLUMNS stand where these say; TOPIC goes before a column."""

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
            sharding_key=row["shardingKey"] or None,
            priority=_priority(row, properties),
            queue=_queue(topic or "", row),
            delay_level=row.get("delayLevel") or 0,
            deliver_at=_instant(row.get("deliverTimestamp")),
            properties=own,
        )


def _priority(row: Mapping[str, Any], properties: Mapping[str, str]) -> int | None:
    """Return the priority of ROW; one among PROPERTIES counts where the row asks for nothing that excludes it."""
    if "priority" in row:
        return None if row["priority"] is None else int(row["priority"])
    if row["shardingKey"] or row.get("delayLevel") or row.get("deliverTimestamp") is not None:
        return None
    return whole_number(properties.get(PRIORITY) or "")


def _queue(topic: str, row: Mapping[str, Any]) -> Queue | int | None:
    number, broker = row.get("queueId"), row.get("brokerName")
    if number is None:
        return None
    return int(number) if broker is None else Queue(topic, broker, int(number))


def _instant(value: datetime | int | None) -> datetime | int | None:
    """Return VALUE; a timestamp of Spark's without a zone is in UTC, as Arrow brings it."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
