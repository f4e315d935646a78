"""`bench tasks`: Celery and dramatiq on PocketMQ, and in the same run on Redis, where that is there.

One process publishes tasks for some seconds, each acknowledged; then one worker runs them all: Celery's with two
processes, dramatiq's with one of eight threads. A task writes a byte, so that the first and the last are seen. Redis
keeps what it has in memory here, without files. PocketMQ writes each task to its log, and syncs now and then.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ...proto.errors import ConfigError, PocketMQError
from ...proto.extras import pip_install
from ..server_process import ServerProcess
from ..zookeeper_server import free_ports
from .measure import BenchConditions, Figure

#: Environment variables for the worker's process, which imports this module as well.
_ADDRESS: Final = "POCKETMQ_BENCH_TASKS"
_LOG: Final = "POCKETMQ_BENCH_TASKS_LOG"
_PATIENCE_S: Final = 120.0
_LOOK_S: Final = 0.005
_PROCESSES: Final = 2
_THREADS: Final = 8
_MODULE: Final = "pocketmq.tools.bench.tasks"
#: Its worker's command.
_WORKERS: Final = {
    "celery": ("-m", "celery", "-A", f"{_MODULE}:celery_app", "worker", "-c", str(_PROCESSES), "-l", "ERROR"),
    "dramatiq": ("-m", "dramatiq", f"{_MODULE}:dramatiq_broker", "--processes", "1", "--threads", str(_THREADS)),
}  # fmt: skip


def tasks(conditions: BenchConditions) -> Figure:
    """Measure publishing and running of tasks."""
    for name in _WORKERS:
        if find_spec(name) is None:
            raise ConfigError(
                f"tasks need {name}, which is not installed: {pip_install(name)}",
                field=name,
            )
    figure = Figure(
        name="tasks",
        what=f"tasks that Celery's worker of {_PROCESSES} processes runs; below, dramatiq's of {_THREADS} threads",
    )
    missing = _missing_for_redis()
    if missing:
        figure.notes.append(f"not compared with Redis: {missing}")
    for name in _WORKERS:
        with ServerProcess(conditions.folder / name) as server:
            ours = _measured(name, server.ready["broker"], "pocketmq", conditions)
        rates = {"pocketmq": ours}
        if not missing:
            with _redis(conditions.folder) as address:
                rates["redis"] = _measured(name, address, "redis", conditions)
        for at, kind in enumerate(("published", "run")):
            told = ", ".join(f"{rate[at]:,.0f} on {broker}" for broker, rate in rates.items())
            figure.notes.append(f"{name}: {kind} per second: {told}")
            for broker, rate in rates.items():
                figure.facts[f"{name}_{kind}_per_second_on_{broker}"] = rate[at]
        if name == "celery":
            figure.messages_per_second = ours[1]
            if not missing:
                figure.compare("redis_per_second", rates["redis"][1], ours[1])
    return figure


def _missing_for_redis() -> str:
    """Return what Redis needs and is not there; "": nothing."""
    if shutil.which("redis-server") is None:
        return "no redis-server on the path"
    return "its client is missing: pip install redis" if find_spec("redis") is None else ""


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """Redis on a free port, with nothing in it, and no files."""
    (port,) = free_ports(1)
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
    with subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL) as process:
        try:
            _until(lambda: _answers(port), "Redis did not come up")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    redis = importlib.import_module("redis")
    try:
        return bool(redis.Redis(port=port).ping())
    except redis.exceptions.ConnectionError:
        return False


def _measured(
    name: str, address: str, broker: str, conditions: BenchConditions
) -> tuple[float, float]:
    """Return how many tasks of framework NAME were published a second at ADDRESS of BROKER, and how many were run."""
    log = conditions.folder / f"{name}-{broker}.ran"
    log.touch()
    environment = {_ADDRESS: f"{broker}://{address}", _LOG: str(log)}
    os.environ.update(environment)
    try:
        publish = _PUBLISHERS[name]()
        publish()
        began = time.perf_counter()
        count = 1
        while time.perf_counter() - began < conditions.seconds:
            publish()
            count += 1
        published = (count - 1) / (time.perf_counter() - began)
        return published, _run_rate(name, log, count)
    finally:
        for variable in environment:
            os.environ.pop(variable)


def _run_rate(name: str, log: Path, count: int) -> float:
    """Return how many of COUNT tasks a worker ran a second, from the first to the last."""
    said = log.with_suffix(".log")
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *_WORKERS[name]],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _until(lambda: log.stat().st_size or process.poll() is not None, "no task was run")
        first, begun = time.perf_counter(), log.stat().st_size
        _until(
            lambda: log.stat().st_size >= count or process.poll() is not None,
            f"not all of {count} tasks were run",
        )
        seconds = time.perf_counter() - first
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if log.stat().st_size < count:
        raise PocketMQError(f"the worker of {name} ended: {said.read_text()[-500:]}")
    # If all ran between two looks, this is the longest possible time.
    return ((count - begun) or count) / max(seconds, _LOOK_S)


def _until(holds: Callable[[], object], otherwise: str) -> None:
    end, pause = time.perf_counter() + _PATIENCE_S, threading.Event()
    while not holds():
        if time.perf_counter() > end:
            raise PocketMQError(f"{otherwise} within {_PATIENCE_S:g} s")
        pause.wait(_LOOK_S)


def __getattr__(name: str) -> Any:
    """Create the app that the command of a worker names; the environment names its broker."""
    if name not in ("celery_app", "dramatiq_broker") or _ADDRESS not in os.environ:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _celery()[0] if name == "celery_app" else _dramatiq()[0]


def note(number: int) -> None:
    """Be a task: write a byte."""
    log = os.open(os.environ[_LOG], os.O_WRONLY | os.O_APPEND)
    os.write(log, b".")
    os.close(log)


def _celery() -> tuple[Any, Any]:
    """Return an application, and its task."""
    celery = importlib.import_module("celery")
    address = os.environ[_ADDRESS]
    if address.startswith("pocketmq"):
        importlib.import_module("pocketmq.tools.frameworks.kombu_transport")
    app = celery.Celery("bench", broker=address, set_as_current=False)
    app.conf.update(
        task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True
    )
    return app, app.task(name="note")(note)


def _celery_publisher() -> Callable[[], object]:
    app, task = _celery()
    producer = app.amqp.Producer(app.connection_for_write(), auto_declare=True)
    return lambda: task.apply_async((1,), producer=producer)


def _dramatiq() -> tuple[Any, Any]:
    """Return a broker, and its actor."""
    dramatiq = importlib.import_module("dramatiq")
    kind, _, address = os.environ[_ADDRESS].partition("://")
    if kind == "pocketmq":
        own = importlib.import_module("pocketmq.tools.frameworks.dramatiq_broker")
        broker = own.PocketmqBroker(address)
    else:
        redis = importlib.import_module("dramatiq.brokers.redis")
        broker = redis.RedisBroker(url=os.environ[_ADDRESS])
    return broker, dramatiq.actor(note, broker=broker, actor_name="note")


def _dramatiq_publisher() -> Callable[[], object]:
    _, actor = _dramatiq()
    return lambda: actor.send(1)


_PUBLISHERS: Final = {"celery": _celery_publisher, "dramatiq": _dramatiq_publisher}
