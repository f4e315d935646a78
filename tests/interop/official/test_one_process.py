"""PocketMQ and Apache's own Python client, which have messages of the same names, live in one process."""

import subprocess
import sys

import pytest

from .driver import leave_out
from .programs import PROGRAMS, BuildFailed

pytestmark = [pytest.mark.long, pytest.mark.processes]

OURS = "from pocketmq.proto.gen import rocketmq_v2_pb2 as ours"
THEIRS = "import rocketmq; from rocketmq.grpc_protocol import definition_pb2 as theirs"
EXCHANGE = """
sent = ours.Message(body=b"body")
sent.topic.name = "orders"
sent.system_properties.born_timestamp.FromMilliseconds(1_800_000_000_123)
received = theirs.Message.FromString(sent.SerializeToString())
assert (received.topic.name, received.body) == ("orders", b"body")
assert received.system_properties.born_timestamp.ToMilliseconds() == 1_800_000_000_123
assert ours.Message.FromString(received.SerializeToString()) == sent
assert type(received) is not type(sent)
"""


@pytest.fixture(scope="module")
def their_packages() -> str:
    """Where the official client is installed."""
    try:
        python = PROGRAMS["python"].ready()[0]
    except BuildFailed as failure:
        leave_out(f"the official Python client was not built: {failure}")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("imports", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "theirs"])
def test_either_may_be_imported_first(imports: tuple[str, str], their_packages: str) -> None:
    # Theirs come last, so that both use the libraries that we use.
    code = "\n".join((f"import sys; sys.path.append({their_packages!r})", *imports, EXCHANGE))

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
