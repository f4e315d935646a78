"""Tools in Go that tests run: built by their go.mod, as the programs of official clients are, and beside them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from .official.programs import BuildFailed, Program, run


@dataclass(frozen=True)
class _GoTool(Program):
    #: Where its go.mod lies.
    folder: Path = Path()

    @property
    def source(self) -> Path:
        return self.folder


def go_tool(name: str, package: str, folder: Path) -> list[str]:
    """Return the command that runs PACKAGE as FOLDER's go.mod has it; leave the test out where that cannot be had."""

    def build(target: Path) -> None:
        run("go", "build", "-mod=readonly", "-o", target / name, package, cwd=folder)

    tool = _GoTool(
        name, package, ("go",), build, lambda target: [str(target / name)], folder=folder
    )
    if tool.missing():
        leave_out(f"{name} is a Go program, and go is not there")
    try:
        return tool.ready()
    except BuildFailed as error:  # Without a network, as a rule.
        leave_out(f"{name} was not built: {error}")


def leave_out(why: str) -> NoReturn:
    """Skip the test; in CI fail it."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
