"""The programs of docs/use-official-client.md work as the page has them, in plaintext and with TLS and a user."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from pocketmq.client import Admin

from ...repository.source_tree import ROOT
from ...served import ServerProcess
from .programs import BUILD, HERE, PROGRAMS, run, surroundings

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.processes, pytest.mark.timeout(600)]

PAGE: Final = (ROOT / "docs" / "use-official-client.md").read_text(encoding="utf-8")
#: File name of each program: its text.
SOURCES: Final[dict[str, str]] = dict(re.findall(r"```\w+ ([\w.]+)\n(.*?)```", PAGE, re.DOTALL))
USER, SECRET = "alice", "her-secret"


@pytest.fixture(params=["plaintext", "TLS and a user"])
def is_secured(request: pytest.FixtureRequest) -> bool:
    return str(request.param) != "plaintext"


@dataclass(frozen=True)
class Served:
    """A broker with a topic, and what programs have to say to reach it."""

    address: str
    certificate: Path
    is_secured: bool

    def program(self, name: str) -> str:
        """Return the program NAME of the page, for this broker."""
        text = SOURCES[name].replace("127.0.0.1:8081", self.address)
        if not self.is_secured:
            return text
        # The page names two lines to change: one with the user, and one with "false".
        text, users = re.subn(rf'(?://|#) (.*["\']{USER}["\'])', r"\1", text)
        text, switches = re.subn(
            r"\b[fF]alse\b", lambda m: "True" if m[0] == "False" else "true", text
        )
        assert (users, switches) == (1, 1)
        return text


@pytest.fixture
def served(tmp_path: Path, is_secured: bool) -> Iterator[Served]:
    arguments = []
    if is_secured:
        users = tmp_path / "users.yaml"
        users.touch(0o600)
        users.write_text(json.dumps({"users": {USER: {"secret": SECRET, "type": "Super"}}}))
        config = tmp_path / "pocketmq.yaml"
        both = {part: {"users": str(users)} for part in ("broker", "nameserver")}
        config.write_text(json.dumps(both))
        arguments = ["--config", str(config)]
    with ServerProcess(tmp_path / "store", *arguments) as server:
        identity = (USER, SECRET) if is_secured else ("", "")
        with Admin(server.nameserver, user=identity[0], secret=identity[1]) as admin:
            admin.create_topic("orders")
        certificate = tmp_path / "store/pocketmq/tls/certificate.pem"
        yield Served(str(server.ready["broker"]), certificate, is_secured)


def _java(folder: Path, source: str) -> list[str]:
    (folder / "Orders.java").write_text(source)
    return ["java", f"-Duser.home={BUILD}/home", "-cp", f"{BUILD}/java/lib/*", "Orders.java"]


def _go(folder: Path, source: str) -> list[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, folder)
    (folder / "main.go").write_text(source)
    run("go", "build", "-mod=readonly", "-o", "orders", ".", cwd=folder)
    return [f"{folder}/orders"]


def _node(folder: Path, source: str) -> list[str]:
    (folder / "node_modules").symlink_to(BUILD / "node" / "node_modules")
    (folder / "orders.js").write_text(source)
    return ["node", "orders.js"]


def _rust(folder: Path, source: str) -> list[str]:
    (folder / "src").mkdir()
    (folder / "src/main.rs").write_text(source)
    for name in ("Cargo.toml", "Cargo.lock"):
        # A name of its own, beside the program of the scenarios, with which it shares what its crates became.
        text = (HERE / "rust" / name).read_text("utf-8").replace("official-client", "orders")
        (folder / name).write_text(text)
    run("cargo", "build", "--locked", "--target-dir", BUILD / "rust", cwd=folder)
    return [f"{BUILD}/rust/debug/orders"]


def _python(folder: Path, source: str) -> list[str]:
    (folder / "orders.py").write_text(source)
    return [f"{BUILD}/python/venv/bin/python", "orders.py"]


#: By language: its program, how it is built, and the variable that names a root certificate.
LANGUAGES: Final[dict[str, tuple[str, Callable[[Path, str], list[str]], str]]] = {
    "java": ("Orders.java", _java, ""),
    "go": ("main.go", _go, ""),
    "node": ("orders.js", _node, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
    "rust": ("main.rs", _rust, "SSL_CERT_FILE"),
    "python": ("orders.py", _python, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_program_receives_what_it_sends(language: str, served: Served, tmp_path: Path) -> None:
    official = PROGRAMS[language]
    if (missing := official.missing()) and not os.environ.get("CI"):
        pytest.skip(f"not found: {missing}")
    official.ready()
    file, build, root = LANGUAGES[language]
    folder = tmp_path / "program"
    folder.mkdir()
    command = build(folder, served.program(file))
    environment = surroundings()["env"]
    environment.pop("rocketmq.client.enableSsl")  # The program decides.
    if root and served.is_secured:
        make_certificate(served)
        environment[root] = str(served.certificate)

    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    sent_and_received = r"sent [0-9A-Fa-f]{34}\nreceived from [\w.]+\n"
    assert re.fullmatch(sent_and_received, done.stdout), done.stdout + done.stderr
    assert done.returncode == 0
    if language in ("node", "python") and not served.is_secured:
        assert done.stderr == ""


def make_certificate(served: Served) -> None:
    """Have the broker make the certificate that it makes for its first client with TLS."""
    if not served.certificate.exists():
        host, _, port = served.address.rpartition(":")
        subprocess.run(
            ["openssl", "s_client", "-connect", f"{host}:{port}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert served.certificate.exists()


def test_each_language_has_a_program_and_no_program_is_without_a_test() -> None:
    assert set(SOURCES) == {file for file, _, _ in LANGUAGES.values()} | {"orders.cpp"}
