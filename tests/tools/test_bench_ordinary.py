"""`bench ordinary --apache`: what it needs is told before anything starts, and both sides stand in one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError, PocketMQError
from pocketmq.tools.bench import ordinary
from pocketmq.tools.bench.java_clients import ShapeRun, check_load, classic_load, official_load
from pocketmq.tools.bench.measure import BenchConditions, Figure

JAVA = """#!{python}
import sys
if "bad" in sys.argv:
    sys.exit("Exception in thread main: no route\\n\\tat Somewhere")
print("a line of the client's own")
print("shape", "one at a time", 100, 2.0, 0.5, 1.5, sep="\\t")
print("shape", " ".join(sys.argv[1:]), 640, 2.0, 0.0, 0.0, sep="\\t")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of jars, beside a JDK that answers with what it was told."""
    jars, programs = tmp_path / "jars", tmp_path / "jdk" / "bin"
    jars.mkdir()
    programs.mkdir(parents=True)
    for name in ("rocketmq-broker-5.5.0.jar", "rocketmq-client-java-5.1.0.jar", "netty.jar"):
        (jars / name).touch()
    (programs / "java").write_text(JAVA.format(python=sys.executable))
    (programs / "java").chmod(0o755)
    (programs / "javac").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return jars


def test_jars_without_a_broker_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rocketmq-broker"):
        ordinary.ordinary(BenchConditions(folder=tmp_path, seconds=1.0, apache=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_java_without_a_compiler_and_jars_without_the_official_client_are_told(
    home: Path,
) -> None:
    check_load(home)
    (home.parent / "jdk" / "bin" / "javac").unlink()
    with pytest.raises(ConfigError, match="is a Java without a compiler"):
        check_load(home)
    (home / "rocketmq-client-java-5.1.0.jar").unlink()
    with pytest.raises(ConfigError, match=r"has no rocketmq-client-java-\*\.jar"):
        check_load(home)


@pytest.mark.processes
def test_each_client_has_its_own_classes_first_and_says_what_it_measured(home: Path) -> None:
    alone, told = classic_load(home, "127.0.0.1:9876", "bench", 2.0, 50)
    _, official = official_load(home, "127.0.0.1:8081", "bench", 2.0)

    assert alone == ShapeRun("one at a time", 50.0, 0.5, 1.5)
    assert (told.per_second, told.p50_ms, told.p99_ms) == (320.0, None, None)
    assert told.name.endswith("ClassicLoad.java 127.0.0.1:9876 bench 2.0 50")
    assert "client-java" not in told.name
    first = official.name.split("-cp ")[1].split(os.pathsep)[0]
    assert first == str(home / "rocketmq-client-java-5.1.0.jar")
    assert official.name.endswith("OfficialLoad.java 127.0.0.1:8081 bench 2.0 bench-readers")


@pytest.mark.processes
def test_a_program_that_fails_says_why(home: Path) -> None:
    with pytest.raises(PocketMQError, match="code 1: Exception in thread main: no route"):
        official_load(home, "bad", "bench", 2.0)


def test_ours_and_apaches_stand_in_one_line_with_their_ratios() -> None:
    figure = Figure(name="ordinary", what="")

    ordinary._compare(
        figure,
        ShapeRun("one at a time", 300.0, 1.0, 2.0),
        ShapeRun("one at a time", 200.0, 2.0, 9.0),
    )

    assert figure.notes == [
        "one at a time: 300/s (p50 1.00, p99 2.00 ms),"
        " Apache 200/s (p50 2.00, p99 9.00 ms): 1.50, p50 2.00, p99 4.50"
    ]
    assert figure.beside["apache_one_at_a_time_p99_ms"] == 9.0
