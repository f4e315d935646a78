"""The format `rocketmq`: `spark.read`, `spark.readStream`, `write` and `writeStream`. Needs pyspark.

Options are read where a reader or writer is made, on the driver, so that a wrong one is an error before anything runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ..column_types import check_types
from .columns import Layout, live_schema
from .read_options import read_options, schema_options
from .readers import LiveReader, LiveStreamReader
from .sink import BatchSink, StreamSink
from .sink_columns import sink_columns
from .write_options import WriteOptions, refuse_overwrite, write_options

if TYPE_CHECKING:
    from .columns import Layout


class LiveSource(DataSource):
    """A live cluster."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        style, headers = schema_options(self.options)
        return from_arrow_schema(live_schema(style, headers=headers))

    def reader(self, schema: StructType) -> LiveReader:
        options = read_options(self.options, streaming=False)
        return LiveReader(options, _layout(schema, options.style))

    def streamReader(self, schema: StructType) -> LiveStreamReader:
        options = read_options(self.options, streaming=True)
        return LiveStreamReader(options, _layout(schema, options.style))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        refuse_overwrite(overwrite)
        options = write_options(self.options)
        return BatchSink(options, _columns(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        refuse_overwrite(overwrite)
        options = write_options(self.options)
        return StreamSink(options, _columns(schema, options))


def _layout(schema: StructType, style: str) -> Layout:
    """Return the layout of SCHEMA. Raises ConfigError for an unknown or wrong column."""
    layout = Layout.of(schema.fieldNames(), style)
    check_types(schema, layout.schema())
    return layout


def _columns(schema: StructType, options: WriteOptions) -> dict[str, int]:
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return sink_columns(fields, options.topic, keep_queues=options.keep_queues)
