"""Replicas in network namespaces: what is cut is lost on the wire, and arrives when it is mended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .namespaces import check

ROOT = Path(__file__).resolve().parents[2]
#: Prints what a replica's lines are at the hub: one before a cut, none amid it, that one and the next behind it.
SCRIPT = """
import os, socket
from tests.campaigns.links import CLIENTS
from tests.campaigns.namespaces import enter, hub

try:
    network = hub(2)
    links = network.__enter__()
except OSError as error:
    print("no namespaces:", error)
    raise SystemExit
try:
    listening = socket.create_server((links.host_of(CLIENTS), 0))
    port = listening.getsockname()[1]
    orders, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(say)
        exec(links.entering("replica-1"))
        dialled = socket.create_connection((links.host_of(CLIENTS), port))
        while line := os.read(orders, 1):
            dialled.sendall(line)
        os._exit(0)
    os.close(orders)
    listening.settimeout(60)
    try:
        heard, (host, _) = listening.accept()
    except TimeoutError:
        print("no namespaces: nothing is forwarded")
        os.kill(child, 9)
        raise SystemExit
    heard.settimeout(60)
    assert host == links.host_of("replica-1"), host
    os.write(say, b"a")
    assert heard.recv(9) == b"a"
    links.cut("replica-2", ["replica-1"])
    os.write(say, b"b")
    assert heard.recv(9) == b"b", "another pair was cut"
    links.cut("replica-1", [CLIENTS])
    os.write(say, b"c")
    heard.settimeout(0.3)
    try:
        raise SystemExit(f"it arrived: {heard.recv(9)}")
    except TimeoutError:
        pass
    links.mend()
    os.write(say, b"d")
    heard.settimeout(60)
    found = b""
    while len(found) < 2:
        found += heard.recv(9)
    os.close(say)
    os.waitpid(child, 0)
    print("found", found.decode())
finally:
    network.__exit__(None, None, None)
"""


@pytest.mark.processes
@pytest.mark.skipif(check() is not None, reason=str(check()))
def test_what_is_cut_is_lost_until_it_is_mended() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )

    if done.stdout.startswith("no namespaces"):
        pytest.skip(done.stdout)
    assert (done.stdout, done.stderr) == ("found cd\n", "")


def test_without_root_or_ip_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "install iproute2" in (check() or "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "need root" in (check() or "")
