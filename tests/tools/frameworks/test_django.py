"""The page about Django, block by block in a project: a relay that is killed after each send ships every order once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pocketmq.client import Admin
from pocketmq.proto.errors import GroupNotFound

from ...repository.source_tree import ROOT
from ...served import ServerProcess

pytestmark = [pytest.mark.processes, pytest.mark.long]

PAGE = ROOT / "docs" / "django.md"
ORDERS = 25
SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["shop"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db", "OPTIONS": {"timeout": 60}}}
"""
MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
#: As `relay`, but it is killed behind each send, before the row goes.
KILLED = """
import os, signal
from pocketmq.client import Producer

send = Producer.send_many
def sends_and_dies(*args):
    send(*args)
    os.kill(os.getpid(), signal.SIGKILL)
Producer.send_many = sends_and_dies
"""


def blocks() -> dict[str, str]:
    """Return the files that the page shows, by path."""
    found, lines = {}, PAGE.read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        if line.startswith("```python "):
            end = lines.index("```", at)
            found[line.split()[1]] = "\n".join(lines[at + 1 : end]) + "\n"
    return found


class Project:
    """A project of Django in FOLDER with what the page shows; its commands talk to NAMESERVER."""

    def __init__(self, folder: Path, nameserver: str) -> None:
        self.folder = folder
        self._environment = os.environ | {"POCKETMQ_NAMESERVER": nameserver}
        for name, text in (blocks() | {"settings.py": SETTINGS, "manage.py": MANAGE}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for package in ("shop", "shop/management", "shop/management/commands", "shop/migrations"):
            (folder / package).mkdir(exist_ok=True)
            (folder / package / "__init__.py").touch()
        self("makemigrations", "shop", "--verbosity", "0")
        self("migrate", "--verbosity", "0")

    def command(self, *words: str, before: str = "") -> list[str]:
        return [sys.executable, "-c", before + MANAGE, *words]

    def __call__(self, *words: str, before: str = "") -> int:
        done = subprocess.run(
            self.command(*words, before=before),
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    @contextmanager
    def running(self, *words: str) -> Iterator[None]:
        process = subprocess.Popen(self.command(*words), cwd=self.folder, env=self._environment)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0

    def ask(self, expression: str) -> str:
        """Return what EXPRESSION, of the models, is."""
        program = f"from shop.models import *; print({expression})"
        return subprocess.run(
            self.command("shell", "--verbosity", "0", "--command", program),
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()


def test_every_order_is_shipped_once_though_the_relay_dies_behind_each_send(tmp_path: Path) -> None:
    pytest.importorskip("django")
    (tmp_path / "project").mkdir()
    with ServerProcess(tmp_path / "store") as server:
        project = Project(tmp_path / "project", server.nameserver)
        place = "from shop.orders import place\nfor number in range(%d): place(f'order-{number}')"
        project("shell", "--verbosity", "0", "--command", place % ORDERS)
        # An order whose transaction fails leaves no row behind.
        failing = "from shop.orders import place\ntry: place('order-0')\nexcept Exception: print('refused')"
        project("shell", "--verbosity", "0", "--command", failing)
        assert project.ask("Outbox.objects.count()") == str(ORDERS)

        with project.running("ship"):
            for _ in range(2):
                assert project("relay", "--once", before=KILLED) == -signal.SIGKILL
            assert project.ask("Outbox.objects.count()") == str(ORDERS)
            assert project("relay", "--once") == 0
            assert project.ask("Outbox.objects.count()") == "0"
            while finished(server.nameserver) < 3 * ORDERS:
                pass
        names = "sorted(Shipment.objects.values_list('name', flat=True))"
        assert project.ask(names) == str(sorted(f"order-{number}" for number in range(ORDERS)))


def finished(nameserver: str) -> int:
    """Return how many messages the shipping has handled: some of them come again."""
    with Admin(nameserver) as admin:
        try:
            found = admin.describe_group("shop-shipping")
        except GroupNotFound:
            return 0
    return sum(max(one.offset, 0) for one in found.queues if one.queue.topic == "shop-orders")
