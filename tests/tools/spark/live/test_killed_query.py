"""A query that is killed again and again, with everything that belongs to it, reads each message once.

POCKETMQ_SPARK_KILLS says how often (3). The first kill comes in the first batch, others after a random number of
batches, so somewhere in the next one. A very busy machine may keep Spark from starting its Python within the ten
seconds that it gives it: such a process is begun again, as whoever watches over a query would do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from pocketmq.client import Admin

from ....served import ServerProcess
from ..conftest import require_spark
from .load import Load

KILLS = int(os.environ.get("POCKETMQ_SPARK_KILLS", "3"))

#: A start takes some ten seconds of a machine that has nothing else to do.
pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.timeout(300 + 200 * KILLS),
]

SCRIPT = Path(__file__).with_name("stream_to_parquet.py")
TOPIC = "killed"
#: What Spark says when it waited for its Python in vain.
_TOO_BUSY = "failed to connect back"
_STARTS_MAX = 5


class Query:
    """The query in processes of its own, begun again when it ends by itself for want of time."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._log = folder / "query.log"
        self._process: subprocess.Popen[str] | None = None

    def run_until(self, line: str, *finish: str, times: int = 1) -> str:
        """Begin; return what it says when a line that begins with LINE has come so many TIMES."""
        for _ in range(_STARTS_MAX):
            self._start(*finish)
            found = self._until(line, times)
            if len(found) == times:
                return found[-1]
            self.kill()
            assert _TOO_BUSY in self._log.read_text(), self._log.read_text()
            self._log.unlink()
        raise AssertionError("the query did not come up")

    def _until(self, line: str, times: int) -> list[str]:
        assert self._process is not None
        assert self._process.stdout is not None
        return list(islice((one for one in self._process.stdout if one.startswith(line)), times))

    def _start(self, *finish: str) -> None:
        where = self._server.nameserver, TOPIC, str(self._folder)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *where, *finish],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End Python, the JVM and all workers as `kill -9` does; nothing if they have ended."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait(60)
        self._process = None


def test_a_query_that_is_killed_again_and_again_reads_each_message_once(tmp_path: Path) -> None:
    require_spark()
    random = Random(1)
    with ServerProcess(tmp_path / "store") as server, contextlib.ExitStack() as stack:
        with Admin(server.nameserver) as admin:
            admin.create_topic(TOPIC, queues=4)
        query = Query(server, tmp_path)
        stack.callback(query.kill)
        query.run_until("waiting")
        with Load(server.nameserver, TOPIC, rate=3) as load:
            assert load.begun.wait(60)
            query.kill()
            for _ in range(KILLS - 1):
                query.run_until("batch", times=random.randrange(1, 4))
                query.kill()
        read = query.run_until("read", "--finish")

    assert json.loads(read.removeprefix("read")) == list(range(load.count))
    assert load.count > 0
