"""h2spec, which holds servers to RFC 9113 and RFC 7541, against the HTTP/2 core, in the clear and over TLS."""

from __future__ import annotations

import asyncio
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from pocketmq.broker.ports.certificates import development_certificate

from ....interop.go_tools import go_tool
from .plain_server import plain_server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

HERE: Final = Path(__file__).resolve().parent
#: What there is in the version of go.mod: 44 generic ones, 95 of HTTP/2, 6 of HPACK.
TESTS: Final = 145
_SUMMARY: Final = re.compile(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed")


@pytest.fixture(scope="module")
def h2spec() -> list[str]:
    return go_tool("h2spec", "github.com/summerwind/h2spec/cmd/h2spec", HERE)


@pytest.mark.parametrize("secure", [False, True], ids=["in the clear", "over TLS"])
async def test_the_core_does_all_that_h2spec_asks(secure: bool, h2spec: list[str]) -> None:
    context = None
    if secure:
        context = development_certificate([], datetime.now(UTC)).server_context()
    async with plain_server(context) as port:
        options = ["--tls", "--insecure"] if secure else []
        process = await asyncio.create_subprocess_exec(
            *h2spec,
            *("--host", "127.0.0.1", "--port", str(port), "--timeout", "10", *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
    found = _SUMMARY.search(output)
    assert found is not None, output[-4000:]
    failures = output[output.rfind("Failures:") :]
    assert found.groups() == (str(TESTS), str(TESTS), "0", "0"), failures
