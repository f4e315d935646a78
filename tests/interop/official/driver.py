"""An official client in a process of its own, told what to do by JSON lines.

A program gets the endpoints (`host:port`) as its one argument. Each line on its standard input is a command, with an
`id` and `do`; each line on its standard output a reply to one, in any order: `{"id", "reply"}`, or `{"id", "error":
{"type", "code", "text"}}` with what the client raised. Commands run at the same time.

    producer  name, topics, transactions        a producer; with transactions it has a checker, which commits messages
                                                that have the property check=commit, and rolls back the others
              request_timeout_s, attempts (Java only)
    simple    name, group, topic, filter (tag | sql), expression, await_s            a simple consumer
    push      name, group, topic, filter, expression, failures                      a push consumer; the listener fails
                                                the first FAILURES attempts of each message
    send      client, topic, body (text), size (bytes: the text repeated), tag, keys, properties, message_group,
              deliver_at_ms, priority, transaction (commit | rollback | leave)      → message_id, recall_handle
    recall    client, topic, handle                                                  → message_id
    receive   client, count, invisible_s                                            → messages
    ack       client, number                    a message by its number in this program
    change    client, number, invisible_s
    close     client
    storm     client, count, in_flight, …as send                                   → seconds, costs_us (sorted)
    drain     client, count, batch, threads                                        → seconds
    press     client, threads, seconds, …as send                 → sent, failures (texts, with how often each)

Without being asked it says `{"event": "message" | "check", "client", "message"}` when a listener or checker is called.
With OFFICIAL_USER and OFFICIAL_SECRET in its environment its clients sign.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import pytest

from ... import served
from .programs import PROGRAMS, BuildFailed, Program, surroundings

Message = dict[str, Any]
_LINE_BYTES_MAX: Final = 16 << 20
_STOP_S: Final = 10.0


class ClientError(Exception):
    """What the official client raised: its type, the status code if it tells one, and its text."""

    def __init__(self, type: str, code: int | None, text: str) -> None:
        super().__init__(f"{type} (code {code}): {text}")
        self.type, self.code, self.text = type, code, text


class Driver:
    """The program of one language, running."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process) -> None:
        self.program = program
        self._process = process
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        #: What each client's listener, or checker, was called with.
        self._events: dict[str, asyncio.Queue[Message]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, program: Program, endpoints: str, log: Path) -> Self:
        """Run PROGRAM against ENDPOINTS; what it says on standard error goes to LOG."""
        command = await asyncio.to_thread(program.ready)
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                endpoints,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=_LINE_BYTES_MAX,
                **surroundings(
                    tls=served.chosen() == "builtin"
                ),  # A port of grpcio has one or the other.
            )
        return cls(program, process)

    async def __call__(self, do: str, timeout_s: float = 60.0, **arguments: Any) -> dict[str, Any]:
        """Have the program DO something; return its reply, or raise ClientError."""
        assert self._process.stdin is not None
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "do": do, **arguments}) + "\n"
        self._process.stdin.write(line.encode())
        try:
            async with asyncio.timeout(
                timeout_s
            ):  # wait_for may swallow that its caller is cancelled.
                return await self._waiting[number]
        except TimeoutError:
            said = f"no reply to {do} of {self.program.name} within {timeout_s:.0f} s: {arguments}"
            raise AssertionError(said) from None
        finally:
            del self._waiting[number]

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    async def event(self, client: str, timeout_s: float = 30.0) -> Message:
        """Return the next message that CLIENT's listener or checker was called with."""
        queue = self._events.setdefault(client, asyncio.Queue())
        try:
            async with asyncio.timeout(timeout_s):
                return await queue.get()
        except TimeoutError:
            said = f"{client} of {self.program.name} was not called within {timeout_s:.0f} s"
            raise AssertionError(said) from None

    async def stop(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(b'{"'):  # Some clients print of their own.
                self._take(json.loads(line))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClientError("Ended", None, "the program ended"))

    def _take(self, line: dict[str, Any]) -> None:
        if "event" in line:
            self._events.setdefault(line["client"], asyncio.Queue()).put_nowait(line["message"])
            return
        waiting = self._waiting.get(line["id"])
        if waiting is None or waiting.done():
            return
        if "error" in line:
            waiting.set_exception(ClientError(**line["error"]))
        else:
            waiting.set_result(line["reply"])


def need(program: Program) -> None:
    """Leave the test out if a tool that PROGRAM needs is missing."""
    if missing := program.missing():
        leave_out(f"the official {program.name} client needs {', '.join(missing)}")


def leave_out(why: str) -> NoReturn:
    """Skip the test; in CI fail it."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@asynccontextmanager
async def dialling(language: str, endpoints: str, log: Path) -> AsyncIterator[Driver]:
    """Yield the program of LANGUAGE, run against ENDPOINTS; leave the test out where it cannot be built."""
    program = PROGRAMS[language]
    need(program)
    try:
        driver = await Driver.start(program, endpoints, log)
    except BuildFailed as error:  # Without a network, as a rule.
        leave_out(f"the official {language} client was not built: {error}")
    try:
        yield driver
    finally:
        await driver.stop()
