"""`pocketmq serve --clock virtual` and `pocketmq clock` as a user runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import ConnectionLost

from ..complaint import complaint
from ..served import ServerProcess
from .command import Shell, pocketmq

pytestmark = pytest.mark.processes


def clock(server: ServerProcess, *arguments: str) -> dict[str, Any]:
    (found,) = Shell(server.nameserver).done("clock", *arguments)
    return found


@pytest.mark.long
def test_time_stands_still_moves_when_told_and_is_kept_by_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ServerProcess(store, "--clock", "virtual") as server:
        assert server.ready["clock"] == "virtual"
        call = Shell(server.nameserver)
        before = clock(server, "now")
        call.done("topic", "create", "Orders")
        (sent,) = call.done("send", "Orders", "hello")
        after = clock(server, "advance", "1h30m")

        assert before["virtual"]
        assert clock(server, "now", "--broker", before["broker"]) == after
        assert clock(server, "now", "--broker", before["address"]) == after
        assert after["now_ms"] == before["now_ms"] + 5_400_000
        assert after["now"].endswith("Z")
        # Real clients live on in real time.
        (consumed,) = call.consumed("Orders", 1)
        assert consumed["message_id"] == sent["message_id"]
        assert consumed["stored_ms"] == before["now_ms"]

    with pytest.raises(ConnectionLost, match=r"code 5 before it served: .*--clock virtual"):
        ServerProcess(store)

    with ServerProcess(store, "--clock", "virtual") as server:
        assert clock(server, "now")["now_ms"] == after["now_ms"]

    with ServerProcess(store, "--force-clock") as server:
        assert not clock(server, "now")["virtual"]
    with ServerProcess(store) as server:
        assert server.ready["clock"] == "system"


@pytest.mark.long
def test_the_mark_survives_a_kill(tmp_path: Path) -> None:
    store = tmp_path / "store"
    server = ServerProcess(store, "--clock", "virtual")
    moved = clock(server, "advance", "3d")
    server.kill()

    with pytest.raises(ConnectionLost, match="code 5"):
        ServerProcess(store)
    with ServerProcess(store, "--clock", "virtual") as server:
        assert clock(server, "now")["now_ms"] == moved["now_ms"]


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store") as server:
        call = Shell(server.nameserver)
        for arguments, code, sentence in (
            (("advance", "1h"), 1, "start the broker with --clock virtual"),
            (("advance", "soon"), 2, "not a duration"),
            (("now", "--broker", "nobody"), 3, "'nobody' is not registered"),
        ):
            done = call("clock", *arguments)
            assert (done.code, done.out) == (code, "")
            assert sentence in complaint(done.err)
        done = call("clock", "now")
        assert done.code == 0
        assert done.out.splitlines()[0].split() == ["broker", "time", "milliseconds", "clock"]
        assert done.out.splitlines()[1].endswith("system")

    done = pocketmq("serve", "--clock", "virtual", "--force-clock")
    assert done.code == 2
    assert "--force-clock needs the system's clock" in done.err


def test_a_step_beyond_the_bound_is_wrong_usage(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--clock", "virtual") as server:
        done = Shell(server.nameserver)("clock", "advance", "4000d")

        assert done.code == 2
        assert "the limit is 3650d" in done.err
