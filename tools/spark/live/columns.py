"""The columns of the live source: those of every dataset of messages, or Kafka's names for them.

    Kafka's        is                                    type
    key            keys (KEYS), as bytes                 binary
    value          body                                  binary
    topic          topic                                 string
    partition      queue: unique on one broker only      int
    offset         queue_offset                          bigint
    timestamp      store_timestamp                       timestamp
    timestampType  1: when the log took it               int
    headers        properties, with includeHeaders=true  array<struct<key:string,value:binary>>

A reader makes the columns that the user's schema names, in its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....proto.errors import ConfigError
from ....proto.record_run import as_bytes
from ...stores.scan.message_columns import MessageColumns
from ...stores.schemas import arrow, projected, schema_of
from .losses import Losses
from .range_reading import Fetched

if TYPE_CHECKING:
    import pyarrow

#: Column of Kafka's source: the column of PocketMQ that it is made of, and its type.
_KAFKA: Final = {
    "key": ("keys", "binary"),
    "value": ("body", "binary"),
    "topic": ("topic", "string"),
    "partition": ("queue", "int32"),
    "offset": ("queue_offset", "int64"),
    "timestamp": ("store_timestamp", "time"),
    "timestampType": ("queue", "int32"),
    "headers": ("properties", "headers"),
}
_LOG_APPEND_TIME: Final = 1
#: A dataset of files has it, a broker serves no bad records.
_NOT_LIVE: Final = "bad_record"


def live_schema(style: str, *, headers: bool = False) -> pyarrow.Schema:
    """Return the schema with all columns of STYLE, "rocketmq" or "kafka"; that may have HEADERS."""
    if style == "rocketmq":
        return schema_of("messages")
    return _kafka_schema([name for name in _KAFKA if headers or name != "headers"])


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns NAMES in STYLE, of messages that are on brokers."""

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
