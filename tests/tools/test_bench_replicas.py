"""`bench replicas`, cut down: each of its figures is there, whatever this machine makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.bench import replicas
from pocketmq.tools.bench.measure import BenchConditions

from ..zookeeper.servers import HOME, require_zookeeper


def test_without_jars_of_zookeeper_it_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--zookeeper-home"):
        replicas.replicas(BenchConditions(folder=tmp_path, seconds=1.0))


def test_jars_without_a_broker_of_apache_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rocketmq-broker"):
        replicas.replicas(
            BenchConditions(
                folder=tmp_path, seconds=1.0, zookeeper_home=str(tmp_path), apache=str(tmp_path)
            )
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.java
@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_figure_of_a_replica_set_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_zookeeper()
    monkeypatch.setattr(replicas, "KILLS", 1)
    monkeypatch.setattr(replicas, "MOVES", 1)
    monkeypatch.setattr(replicas, "CATCH_UP_BYTES", 1 << 25)

    figure = replicas.replicas(
        BenchConditions(folder=tmp_path, seconds=0.3, zookeeper_home=str(HOME))
    )

    assert figure.messages_per_second
    assert figure.p50_ms
    for name in (
        "memory_p50_ms",
        "replicas_to_disk",
        "hand_over_s",
        "failover_p95_s",
        "catch_up_mb_per_second",
        "catch_up_follower_ms_per_mib",
        "foreground_messages_per_second",
        "foreground_growth_mb_per_second",
    ):
        assert figure.facts[name] > 0, name
    assert figure.facts["redelivered_ms"] >= 0
    assert len(figure.notes) == 12
    assert list(tmp_path.iterdir()) == []
