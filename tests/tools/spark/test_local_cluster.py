"""Stores are read the same on executors that are processes of their own: nothing works only inside one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...recorded import expected, recorded_store
from .conftest import SMALL_JVM, require_spark

PROGRAM = """
import json, sys
from pocketmq.tools.spark import spark_session

spark = spark_session(
    "pocketmq-cluster-test",
    master="local-cluster[2,1,1024]",
    settings={
        "spark.driver.extraJavaOptions": sys.argv[2],
        "spark.executor.extraJavaOptions": sys.argv[2],
        "spark.driver.memory": "600m",
    },
)
counts = {}
for dataset in ("messages", "consumequeue", "index", "queues", "offsets", "files"):
    reader = spark.read.format("rocketmq-store").option("dataset", dataset)
    reader = reader.option("maxHashSlotNum", 500).option("maxIndexNum", 2000)
    counts[dataset] = reader.option("maxSplitBytes", 300_000).load(sys.argv[1]).count()
print(json.dumps(counts))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(400)
def test_executors_of_their_own_read_a_store(tmp_path: Path) -> None:
    require_spark()
    store = recorded_store("rolled", tmp_path / "store")

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store), SMALL_JVM],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path), "SPARK_WORKER_DIR": str(tmp_path)},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    document = expected("rolled")
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["messages"] == 3_000
    assert counts["consumequeue"] == 3_000
    assert counts["index"] == sum(one["indexCount"] - 1 for one in document["indexFiles"])
    assert counts["queues"] >= len([one for one in document["queues"] if one["entries"]])
    assert counts["offsets"] == sum(map(len, document["config"]["consumerOffsets"].values()))
    assert counts["files"] == len(document["filesBefore"])
