"""A client program of tests/interop/official, built as for the tests, as a process that is measured."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Self

from ...proto.errors import ConfigError, PocketMQError
from .measure import LANGUAGES

_PROGRAMS: Final = Path(__file__).resolve().parents[2] / "tests/interop/official/programs.py"


class OfficialClient:
    """The program of LANGUAGE ("": the first one that can be had), against ENDPOINTS."""

    def __init__(self, endpoints: str, language: str = "") -> None:
        programs = _programs()
        program = programs.PROGRAMS[language or _first(programs)]
        if program.missing():
            raise ConfigError(
                f"the official {language} client needs {', '.join(program.missing())}: install it, or name another",
                field="client",
            )
        #: Language, package and version.
        self.name = f"{program.name}, {program.client}"
        try:
            command = program.ready()
        except programs.BuildFailed as error:
            raise ConfigError(
                f"the official {program.name} client was not built: {error}", field="client"
            ) from error
        self._process = subprocess.Popen(
            [*command, endpoints],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            **programs.surroundings(),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have the program DO something, and return its reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"id": 1, "do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if not line.startswith('{"'):  # Some clients print of their own.
                continue
            found: dict[str, Any] = json.loads(line)
            if "reply" in found:
                reply: dict[str, Any] = found["reply"]
                return reply
            if "error" in found:
                raise PocketMQError(f"{do} of the official client failed: {found['error']['text']}")
        raise PocketMQError(f"the official client ended during {do}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _programs() -> ModuleType:
    if not _PROGRAMS.exists():
        raise ConfigError(
            f"the programs of official clients are in a source checkout of PocketMQ; {_PROGRAMS} does not exist",
            field="client",
        )
    name = "pocketmq_official_programs"
    spec = importlib.util.spec_from_file_location(name, _PROGRAMS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look up the module that they are in.
    spec.loader.exec_module(module)
    return module


def _first(programs: ModuleType) -> str:
    return next(name for name in LANGUAGES if not programs.PROGRAMS[name].missing())
