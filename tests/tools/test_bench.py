import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools import cli
from pocketmq.tools.bench import command, idle
from pocketmq.tools.bench.measure import BenchConditions, Figure


@pytest.mark.parametrize("name", command.BENCHES)
def test_every_bench_is_a_function(name: str) -> None:
    module, _, function = command.BENCHES[name][0].partition(":")

    assert callable(getattr(importlib.import_module(f"pocketmq.tools.bench.{module}"), function))


@pytest.mark.processes
def test_a_bench_needs_grpcio_only_if_it_measures_beside_it() -> None:
    code = (
        "import importlib, sys\n"
        "sys.modules['grpc'] = None\n"
        "from pocketmq.tools.bench import command\n"
        "for at, _ in command.BENCHES.values():\n"
        "    importlib.import_module('pocketmq.tools.bench.' + at.partition(':')[0])\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["start", "memory"])
def test_what_a_bench_starts_needs_no_grpcio_either(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grpc.py").write_text("raise ImportError('not installed')\n")
    paths = (str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setattr(idle, "_ROUNDS", 1)
    monkeypatch.setattr(idle, "_SETTLE_S", 0.1)

    figure = getattr(idle, name)(BenchConditions(folder=tmp_path, seconds=0.1))

    assert any("numpy_and_protobuf" in line for line in figure.beside)


def test_a_bench_beside_grpcio_says_that_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    told: list[BenchConditions],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)

    assert cli.run(["bench", "wheel"]) == 0
    assert cli.run(["bench", "produce"]) != 0
    assert "bench produce" in capsys.readouterr().err
    assert len(told) == 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[BenchConditions]:
    """A bench `wheel` that measures nothing; the conditions that it was told."""
    conditions: list[BenchConditions] = []

    def wheel(given: BenchConditions) -> Figure:
        assert given.folder.is_dir()
        conditions.append(given)
        return Figure(name="wheel", messages_per_second=2.5, what="nothing")

    module = importlib.import_module("pocketmq.tools.bench.wheel")
    monkeypatch.setattr(module, "wheel", wheel)
    return conditions


def test_json_is_one_object(
    told: list[BenchConditions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", "wheel", "--json", "--seconds", "0.5"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["name"], document["messages_per_second"]) == ("wheel", 2.5)
    assert told[0].seconds == 0.5


def test_the_folder_is_removed(
    told: list[BenchConditions], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.run(["bench", "wheel"])

    assert not told[0].folder.exists()
    assert "wheel: nothing" in capsys.readouterr().out


def test_a_bench_that_does_not_exist_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "nothing"]) == 2
    assert "'recovery'" in capsys.readouterr().err


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch, told: list[BenchConditions]) -> None:
    """Only two benches: `scan`, which lacks something that is not installed, and `wheel`."""

    def scan(_: BenchConditions) -> Figure:
        raise ConfigError("columns need pyarrow: install it", field="pyarrow")

    monkeypatch.setattr(importlib.import_module("pocketmq.tools.bench.scanning"), "scan", scan)
    monkeypatch.setattr(
        command, "BENCHES", {name: command.BENCHES[name] for name in ("scan", "wheel")}
    )


@pytest.mark.usefixtures("lacking")
def test_all_goes_on_without_what_is_not_installed(
    told: list[BenchConditions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", "all"]) == 0

    out = capsys.readouterr().out
    assert "scan: not measured: columns need pyarrow: install it" in out
    assert "wheel: nothing" in out


@pytest.mark.usefixtures("lacking")
def test_a_bench_that_is_named_and_lacks_something_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["bench", "scan"]) != 0
    assert "columns need pyarrow: install it" in capsys.readouterr().err
