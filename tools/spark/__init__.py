"""PocketMQ on Apache Spark: a session, data sources, jobs. Needs the extra `spark` and a Java."""

from .live.row_keys import without_repeats
from .session import register, spark_session

__all__ = ["spark_session", "register", "without_repeats"]
