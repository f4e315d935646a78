"""What testcontainers asks Docker for is a broker that clients of this machine find; no Docker is there to be asked."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.errors import InvalidArgument
from pocketmq.tools.serve import serve
from pocketmq.tools.settings import load_settings

from ...repository.source_tree import ROOT

if os.environ.get("CI"):
    assert find_spec("testcontainers"), "CI has what the dev group names"
container = pytest.importorskip("testcontainers.core.container")


class Docker:
    """Docker on this machine, as far as testcontainers speaks to it before a container runs; keeps what it is asked."""

    def __init__(self, **settings: Any) -> None:
        self.asked: dict[str, Any] = {}

    def host(self) -> str:
        return "localhost"

    def get_connection_mode(self) -> Any:
        return container.ConnectionMode.docker_host

    def create(self, image: str, **asked: Any) -> Any:
        self.asked = {"image": image, **asked}
        raise ConnectionRefusedError("no Docker")


def asked_for(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return a container of OPTIONS, and what its start asked Docker for."""
    from pocketmq.tools.testing import PocketMQContainer

    monkeypatch.setattr(container, "DockerClient", Docker)
    monkeypatch.setattr(container.c, "ryuk_disabled", True)
    made = PocketMQContainer(**options)
    with pytest.raises(ConnectionRefusedError):
        made.start()
    docker: Any = made.get_docker_client()
    return made, docker.asked


def test_the_broker_tells_clients_the_ports_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, asked = asked_for(monkeypatch)

    file = tmp_path / "pocketmq.yaml"
    file.write_text(asked["environment"]["POCKETMQ_SETTINGS"])
    settings = load_settings(file)
    ports = {
        int(str(inside).partition("/")[0]): outside for inside, outside in asked["ports"].items()
    }
    assert settings.broker.advertised_address == made.endpoint == f"localhost:{ports[8081]}"
    assert made.nameserver == f"localhost:{ports[9876]}"
    assert (settings.broker.host, settings.broker.port) == ("0.0.0.0", 8081)
    assert (settings.nameserver.host, settings.nameserver.port) == ("0.0.0.0", 9876)
    image = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
    assert f"VOLUME {settings.store.path}" in image
    assert asked["image"] == "pocketmq"
    assert "-t pocketmq ." in image


def test_its_command_is_one_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = asked_for(monkeypatch, clock="virtual", faults="redeliver=10%,reorder", seed=7)

    assert asked["entrypoint"] == ["sh", "-c"]
    (script,) = asked["command"]
    written, _, served = script.partition(" && exec pocketmq serve ")
    assert written == 'printf %s "$POCKETMQ_SETTINGS" > /tmp/pocketmq.yaml'
    words = [word.strip("'") for word in served.split()]
    assert words.pop(0) == "--config"
    assert words.pop(0) == "/tmp/pocketmq.yaml"
    context = serve.make_context("serve", words)
    assert (context.params["clock"], context.params["seed"]) == ("virtual", 7)
    assert context.params["faults"] == "redeliver=10%,reorder"


def test_unknown_faults_are_refused_before_anything_starts() -> None:
    from pocketmq.tools.testing import PocketMQContainer

    with pytest.raises(InvalidArgument, match="unknown kind 'redelivery'"):
        PocketMQContainer(faults="redelivery")
