"""The checkpoint's 48 bytes."""

from __future__ import annotations

from pathlib import Path

from pocketmq.store.checkpoints import Checkpoint, CheckpointFile, read_checkpoint
from pocketmq.store.os_disk import OsDisk


def test_the_six_fields_are_big_endian_longs() -> None:
    packed = Checkpoint(1, 2, 3, 4, 5, 6).pack()

    assert packed == b"".join(value.to_bytes(8, "big") for value in range(1, 7))
    assert Checkpoint.parse(packed) == Checkpoint(1, 2, 3, 4, 5, 6)


def test_a_short_or_missing_file_is_zeros(tmp_path: Path) -> None:
    assert Checkpoint.parse((7).to_bytes(8, "big")) == Checkpoint(log_time_ms=7)
    assert read_checkpoint(OsDisk(), str(tmp_path / "none")) == Checkpoint()


def test_the_file_is_4096_bytes_and_keeps_the_values(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    file = CheckpointFile(OsDisk(), path)
    file.values.log_time_ms = 99

    assert file.write() is True
    assert file.write() is False

    file.close()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    assert CheckpointFile(OsDisk(), path).values == Checkpoint(log_time_ms=99)
