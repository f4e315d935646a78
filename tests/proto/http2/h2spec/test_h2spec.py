"""h2spec, which holds servers to RFC 9113 and RFC 7541, against the HTTP/2 core, in the clear and over TLS."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import pytest

from pocketmq.broker.certificates import development_certificate
from pocketmq.proto.http2_server.tls import server_context

from ....interop.official.programs import BuildFailed, Program
from .plain_server import plain_server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

HERE: Final = Path(__file__).resolve().parent
#: What there is in the version of go.mod: 44 generic ones, 95 of HTTP/2, 6 of HPACK.
TESTS: Final = 145
_SUMMARY: Final = re.compile(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed")


class _Specification(Program):
    """h2spec, built as the programs of official clients are, and beside them."""

    @property
    def source(self) -> Path:
        return HERE


def _build(folder: Path) -> None:
    package = "github.com/summerwind/h2spec/cmd/h2spec"
    done = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(folder / "h2spec"), package],
        cwd=HERE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"go build ended with {done.returncode}:\n{done.stdout[-4000:]}")


H2SPEC: Final = _Specification(
    "h2spec", "h2spec 2.2.1", ("go",), _build, lambda folder: [str(folder / "h2spec")]
)


def leave_out(why: str) -> NoReturn:
    """Skip the test; in CI fail it."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def h2spec() -> list[str]:
    if H2SPEC.missing():
        leave_out("h2spec is a Go program, and go is not there")
    try:
        return H2SPEC.ready()
    except BuildFailed as error:  # Without a network, as a rule.
        leave_out(f"h2spec was not built: {error}")


@pytest.mark.parametrize("secure", [False, True], ids=["in the clear", "over TLS"])
async def test_the_core_does_all_that_h2spec_asks(secure: bool, h2spec: list[str]) -> None:
    context = None
    if secure:
        context = server_context(development_certificate([], datetime.now(UTC)))
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
