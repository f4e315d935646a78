"""Apache RocketMQ 5.5.0 itself, run on copies of stores: what it makes of them, and whether it serves on them.

The oracle (`shared/tools/java-store`, beside the checkout) needs Java 17, and Maven for its first run. Where one
of them is missing, tests skip; in CI they fail instead. JAVA_STORE_BUILD says where it is built.
"""

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from ..free_ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
TOOL: Final = ROOT.parent / "shared" / "tools" / "java-store"
BUILD: Final = os.environ.get("JAVA_STORE_BUILD", str(ROOT / ".dev" / "java-store"))
#: Threads and buffers of every opened broker stay until the process ends.
STORES_A_PROCESS: Final = 20

Document = dict[str, Any]


def require_java() -> None:
    """Skip the test where the oracle cannot run; in CI let it fail."""
    missing = []
    if shutil.which("java") is None:
        missing.append("java")
    if not (TOOL / "run").exists():
        missing.append(str(TOOL))
    if not (Path(BUILD) / "java-store.jar").exists() and shutil.which("mvn") is None:
        missing.append("mvn")
    if missing and os.environ.get("CI"):
        pytest.fail(f"the Java oracle needs {', '.join(missing)}")
    if missing:
        pytest.skip(f"the Java oracle needs {', '.join(missing)}")


def _run(*arguments: str, lines: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    build_once()
    return _ask(*arguments, lines=lines)


def build_once() -> None:
    """Have the oracle built: its first run does it, and two at once would write the same files."""
    built = Path(BUILD) / "built"
    if built.exists():
        return
    built.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{BUILD}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            result = _ask("dump-many")
            assert result.returncode == 0, result.stderr[-2000:]
            built.touch()


def _ask(*arguments: str, lines: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TOOL / "run"), *arguments],
        input="".join(line + "\n" for line in lines),
        env=os.environ | {"JAVA_STORE_BUILD": BUILD},
        capture_output=True,
        text=True,
        check=False,
    )


def _words(settings: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


def dumps(stores: Sequence[tuple[Path, dict[str, str]]], folder: Path) -> list[Document]:
    """Return Apache's description of each of STORES, (path, settings); FOLDER is for what is in between."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = [folder / f"{number}.json" for number in range(len(stores))]
    for start in range(0, len(stores), STORES_A_PROCESS):
        chosen = range(start, min(start + STORES_A_PROCESS, len(stores)))
        lines = [
            " ".join([str(stores[n][0]), str(targets[n]), *_words(stores[n][1])]) for n in chosen
        ]
        result = _run("dump-many", lines=lines)
        assert all(targets[n].exists() for n in chosen), result.stderr[-2000:]
    return [json.loads(target.read_text()) for target in targets]


def verify_start(store: Path, settings: dict[str, str], *, keep: Path | None = None) -> Document:
    """Start Apache's broker on a copy of STORE, put and get one message, stop it; return what happened.

    With KEEP the copy stays there, as that broker left it.
    """
    kept = [] if keep is None else ["--keep", str(keep)]
    # The oracle would choose among the ports of outgoing connections: one of another test can take it first.
    ports = {"listenPort": str(free_port())}
    result = _run("verify-start", str(store), *_words(ports | settings), *kept)
    assert result.stdout, result.stderr[-2000:]
    found: Document = json.loads(result.stdout)
    return found


def damage_tool() -> ModuleType:
    """Return the module that derives damaged stores."""
    spec = importlib.util.spec_from_file_location("java_store_damage", TOOL / "damage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
