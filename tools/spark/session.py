"""A Spark session that PocketMQ's data sources and jobs run in.

`spark_session()` takes care of what a first try fails over: a Java that Spark can start, workers that run this
Python and not the system's, addresses of the loopback interface in local mode, Arrow, and the switch without which
Spark refuses data sources that take filters. In an existing session, call `register(spark)`: it does
what can still be done there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...proto.errors import ConfigError
from ...proto.extras import pip_install
from ..java import find_java, home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION_MIN: Final = (4, 2)
_LOOPBACK: Final = "127.0.0.1"
#: Spark refuses a data source that takes filters unless this is "true".
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

#: Every session has these; the caller's own settings win.
SETTINGS: Final[Mapping[str, str]] = {
    PUSHDOWN: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
#: A session on this machine alone has these too: loopback, and tasks for a few cores instead of 200.
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.sql.shuffle.partitions": "4",
}


def require_pyspark() -> None:
    """Raise ConfigError, which says what to install, unless PySpark is here and new enough."""
    try:
        import pyspark
        import pyspark.sql  # without its own extras PySpark fails only here
    except ImportError as error:
        raise ConfigError(
            f"Spark needs pyspark, pandas and pyarrow ({error}): {pip_install('spark')}",
            field="pyspark",
        ) from error
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < VERSION_MIN:
        raise ConfigError(
            f"pyspark {pyspark.__version__} is too old, 4.2 is the least: {pip_install('spark')}",
            field="pyspark",
            value=pyspark.__version__,
            limit="4.2",
        )


def spark_session(
    name: str = "pocketmq",
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session NAME on MASTER with PocketMQ's formats registered; the one that runs already, if one does.

    SETTINGS are of Spark, and override those of this module. Raises ConfigError without PySpark ≥ 4.2 or without a
    Java: the sentence says what to install. Sets JAVA_HOME, PYSPARK_PYTHON and SPARK_LOCAL_IP for this process
    where they are not set, or do not work.
    """
    require_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    chosen = settings_of(master, settings or {}, os.environ)
    if SparkContext._active_spark_context is None:
        prepare_environment(os.environ, master)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def settings_of(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return all settings of a session on MASTER: those of this module, then SETTINGS."""
    chosen = dict(SETTINGS)
    if master.startswith("local"):
        chosen |= LOCAL_SETTINGS
        if environment.get("PYTHONPATH"):  # executors of local-cluster do not inherit it
            chosen["spark.executorEnv.PYTHONPATH"] = environment["PYTHONPATH"]
    return chosen | dict(settings)


def prepare_environment(environment: Any, master: str) -> None:
    """Set in ENVIRONMENT what the JVM and the Python workers of a session on MASTER are started with."""
    environment["JAVA_HOME"] = str(home_for_spark(find_java(environment)))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", _LOOPBACK)


def formats() -> list[type]:
    """Return the data sources that `register` registers; imported late, as they need PySpark."""
    return [load() for load in _FORMATS]


def _live() -> type:
    from .live.source import LiveSource

    return LiveSource


def _store() -> type:
    from .store_source import StoreSource

    return StoreSource


_FORMATS: Final[list[Callable[[], type]]] = [_live, _store]


def register(spark: SparkSession) -> None:
    """Make PocketMQ's formats known to SPARK, and let it hand filters to them."""
    spark.conf.set(PUSHDOWN, "true")
    for source in formats():
        spark.dataSource.register(source)
