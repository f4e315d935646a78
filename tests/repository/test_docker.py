"""What stands in docker/ fits the project, as far as can be told without Docker."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import click
import yaml
from click.testing import CliRunner

from pocketmq.broker.config import BrokerConfig
from pocketmq.nameserver.config import NameServerConfig
from pocketmq.tools.cli import cli
from pocketmq.tools.settings import load_settings
from tests.repository.source_tree import ROOT

DOCKER = ROOT / "docker"
OFFICIAL = ROOT / "tests" / "interop" / "official"


def instructions(name: str) -> list[str]:
    text = (DOCKER / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    return [line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(name)]


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    return document


def test_every_copied_path_is_there() -> None:
    sources = [line.split()[0] for line in instructions("COPY ")]

    assert sources
    assert all((ROOT / source).exists() for source in sources)


def test_the_container_serves_with_settings_that_hold() -> None:
    settings = load_settings(DOCKER / "pocketmq.yaml")

    (command,) = (ast.literal_eval(line) for line in instructions("CMD "))
    assert command == ["serve", "--insecure", "--config", "/etc/pocketmq.yaml"]
    assert instructions("COPY ")[-1].split() == ["docker/pocketmq.yaml", command[-1]]
    assert settings.store.path == "/store"
    ports = {str(settings.broker.port), str(settings.nameserver.port)}
    assert set(instructions("EXPOSE ")[0].split()) == ports
    assert ports == {str(BrokerConfig().port), str(NameServerConfig().port)}


def test_the_container_itself_knows_the_name_that_our_clients_are_told() -> None:
    address = load_settings(DOCKER / "pocketmq.yaml").broker.advertised_address
    told = address.partition(":")[0]

    (run,) = re.findall(r"docker run (.*)", (DOCKER / "Dockerfile").read_text("utf-8"))
    assert f"--hostname {told} " in run
    assert told in compose()["services"]


def test_a_broker_without_users_is_published_on_this_machine_alone() -> None:
    texts = [(DOCKER / "Dockerfile").read_text("utf-8")]
    texts += [path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")]
    texts += [(ROOT / "README.md").read_text("utf-8")]
    published = [
        port
        for text in texts
        for command in re.findall(r"docker run (.*)", text)
        for port in re.findall(r"(?:-p|--publish)[ =](\S+)", command)
    ]
    published += [
        str(port) for service in compose()["services"].values() for port in service.get("ports", ())
    ]

    assert len(published) >= 4
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_an_image_is_made_of_nothing_that_git_leaves_out() -> None:
    ignored, left_out = (
        set((ROOT / name).read_text("utf-8").replace("**/", "").splitlines())
        for name in (".gitignore", ".dockerignore")
    )

    assert ignored <= left_out


def test_the_services_name_each_other_and_files_that_are_there() -> None:
    services = compose()["services"]

    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DOCKER / source).exists()
        for script in re.findall(r"/clients/(\S+)", str(service.get("command", ""))):
            assert (DOCKER / "clients" / script).is_file()
    assert load_settings(DOCKER / "pocketmq.yaml").broker.advertised_address == "pocketmq:8081"


def test_the_clients_are_those_that_are_tested() -> None:
    commands = str(compose()["services"])
    (python,) = (
        line
        for line in (OFFICIAL / "python" / "requirements.txt").read_text("utf-8").splitlines()
        if line.startswith("rocketmq-python-client")
    )
    node = json.loads((OFFICIAL / "node" / "package.json").read_text("utf-8"))["dependencies"]

    assert python in commands
    assert f"rocketmq-client-nodejs@{node['rocketmq-client-nodejs']}" in commands


def test_the_topics_of_the_services_are_made_by_a_command_that_there_is() -> None:
    from pocketmq.tools.topic import topic

    command = compose()["services"]["topic"]["command"]
    options = {word for word in command if word.startswith("--")}

    shown = CliRunner().invoke(topic, ["create", "--help"]).output

    assert command[:2] == ["topic", "create"]
    assert all(option in shown for option in options)


def test_each_service_runs_a_command_that_takes_its_words() -> None:
    ours = {
        name: service["command"]
        for name, service in compose()["services"].items()
        if "build" in service and "command" in service
    }

    assert {"topic", "replica-set", "replica-1", "replica-2", "replica-3"} <= ours.keys()
    for words in ours.values():
        command: click.Command = cli
        name = "pocketmq"
        while isinstance(command, click.Group):
            name, *words = words
            found = command.get_command(click.Context(command), name)
            assert found is not None, name
            command = found
        command.make_context(name, words)


def test_replicas_are_those_of_the_set_and_speak_to_each_other() -> None:
    services = compose()["services"]
    made = dict(word.split("=") for word in services["replica-set"]["command"] if "=" in word)

    for one, address in made.items():
        words = services[f"replica-{one}"]["command"]
        options = dict(zip(words[1::2], words[2::2], strict=True))
        assert options["--replica-id"] == one
        assert options["--replication-listen"] == address
        assert options["--replica-set"] == services["replica-set"]["command"][2]
        assert services[f"replica-{one}"]["healthcheck"]["test"][-1].endswith(options["--port"])
    assert len(made) == 3
    assert "/wheels/pocketmq-*.whl)[replication]" in instructions("RUN")[-1]


def test_the_image_has_the_c_core() -> None:
    build, _ = instructions("RUN")

    assert "POCKETMQ_CORE=1 pip wheel" in build


def test_services_depend_on_services_that_start_with_them_and_on_volumes_that_there_are() -> None:
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    services, volumes = document["services"], document["volumes"]

    for name, service in services.items():
        wanted = service.get("depends_on", {})
        conditions = wanted if isinstance(wanted, dict) else {one: {} for one in wanted}
        for other, how in conditions.items():
            assert set(services[other].get("profiles", ())) <= set(service.get("profiles", ())), (
                name
            )
            condition = how.get("condition", "service_started")
            assert condition.removeprefix("service_") in (
                "started",
                "healthy",
                "completed_successfully",
            )
            if condition == "service_healthy":
                checked = services[other].get(
                    "healthcheck", {"disable": "build" not in services[other]}
                )
                assert not checked.get("disable"), f"{name} waits for ever for {other}"
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in volumes or (DOCKER / source).exists(), f"{name}: {volume}"


def test_scripts_are_well_formed() -> None:
    for script in Path(DOCKER / "clients").glob("*.py"):
        ast.parse(script.read_text("utf-8"))
