"""One Spark session for all tests that ask for `spark`: two local cores, a JVM that starts fast and stays small.

Without PySpark or a Java these tests skip; in CI (the environment variable CI) they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.java import find_java
from pocketmq.tools.spark import spark_session
from pocketmq.tools.spark.session import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Only the first compiler, and one thread for garbage: half the CPU time of a start.
SMALL_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
TEST_SETTINGS: Final = {
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.executor.extraJavaOptions": SMALL_JVM,
    "spark.driver.memory": "600m",
    "spark.sql.shuffle.partitions": "2",
}


def require_spark() -> None:
    """Skip the test where Spark cannot run; in CI fail it."""
    try:
        require_pyspark()
        find_java(os.environ)
    except ConfigError as error:
        if os.environ.get("CI"):
            pytest.fail(error.message)
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two local cores, which every test of this process shares. Needs the marker `spark`."""
    require_spark()
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = spark_session(
        "pocketmq-tests",
        master="local[2]",
        settings=TEST_SETTINGS | {"spark.sql.warehouse.dir": str(warehouse)},
    )
    yield session
    session.stop()
