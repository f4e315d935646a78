"""`bench growth`, cut down: each of its shapes is there, whatever this machine makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.bench import growth
from pocketmq.tools.bench.measure import BenchConditions


def test_where_no_cgroup_can_be_made_it_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_CGROUPS", tmp_path / "none")

    with pytest.raises(ConfigError, match="a memory cgroup takes root"):
        growth.memory_limited(1 << 20).__enter__()


@pytest.mark.processes
@pytest.mark.long
def test_every_shape_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "CONNECTIONS", (1, 2))
    monkeypatch.setattr(growth, "QUEUES", (1, 2_000))
    monkeypatch.setattr(growth, "_CGROUPS", tmp_path / "none")

    figure = growth.growth(BenchConditions(folder=tmp_path, seconds=0.1))

    assert [note.partition(":")[0] for note in figure.notes] == [
        "1 connections",
        "2 connections",
        "bodies of 1 KiB",
        "bodies of 64 KiB",
        "bodies of 1024 KiB",
        "1 queues",
        "2,000 queues",
        "cold",
    ]
    assert all(value > 0 for name, value in figure.facts.items() if name.endswith("_per_second"))
    assert "not measured" in figure.notes[-1]
