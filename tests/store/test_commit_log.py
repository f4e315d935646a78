"""Where a record goes: into the current log file, or into the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.store.commit_log import CommitLog
from pocketmq.store.os_disk import OsDisk


@pytest.mark.parametrize("too_long", [False, True])
def test_a_record_never_touches_the_last_eight_bytes_of_a_file(
    too_long: bool, tmp_path: Path
) -> None:
    log = CommitLog.load(OsDisk(), str(tmp_path), 1_024)
    log.append(bytes(100))
    size = 1_024 - 100 - 8 + too_long

    assert log.place(size) == (1_024 if too_long else 100)
    log.close()
