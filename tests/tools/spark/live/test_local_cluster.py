"""What works in one process works on executors: `local-cluster` starts two JVMs besides the driver's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pocketmq.client import Admin, Message, Producer, PullConsumer
from pocketmq.tools.server_process import ServerProcess

from ..conftest import require_spark

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("cluster_job.py")
COUNT = 2_000


def test_executors_read_the_store_and_the_live_topic_and_write_another(tmp_path: Path) -> None:
    require_spark()
    store = tmp_path / "store"
    with ServerProcess(store) as server:
        with Admin(server.nameserver) as admin:
            admin.create_topic("orders", queues=4)
            admin.create_topic("copy", queues=4)
        with Producer(server.nameserver) as producer:
            producer.send_many(Message("orders", b"%d" % at, queue=at % 4) for at in range(COUNT))

        job = subprocess.run(
            [sys.executable, str(SCRIPT), server.nameserver, str(store), "orders", "copy"],
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

        assert job.returncode == 0, job.stderr
        (line,) = (one for one in job.stdout.splitlines() if one.startswith("found"))
        found = json.loads(line.removeprefix("found"))
        assert found == {"both": COUNT, "executors": 2}
        assert sorted(copied(server)) == list(range(COUNT))


def copied(server: ServerProcess) -> list[int]:
    found: list[int] = []
    with PullConsumer("check", "copy", nameservers=server.nameserver, start="earliest") as consumer:
        while len(found) < COUNT and (batch := consumer.poll(timeout_ms=10_000)):
            found += map(int, batch.bodies)
    return found
