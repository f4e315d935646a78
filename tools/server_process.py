"""Servers in processes of their own: started, measured, watched, ended; one for a tool or a test, or several together.

A server says on standard output when it serves: a line `ready ` and a JSON object with its addresses. Its standard
error goes to a file next to the store, and is quoted when the server does not come up. It speaks plaintext, and so do,
from then on, clients of this process without other options: the environment's TLS is for servers elsewhere.
A *child* instead shares the standard error of this process, is out of reach of its terminal's Ctrl-C, and stops when
its standard input ends, as it does when this process is gone.

What a process has used comes from /proc: CPU seconds from `stat`, resident memory from `status`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..proto.errors import ConnectionLost, PocketMQError
from ..proto.tls import TLS_VARIABLES
from .options import READY

#: How long a stop may take.
STOP_S: Final = 120.0
_LOOK_S: Final = 0.2


class ServerProcess:
    """Runs `pocketmq VERB ARGUMENTS` and waits until it serves; ports are free ones unless given.

    PROGRAM: what Python runs as `pocketmq`;  STARTED: called with the process id first;  WAITS: for it to
    serve;  IS_CHILD: see above.
    """

    def __init__(
        self,
        store: Path | None,
        *arguments: str,
        verb: str = "serve",
        log: Path | None = None,
        program: Sequence[str] = ("-m", "pocketmq.tools.cli"),
        started: Callable[[int], object] = lambda pid: None,
        waits: bool = True,
        is_child: bool = False,
    ) -> None:
        for variable in TLS_VARIABLES:
            os.environ.pop(variable, None)
        where = () if store is None else ("--store", str(store))
        command = [sys.executable, *program, verb, *where, *arguments]
        if verb == "serve":
            command += _free_ports(arguments)
        self._log = log or (Path(os.devnull) if store is None else store.with_suffix(".log"))
        #: What the ready line says: nameserver, broker, store, recovery, ….
        self.ready: dict[str, Any] = {}
        if is_child:
            self._log = Path(os.devnull)
            self._process = subprocess.Popen(
                [*command, "--child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,
            )
        else:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log_file:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    text=True,
                )
        started(self.pid)
        if waits:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait for the ready line. Raises ConnectionLost, with its `code`, if the process ends before."""
        try:
            self.ready = self._ready()
        except BaseException:
            self.kill()
            raise

    def _ready(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(READY):
                found: dict[str, Any] = json.loads(line.removeprefix(READY))
                return found
        code = self._process.wait()
        said = self._log.read_text(errors="replace").strip().splitlines()
        # An error's last line is the address of its page.
        reasons = [line for line in said if not line.startswith("See ")] or ["it said nothing"]
        raise ConnectionLost(
            f"the server ended with code {code} before it served: {reasons[-1]}", code=code
        )

    @property
    def nameserver(self) -> str:
        """Address of the name server."""
        return str(self.ready["nameserver"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Has the process not ended?"""
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """Return the CPU time used up to now."""
        return cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        """Return the resident memory."""
        return rss_bytes(self.pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP, SIGCONT."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it cleanly; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self.is_running:
            self._process.send_signal(how)
        try:
            return self.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise PocketMQError(f"the server did not stop within {STOP_S:.0f} s") from None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it has ended; return its exit code, which is negative for a signal."""
        try:
            return self._process.wait(timeout_s)
        finally:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class ServerProcesses:
    """Several servers that this process starts, watches and ends together."""

    def __init__(self) -> None:
        self._all: list[ServerProcess] = []

    async def start(self, process: ServerProcess) -> ServerProcess:
        """Return PROCESS, which was not waited for, when it serves; if cancelled, stop it.

        Raises ConnectionLost, with its `code`, if it ends before.
        """
        self._all = [one for one in self._all if one.is_running]
        self._all.append(process)
        waiting = asyncio.ensure_future(asyncio.to_thread(process.wait_until_ready))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(waiting, return_exceptions=True)
            raise
        return process

    async def ended(self, process: ServerProcess) -> int:
        """Wait until PROCESS has ended; return its exit code."""
        while process.is_running:  # noqa: ASYNC110  the end of a process is no event of the loop everywhere
            await asyncio.sleep(_LOOK_S)
        return process.wait()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Stop all at once, and wait until each has saved what it saves; after TIMEOUT_S kill those that are left."""
        for process in self._all:
            process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self.ended(process) for process in self._all))
        self.kill()

    def kill(self) -> None:
        """End all as `kill -9` does."""
        for process in self._all:
            process.kill()


def _free_ports(arguments: Sequence[str]) -> list[str]:
    wanted = [name for name in ("--port", "--nameserver-port") if name not in arguments]
    return [word for name in wanted for word in (name, "0")]


def cpu_seconds(pid: int) -> float:
    """Return user and system time of process PID, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Return the resident memory of process PID."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
