"""`pocketmq follow` and `promote` as commands: Ctrl-C and SIGTERM end them cleanly, and what is said is so."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.follow.note import read_note
from pocketmq.tools.follow.promote import promote

from ...runs import Hand, open_store
from .java_master import JavaMasterDouble
from .test_follower import cut_and_write, master_of, until

pytestmark = pytest.mark.processes


async def started(*words: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "pocketmq.tools.cli", "follow", *words)
    return await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)


async def until_said(process: asyncio.subprocess.Process, word: str) -> str:
    """Return the line of PROCESS that has WORD."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while line := (await process.stderr.readline()).decode():
            if word in line:
                return line
    raise AssertionError(f"nobody said {word}")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_following_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    store, _, _ = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path).start()
    ours = tmp_path / "ours"
    process = await started("--apache", master.address, "--rpc", master.rpc, str(ours))
    await until_said(process, ": following; ")
    note = None
    async with asyncio.timeout(30):
        while note is None or note.tables_end < store.max_log_offset:
            await asyncio.sleep(0.05)
            note = read_note(OsDisk(), str(ours))
    process.send_signal(number)
    said = await until_said(process, "has the log up to")
    assert f"{store.max_log_offset:,}" in said
    assert await process.wait() == 0
    assert not (ours / "abort").exists()
    serve = (
        sys.executable,
        "-m",
        "pocketmq.tools.cli",
        "serve",
        "--store",
        str(ours),
        "--nameserver-port",
        "0",
    )
    server = await asyncio.create_subprocess_exec(*serve, stderr=subprocess.PIPE)
    assert "follows the Java broker broker-a" in await until_said(server, "pocketmq promote")
    assert await server.wait() == 5
    await master.close()
    again = open_store(ours, now_ms=Hand(), replica=True)
    assert again.recovery.clean
    again.close()
    store.close()


@pytest.mark.long
async def test_another_log_is_taken_into_a_new_store_and_the_old_one_kept(tmp_path: Path) -> None:
    store, _, clock = master_of(tmp_path)
    master = await JavaMasterDouble(store, tmp_path).start()
    ours = tmp_path / "ours"
    words = ("--apache", master.address, "--rpc", master.rpc)
    process = await started(*words, str(ours))
    await until_said(process, " 0 behind")
    running = asyncio.ensure_future(process.wait())
    await until(lambda: max(master.reports) == store.max_log_offset, running)
    process.kill()
    await running
    await cut_and_write(master, clock)

    process = await started(*words, str(ours))
    said = await until_said(process, "--set-aside renames the store")
    assert said.startswith("pocketmq: ")
    assert await process.wait() == 5
    process = await started(*words, "--set-aside", str(ours))
    said = await until_said(process, "continuing with an empty one")
    aside = Path(said.partition("renamed the store to ")[2].partition(";")[0])
    assert aside.name.startswith("ours.set-aside-")
    await until_said(process, " 0 behind")
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 0
    assert (aside / "commitlog").is_dir()
    await master.close()
    done = await promote(OsDisk(), str(ours), 5, end=master.store.max_log_offset)
    assert done.end == master.store.max_log_offset
    master.store.close()
