"""`bench tasks` as it measures, and what it says where something is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.bench import tasks
from pocketmq.tools.bench.measure import BenchConditions


@pytest.mark.processes
@pytest.mark.long
def test_tasks_of_both_frameworks_are_published_and_all_run(tmp_path: Path) -> None:
    pytest.importorskip("celery")
    pytest.importorskip("dramatiq")
    figure = tasks.tasks(BenchConditions(folder=tmp_path, seconds=0.3))
    brokers = ["pocketmq"]
    if shutil.which("redis-server"):
        brokers.append("redis")
        assert figure.beside["ratio_to_redis"] > 0
    else:
        assert figure.notes[0] == "not compared with Redis: no redis-server on the path"
    rates = {
        f"{name}_{kind}_per_second_on_{broker}"
        for name in ("celery", "dramatiq")
        for kind in ("published", "run")
        for broker in brokers
    }
    assert figure.facts.keys() == rates
    assert min(figure.facts.values()) > 0
    assert figure.messages_per_second == figure.facts["celery_run_per_second_on_pocketmq"]
    for name in ("celery", "dramatiq"):
        for broker in brokers:
            assert (tmp_path / f"{name}-{broker}.ran").stat().st_size > 1


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "find_spec", lambda name: None if name == "dramatiq" else name)
    with pytest.raises(ConfigError, match=r"pip install .*\[dramatiq\]'"):
        tasks.tasks(BenchConditions(folder=tmp_path, seconds=0.1))


def test_only_a_worker_of_the_bench_finds_its_application() -> None:
    with pytest.raises(AttributeError):
        tasks.celery_app  # noqa: B018 (asked for what it raises)


@pytest.mark.processes
def test_tasks_that_all_ran_before_the_first_look_have_a_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "quick.ran"
    log.touch()
    quick = ["-c", f"open({str(log)!r}, 'wb').write(b'....')"]
    monkeypatch.setattr(tasks, "_WORKERS", {"quick": quick})

    assert tasks._run_rate("quick", log, 4) > 0
