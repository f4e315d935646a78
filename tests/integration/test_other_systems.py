"""Processes from which is taken what Linux has and others lack: macOS, by a `sitecustomize`, and Windows' imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer, AsyncPullConsumer, Message

from ..served import ServerProcess

pytestmark = pytest.mark.processes

#: What macOS has not; what it has besides counts its calls in a file.
MACOS = """
import fcntl, os
for name in ("fdatasync", "posix_fallocate", "copy_file_range", "memfd_create", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
for name in [name for name in vars(fcntl) if name.startswith("F_OFD_")]:
    delattr(fcntl, name)
fcntl.F_FULLFSYNC = 51
known = fcntl.fcntl
def call(fd, command, argument=0):
    if command != 51:
        return known(fd, command, argument)
    os.fsync(fd)
    with open(os.environ["FULL_SYNCS"], "ab") as counted:
        counted.write(b".")
    return 0
fcntl.fcntl = call
"""

#: What Windows has not, as far as modules use it when they are imported.
WINDOWS = """
import asyncio, ctypes, importlib, logging.handlers, multiprocessing, subprocess, tempfile, threading
import mmap, os, signal, sys
import click, google.protobuf.message, numpy, yaml
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty"):
    sys.modules[name] = None
for name in [name for name in vars(mmap) if name.startswith(("MAP_", "MADV_", "PROT_"))]:
    delattr(mmap, name)
for name in ("SIGHUP", "SIGKILL", "SIGCONT", "SIGSTOP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGQUIT"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in (
    "fork", "pread", "pwrite", "fdatasync", "posix_fallocate", "copy_file_range", "memfd_create", "statvfs",
    "sysconf", "getuid", "geteuid", "O_CLOEXEC", "O_DIRECTORY", "SEEK_DATA", "SEEK_HOLE", "sync", "mkfifo",
):
    if hasattr(os, name):
        delattr(os, name)
import pkgutil
import pocketmq
seen = 0
for package in ("client", "nameserver", "proto", "tools"):
    root = importlib.import_module("pocketmq." + package)
    for found in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
        if any(part in found.name for part in (".spark", ".gen.", "grpcio", ".bench", ".testing")):
            continue
        importlib.import_module(found.name)
        seen += 1
print(seen)
"""


@pytest.fixture
def on_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have processes that begin lack what macOS has not; return the file that counts full syncs."""
    folder = tmp_path / "macos"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(MACOS, encoding="utf-8")
    counted = tmp_path / "full-syncs"
    counted.touch()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FULL_SYNCS", str(counted))
    return counted


@pytest.mark.long
async def test_a_broker_keeps_what_it_acknowledged_and_its_lock_without_linux(
    tmp_path: Path, on_macos: Path
) -> None:
    store = tmp_path / "store"
    with ServerProcess(store) as server:
        before = size_of(on_macos)
        async with AsyncAdmin(server.nameserver) as admin:
            await admin.create_topic("orders", queues=1)
        async with AsyncProducer(server.nameserver, acks="disk") as producer:
            await producer.send(Message("orders", b"kept", keys=["one"]))
        assert size_of(on_macos) > before, "what is on the disk was synced fully"

        second = pocketmq_process("broker", "--store", str(store), "--port", "0")
        assert second.returncode != 0
        assert "is locked by another broker" in second.stderr
        looked = pocketmq_process("inspect", str(store))
        assert "a broker has it open" in looked.stdout, looked

        server.kill()
    with ServerProcess(store) as server:
        async with AsyncPullConsumer("readers", ["orders"], server.nameserver) as reader:
            batch = await reader.poll(60_000)
        assert [one.body for one in batch] == [b"kept"]
        assert server.stop() == 0
    assert "stopped cleanly" in pocketmq_process("inspect", str(store)).stdout


def size_of(path: Path) -> int:
    return path.stat().st_size


def pocketmq_process(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pocketmq.tools.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=os.environ
    )


@pytest.mark.long
def test_clients_name_servers_and_tools_are_imported_without_what_windows_lacks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200
