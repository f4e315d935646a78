"""The types of the columns that a user asks a Spark format for, as `.schema("topic string, …")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...proto.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow


def check_types(asked: StructType, ours: pyarrow.Schema, of: str = "") -> None:
    """Raise ConfigError unless the columns ASKED have the types in OURS. OF names their owner."""
    for one, own in zip(asked.fields, from_arrow_schema(ours).fields, strict=True):
        asked_type, own_type = one.dataType.simpleString(), own.dataType.simpleString()
        if asked_type != own_type:
            raise ConfigError(
                f"column {one.name}{of} is {own_type}, not {asked_type}: correct the schema, and cast afterwards",
                field="schema",
                value=asked_type,
            )
