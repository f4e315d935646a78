"""`pocketmq serve --clock virtual` and `pocketmq clock` as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import Disconnected
from pocketmq.tools.server_process import ServerProcess

pytestmark = pytest.mark.processes


def pocketmq(server: ServerProcess, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pocketmq.tools.cli", *arguments],
        env=os.environ | {"POCKETMQ_NAMESERVER": server.nameserver},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def clock(server: ServerProcess, *arguments: str) -> dict[str, Any]:
    code, out, error = pocketmq(server, "clock", *arguments, "--json")
    assert (code, error) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_time_stands_still_moves_when_told_and_is_kept_by_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ServerProcess(store, "--clock", "virtual") as server:
        assert server.ready["clock"] == "virtual"
        before = clock(server, "now")
        pocketmq(server, "topic", "create", "Orders")
        sent = json.loads(pocketmq(server, "send", "Orders", "hello", "--json")[1])
        after = clock(server, "advance", "1h30m")

        assert before["virtual"]
        assert clock(server, "now", "--broker", before["broker"]) == after
        assert clock(server, "now", "--broker", before["address"]) == after
        assert after["now_ms"] == before["now_ms"] + 5_400_000
        assert after["now"].endswith("Z")
        # Real clients live on in real time.
        _, consumed, _ = pocketmq(
            server, "consume", "Orders", "--group", "g", "--count", "1", "--timeout", "10", "--json"
        )
        assert json.loads(consumed)["message_id"] == sent["message_id"]
        assert json.loads(consumed)["stored_ms"] == before["now_ms"]

    with pytest.raises(Disconnected, match=r"code 5 before it served: .*--clock virtual"):
        ServerProcess(store)

    with ServerProcess(store, "--clock", "virtual") as server:
        assert clock(server, "now")["now_ms"] == after["now_ms"]

    with ServerProcess(store, "--force-clock") as server:
        assert not clock(server, "now")["virtual"]
    with ServerProcess(store) as server:
        assert server.ready["clock"] == "system"


def test_the_mark_survives_a_kill(tmp_path: Path) -> None:
    store = tmp_path / "store"
    server = ServerProcess(store, "--clock", "virtual")
    moved = clock(server, "advance", "3d")
    server.kill()

    with pytest.raises(Disconnected, match="code 5"):
        ServerProcess(store)
    with ServerProcess(store, "--clock", "virtual") as server:
        assert clock(server, "now")["now_ms"] == moved["now_ms"]


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store") as server:
        for arguments, code, sentence in (
            (("advance", "1h"), 1, "start it with --clock virtual"),
            (("advance", "soon"), 2, "no length of time"),
            (("now", "--broker", "nobody"), 3, "'nobody' is not registered"),
        ):
            found, out, error = pocketmq(server, "clock", *arguments)
            assert (found, out, error.count("\n")) == (code, "", 1)
            assert sentence in error
        code, out, _ = pocketmq(server, "clock", "now")
        assert code == 0
        assert out.splitlines()[0].split() == ["broker", "time", "milliseconds", "clock"]
        assert out.splitlines()[1].endswith("system")

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pocketmq.tools.cli",
            "serve",
            "--clock",
            "virtual",
            "--force-clock",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--force-clock is for the system's clock" in done.stderr


def test_a_step_beyond_the_bound_is_wrong_usage(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--clock", "virtual") as server:
        code, _, error = pocketmq(server, "clock", "advance", "4000d")

        assert code == 2
        assert "ten years" in error
