"""Celery's own worker processes on PocketMQ: one that is killed loses no task, control reaches them, retries come."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pocketmq.tools.testing.local_broker import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

pytest.importorskip("celery")

TASKS = 1_000
LEASE_S = 10
PATIENCE_S = 120
HERE = Path(__file__).parent

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The application, at a broker with short leases."""
    options = BrokerOptions(clock="system", broker={"invisible_min_ms": 1_000})
    with LocalBroker(tmp_path / "kit", options) as broker:
        monkeypatch.setenv("SHOP_BROKER", f"pocketmq://{broker.endpoint}")
        monkeypatch.setenv("SHOP_LEASE_S", str(LEASE_S))
        monkeypatch.setenv("SHOP_LOG", str(tmp_path / "log"))
        monkeypatch.syspath_prepend(str(HERE))
        module = importlib.import_module("shop")
        yield module
        module.app.close()
        del sys.modules["shop"]


@contextmanager
def worker(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with two processes, in a process group of its own."""
    arguments = ["-A", "shop", "worker", "-c", "2", "-l", "WARNING", "-n", f"{name}@test"]
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *arguments],
            cwd=HERE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(what: Callable[[], object], folder: Path) -> None:
    end_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not what():
        if time.monotonic() > end_s:
            logs = "\n".join(one.read_text()[-2000:] for one in folder.glob("*.log"))
            pytest.fail(f"not within {PATIENCE_S} s: {lines(folder)[-20:]}\n{logs}")
        pause.wait(0.05)


def lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_a_worker_that_is_killed_loses_none_of_a_thousand_tasks(shop: Any, tmp_path: Path) -> None:
    with shop.app.producer_pool.acquire() as producer:
        for number in range(TASKS):
            shop.handle.apply_async((number,), producer=producer)
        with worker("first", tmp_path) as first:
            until(lambda: len(lines(tmp_path)) >= TASKS // 5, tmp_path)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        shop.handle.apply_async((TASKS,), producer=producer)
    with worker("second", tmp_path) as second:
        until(lambda: len(set(lines(tmp_path))) > TASKS, tmp_path)
        second.terminate()
        assert second.wait(PATIENCE_S) == 0
    assert set(lines(tmp_path)) == {str(number) for number in range(TASKS + 1)}


def test_a_task_that_is_due_after_it_expires_is_revoked(shop: Any, tmp_path: Path) -> None:
    with worker("only", tmp_path) as only:
        shop.handle.apply_async((5,), countdown=3, expires=1)
        shop.handle.apply_async((6,), countdown=3, expires=600)
        until(lambda: {"revoked 5 expired", "6"} <= set(lines(tmp_path)), tmp_path)
        only.terminate()
        only.wait(PATIENCE_S)
    assert sorted(lines(tmp_path)) == ["6", "revoked 5 expired"]


def test_a_task_longer_than_its_lease_runs_once_and_a_retry_comes_later(
    shop: Any, tmp_path: Path
) -> None:
    with worker("only", tmp_path) as only:
        shop.fails_twice.delay("x")
        shop.handle.delay(7, takes_s=LEASE_S + 4)
        until(lambda: shop.app.control.ping(timeout=1), tmp_path)
        late = shop.handle.apply_async((8,), countdown=LEASE_S / 2)
        shop.app.control.revoke(late.id)
        until(lambda: {"7", "revoked 8"} <= set(lines(tmp_path)), tmp_path)
        only.terminate()
        only.wait(PATIENCE_S)
    assert Counter(lines(tmp_path)) == Counter(["x 0", "x 1", "x 2", "7", "revoked 8"])
