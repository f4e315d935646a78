"""ZooKeeper itself for tests: one server, or three, from the jars that Maven fetches once.

ZOOKEEPER_BUILD says where the jars lie. Where Java or Maven is missing tests skip; in CI they fail.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from pocketmq.tools.zookeeper_server import Ports, ZooKeeperServer, find_jars, free_ports

HERE: Final = Path(__file__).resolve().parent
HOME: Final = Path(
    os.environ.get("ZOOKEEPER_BUILD") or HERE.parents[1] / ".dev" / "zookeeper"
).resolve()


def require_zookeeper() -> str:
    """Return the class path of a ZooKeeper, fetched first; skip the test where that cannot be, in CI fail it."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"ZooKeeper needs {', '.join(missing)}")
    HOME.mkdir(parents=True, exist_ok=True)
    pom = (HERE / "pom.xml").read_text(encoding="utf-8")
    stamp = HOME / "fetched-for.xml"
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Two runs may share the folder.
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != pom:
            command = ["mvn", "-q", "-B", f"-DoutputDirectory={HOME}/lib", "process-sources"]
            subprocess.run(command, cwd=HERE, check=True, stdin=subprocess.DEVNULL)
            stamp.write_text(pom, encoding="utf-8")
    return find_jars(HOME)


@contextmanager
def running(
    folder: Path, count: int = 1, more: Mapping[str, str] = {}
) -> Iterator[list[ZooKeeperServer]]:
    """COUNT servers that serve, their files in FOLDER: one alone, or an ensemble; MORE: further settings."""
    jars = require_zookeeper()
    numbers = iter(free_ports(3 * count))
    peers = [Ports(next(numbers), next(numbers), next(numbers)) for _ in range(count)]
    servers = [ZooKeeperServer(jars, folder / f"{n}", peers, n, more) for n in range(1, count + 1)]
    try:
        for server in servers:
            server.start()
        with ThreadPoolExecutor(
            1
        ) as thread:  # The fixture of an asynchronous test runs within its loop.
            thread.submit(asyncio.run, _all_serving(servers)).result()
        yield servers
    finally:
        for server in servers:
            server.kill()


def serving(servers: list[ZooKeeperServer]) -> None:
    """Wait until all SERVERS serve."""
    with ThreadPoolExecutor(
        1
    ) as thread:  # The fixture of an asynchronous test runs within its loop.
        thread.submit(asyncio.run, _all_serving(servers)).result()


async def _all_serving(servers: list[ZooKeeperServer]) -> None:
    await asyncio.gather(*(server.serving() for server in servers))
