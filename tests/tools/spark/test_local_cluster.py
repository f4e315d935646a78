"""What works in one process works on executors: `local-cluster` starts two JVMs besides the driver's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pocketmq.client import Admin, Message, Producer, PullConsumer

from ...recorded import expected, recorded_store
from ...served import ServerProcess
from .conftest import SMALL_JVM, require_spark

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("cluster_job.py")
COUNT = 2_000


def test_executors_read_stores_and_the_live_topic_and_write_another(tmp_path: Path) -> None:
    require_spark()
    recorded = recorded_store("rolled", tmp_path / "recorded")
    with ServerProcess(tmp_path / "store") as server:
        with Admin(server.nameserver) as admin:
            admin.create_topic("orders", queues=4)
            admin.create_topic("copy", queues=4)
        with Producer(server.nameserver) as producer:
            producer.send_many(Message("orders", b"%d" % at, queue=at % 4) for at in range(COUNT))

        job = subprocess.run(
            [
                *(sys.executable, str(SCRIPT), SMALL_JVM, server.nameserver),
                *(str(tmp_path / "store"), str(recorded), "orders", "copy"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=380,
            cwd=tmp_path,
            env=os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path), "SPARK_WORKER_DIR": str(tmp_path)},
        )

        assert job.returncode == 0, job.stderr[-3000:]
        (line,) = (one for one in job.stdout.splitlines() if one.startswith("found"))
        found = json.loads(line.removeprefix("found"))
        assert (found["both"], found["executors"]) == (COUNT, 2)
        assert sorted(copied(server)) == list(range(COUNT))
        check_datasets(found["recorded"])


def copied(server: ServerProcess) -> list[int]:
    found: list[int] = []
    with PullConsumer("check", "copy", nameservers=server.nameserver, start="earliest") as consumer:
        while len(found) < COUNT and (batch := consumer.poll(timeout_ms=10_000)):
            found += map(int, batch.bodies)
    return found


def check_datasets(counts: dict[str, int]) -> None:
    """Hold COUNTS of the recorded store's datasets to what Java wrote there."""
    document = expected("rolled")
    assert counts["messages"] == 3_000
    assert counts["consumequeue"] == 3_000
    assert counts["index"] == sum(one["indexCount"] - 1 for one in document["indexFiles"])
    assert counts["queues"] >= len([one for one in document["queues"] if one["entries"]])
    assert counts["offsets"] == sum(map(len, document["config"]["consumerOffsets"].values()))
    assert counts["files"] == len(document["filesBefore"])
