"""The C core reads no byte that is not its own: some seconds of the campaign."""

import json
import subprocess
import sys

import pytest

from ..repository.source_tree import ROOT
from .core_campaign import runtimes


@pytest.mark.processes
@pytest.mark.campaign
def test_a_sanitized_core_reads_damaged_batches_as_the_python_code_does() -> None:
    if not runtimes():
        pytest.skip("gcc, or a sanitizer of it, is not there")
    words = [sys.executable, "-m", "tests.proto.core_campaign", "--seconds", "5"]

    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["batches"] > 10
