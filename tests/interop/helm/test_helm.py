"""The Helm chart: Kubernetes' schemas take what it renders, our own reading takes its settings, its commands serve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pocketmq import __version__
from pocketmq.proto.access.files import UserFile
from pocketmq.tools.options import READY
from pocketmq.tools.settings import Settings, load_settings

from ...repository.source_tree import ROOT
from ..go_tools import go_tool, leave_out

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900), pytest.mark.long]

CHART: Final = ROOT / "helm" / "pocketmq"
#: The oldest version that the chart takes, and a new one.
KUBERNETES: Final = ("1.25", "1.34")
USERS: Final = "users:\n  root: {secret: s3cret, type: Super}\n"
REPLICAS: Final[dict[str, Any]] = {
    "users": {"existingSecret": "users"},
    "tls": {"existingSecret": "tls"},
    "replicaSet": {
        "enabled": True,
        "zookeeper": ["zk-0.zk:2181", "zk-1.zk:2181"],
        "certificates": {"existingSecret": "replicas"},
    },
}
CHOICES: Final[dict[str, dict[str, Any]]] = {
    "insecure": {"insecure": True},
    "users": {"users": {"file": USERS}, "config": {"store": {"retention_ms": 7_200_000}}},
    "dressed": {
        "insecure": True,
        "imagePullSecrets": [{"name": "registry"}],
        "storage": {"className": "fast"},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "podAnnotations": {"prometheus.io/scrape": "true"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "advertisedAddress": "mq.example:8081",
    },
    "replicas": REPLICAS,
    "account": REPLICAS
    | {
        "replicaSet": REPLICAS["replicaSet"]
        | {"zookeeperAccess": {"existingSecret": "zk", "auth": "digest", "user": "pocketmq"}}
    },
}


@pytest.fixture(scope="module")
def helm() -> list[str]:
    return go_tool("helm", "helm.sh/helm/v3/cmd/helm", Path(__file__).resolve().parent)


def rendered(
    helm: list[str], values: dict[str, Any], kubernetes: str = KUBERNETES[-1]
) -> dict[tuple[str, str], Any]:
    """Return what the chart makes of VALUES, by kind and name."""
    done = told_of(helm, values, kubernetes)
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def told_of(
    helm: list[str], values: dict[str, Any], kubernetes: str = KUBERNETES[-1]
) -> subprocess.CompletedProcess[str]:
    command = [*helm, "template", "mq", str(CHART), "--namespace", "shop", "--values", "-"]
    command += ["--kube-version", f"{kubernetes}.0"]
    return subprocess.run(
        command, input=json.dumps(values), capture_output=True, text=True, check=False
    )


def containers(documents: dict[tuple[str, str], Any]) -> Iterator[tuple[str, Any]]:
    for (kind, name), document in documents.items():
        if "template" in document.get("spec", {}):
            for container in document["spec"]["template"]["spec"]["containers"]:
                yield f"{kind} {name}", container


def settings_in(documents: dict[tuple[str, str], Any], host: str, folder: Path) -> Settings:
    """Return what a server reads in the pod that is called HOST."""
    text = documents["ConfigMap", "mq-pocketmq"]["data"]["pocketmq.yaml"]
    number = int(host.rpartition("-")[2]) + 1
    file = folder / "pocketmq.yaml"
    file.write_text(text.replace("@POD@", host).replace("@ID@", str(number)))
    return load_settings(file)


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("choice", CHOICES)
def test_kubernetes_schemas_take_what_the_chart_renders(
    helm: list[str], choice: str, kubernetes: str
) -> None:
    try:
        import kubernetes_validate
    except ModuleNotFoundError:
        leave_out("kubernetes-validate is missing: install the dev group")
    documents = rendered(helm, CHOICES[choice], kubernetes)
    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes, strict=True)
    for _, container in containers(documents):
        assert container["image"] == f"pocketmq:{__version__}"


def test_a_schema_refuses_what_is_wrong(helm: list[str]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    (service,) = (
        one
        for (kind, name), one in rendered(helm, CHOICES["insecure"]).items()
        if (kind, name) == ("Service", "mq-pocketmq")
    )
    service["spec"]["ports"][0]["port"] = "a word"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize("choice", CHOICES)
def test_each_mount_has_a_volume_and_each_port_of_a_service_one_of_a_container(
    helm: list[str], choice: str
) -> None:
    documents = rendered(helm, CHOICES[choice])
    for document in documents.values():
        if "template" not in document.get("spec", {}):
            continue
        pod = document["spec"]["template"]["spec"]
        claims = document["spec"].get("volumeClaimTemplates", [])
        volumes = {one["name"] for one in pod["volumes"]} | {
            one["metadata"]["name"] for one in claims
        }
        for container in pod["containers"]:
            assert {one["name"] for one in container["volumeMounts"]} == volumes
    for (kind, _), document in documents.items():
        if kind != "Service":
            continue
        wanted = document["spec"]["selector"].items()
        pods = [
            one["spec"]["template"]
            for one in documents.values()
            if "template" in one.get("spec", {})
            and wanted <= one["spec"]["template"]["metadata"]["labels"].items()
        ]
        (pod,) = pods
        names = {port["name"] for one in pod["spec"]["containers"] for port in one.get("ports", [])}
        assert {one["targetPort"] for one in document["spec"]["ports"]} <= names


def test_the_settings_of_each_choice_are_read(helm: list[str], tmp_path: Path) -> None:
    alone = settings_in(rendered(helm, CHOICES["users"]), "mq-pocketmq-0", tmp_path)
    assert alone.broker.advertised_address == "mq-pocketmq.shop.svc:8081"
    assert alone.broker.users == alone.nameserver.users == "/run/pocketmq/users.yaml"
    assert alone.store.retention_ms == 7_200_000

    documents = rendered(helm, REPLICAS)
    third = settings_in(documents, "mq-pocketmq-2", tmp_path)
    assert (third.replication.replica_set, third.replication.replica_id) == ("orders", 3)
    script = documents["Job", "mq-pocketmq-init-1"]["spec"]["template"]["spec"]["containers"][0]
    assert f"3={third.replication.address}" in script["args"][0].split()
    assert third.broker.nameservers == tuple(
        f"mq-pocketmq-nameserver-{number}.mq-pocketmq-nameservers.shop.svc:9876"
        for number in (0, 1)
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "users.existingSecret"),
        ({"insecure": True, "replicaSet": {"enabled": True}}, "replicaSet.zookeeper"),
        (REPLICAS | {"replicaSet": {"enabled": True, "zookeeper": ["a:1"]}}, "certificates"),
        ({"insecure": True, "storrage": {}}, "storrage"),
        ({"insecure": True, "config": {"broker": {"tls_only": True}}}, "the probes"),
        ({"insecure": True, "config": {"nameserver": {"tls_ca": "x"}}}, "the probes"),
        ({"insecure": True, "config": {"brokers": {}}}, "brokers"),
    ],
)
def test_what_would_not_work_is_refused_with_what_to_do(
    helm: list[str], values: dict[str, Any], words: str
) -> None:
    done = told_of(helm, values)
    assert done.returncode != 0
    assert words in done.stderr


def test_the_command_of_the_pod_serves_with_the_secrets_users_and_its_probe_says_so(
    helm: list[str], tmp_path: Path
) -> None:
    documents = rendered(helm, CHOICES["users"])
    (container,) = (one for name, one in containers(documents) if name.startswith("StatefulSet"))
    folders = {one["mountPath"]: tmp_path / one["name"] for one in container["volumeMounts"]}
    for folder in folders.values():
        folder.mkdir()
    settings = documents["ConfigMap", "mq-pocketmq"]["data"]["pocketmq.yaml"]
    # Ports that are free, and this machine's loopback, stand for those of the pod.
    settings = yaml.safe_load(settings)
    for section in ("broker", "nameserver"):
        settings[section] |= {"host": "127.0.0.1", "port": 0}
    del settings["broker"]["advertised_address"]
    text = yaml.safe_dump(settings)
    (tmp_path / "settings" / "pocketmq.yaml").write_text(in_folders(text, folders))
    secret = documents["Secret", "mq-pocketmq-users"]["stringData"]["users.yaml"]
    # As others may read it, in a Secret's volume.
    (tmp_path / "users" / "users.yaml").write_text(secret)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "pocketmq").write_text(f'#!/bin/sh\nexec {sys.executable} -m pocketmq "$@"\n')
    (programs / "pocketmq").chmod(0o755)
    environment = os.environ | {
        "HOSTNAME": "mq-pocketmq-0",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    (script,) = container["args"]
    process = subprocess.Popen(
        [*container["command"], in_folders(script, folders)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith(READY))
        address = json.loads(line.removeprefix(READY))["broker"]
        assert set(UserFile(tmp_path / "run" / "users.yaml").read()) == {"root"}
        probe = container["readinessProbe"]["exec"]["command"]
        probe = [address if word == "127.0.0.1:8081" else word for word in probe]
        subprocess.run([sys.executable, "-m", *probe], check=True)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "store" / "data" / "checkpoint").is_file()


def in_folders(text: str, folders: dict[str, Path]) -> str:
    """Return TEXT with the paths of mounts as they are here."""
    for path in sorted(folders, key=len, reverse=True):
        if path != "/tmp":
            text = text.replace(f"{path}/", f"{folders[path]}/")
    return text
