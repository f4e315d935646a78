"""What is freed is kept: pieces of a mebibyte come without new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import resource
from pocketmq.tools.process_memory import keep_freed_memory

def round():
    pieces = [bytes(b"x" * (1 << 20)) for _ in range(16)]

assert not {keep} or keep_freed_memory()
round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, keep: bool) -> int:
    """Return how many pages a process asks for that takes and frees 16 MiB 20 times."""
    script = _SCRIPT.replace("{keep}", str(keep))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.processes
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no such option"
)
def test_freed_memory_is_kept() -> None:
    assert 4 * page_faults(keep=True) < page_faults(keep=False)
