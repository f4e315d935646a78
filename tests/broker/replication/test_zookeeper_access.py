"""A ZooKeeper with TLS and accounts: who gets in, whose nodes are whose, and what is said of nodes that are open."""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pocketmq.broker.replication.config import ReplicationConfig
from pocketmq.broker.replication.registry import LiveNode, ReplicaSetState
from pocketmq.broker.replication.zookeeper import ZooKeeperRegistry, ZooKeeperSession
from pocketmq.broker.replication.zookeeper_access import OPEN_TO_ALL, ZooKeeperAccess
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import ConfigError, RegistryUnavailable
from pocketmq.tools import cli
from pocketmq.tools.zookeeper_server import ZooKeeperServer, free_ports

from ...authority import Authority
from ...zookeeper.servers import running

CELL: Final = ReplicaSetState(
    epoch=1, master=1, in_sync=frozenset({1}), replicas={1: "127.0.0.1:1"}
)
LIVE: Final = LiveNode(address="127.0.0.1:1", epoch=1, end=0)
SESSION_MS: Final = 5_000
SECRET: Final = "größe-secret"
JAAS: Final = """
Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required user_pocketmq="{secret}";
}};
"""
_numbers = itertools.count(1)


@dataclass
class Secured:
    """A ZooKeeper whose TLS port is SECURE, in FOLDER with what clients need."""

    server: ZooKeeperServer
    folder: Path
    secure: str

    def config(self, auth: str = "", *, tls: bool = True, **more: Any) -> ReplicationConfig:
        settings: dict[str, Any] = {}
        if tls:
            settings["zookeeper_tls_ca"] = str(self.folder / "ca.pem")
        if auth:
            settings |= {
                "zookeeper_auth": auth,
                "zookeeper_user": "pocketmq",
                "zookeeper_secret_file": str(self.folder / "secret"),
            }
        return ReplicationConfig(**settings | more)

    async def open(self, config: ReplicationConfig, name: str) -> ZooKeeperRegistry:
        """Open the registry of the set NAME below a root of its own: the first account has what it creates."""
        where = self.secure if config.zookeeper_tls_ca else self.server.address
        return await ZooKeeperRegistry.open(
            f"{where}/{name}",
            "c",
            name,
            session_ms=SESSION_MS,
            now_ms=SystemClock().now_ms,
            access=ZooKeeperAccess.of(config),
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority("zookeeper")
    shown = authority.certificate(name="127.0.0.1", addresses=["127.0.0.1"])
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / "other.pem").write_bytes(Authority("other").pem)
    (folder / "server.pem").write_bytes(shown.key + shown.chain)
    (folder / "jaas.conf").write_text(JAAS.format(secret="sasl-secret"))
    for name, text in (("secret", SECRET), ("wrong", "wrong"), ("sasl", "sasl-secret")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    (port,) = free_ports(1)
    more = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.clientAuth": "none",
        "ssl.keyStore.location": str(folder / "server.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(folder / "ca.pem"),
        "ssl.trustStore.type": "PEM",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "-Djava.security.auth.login.config": str(folder / "jaas.conf"),
    }
    with running(folder / "zookeeper", more=more) as (server,):
        yield Secured(server, folder, f"127.0.0.1:{port}")


@pytest.mark.java
@pytest.mark.processes
@pytest.mark.parametrize(
    ("auth", "tls", "secret"),
    [("digest", True, "secret"), ("sasl", True, "sasl"), ("sasl", False, "sasl")],
)
async def test_nodes_of_an_account_are_its_own(
    secured: Secured, auth: str, tls: bool, secret: str
) -> None:
    name = f"set-{next(_numbers)}"
    config = secured.config(auth, tls=tls, zookeeper_secret_file=str(secured.folder / secret))
    owner = await secured.open(config, name)
    await owner.create(CELL)
    await owner.announce(1, LIVE)
    try:
        again = await secured.open(config, name)
        assert (await again.read()) is not None
        assert (await again.live()) == {1: LIVE}
        assert await again.open_nodes() == []
        await again.close()

        stranger = await secured.open(secured.config(), name)
        with pytest.raises(ConfigError, match="a client without an account"):
            await stranger.read()
        with pytest.raises(ConfigError, match="without an account"):
            await stranger.announce(2, replace(LIVE, address="127.0.0.1:2"))
        await stranger.close()
    finally:
        await owner.close()


@pytest.mark.java
@pytest.mark.processes
async def test_a_wrong_secret_is_refused_in_either_way(secured: Secured) -> None:
    wrong: dict[str, Any] = {"zookeeper_secret_file": str(secured.folder / "wrong")}
    name = f"set-{next(_numbers)}"
    owner = await secured.open(secured.config("digest"), name)
    await owner.create(CELL)
    await owner.close()
    # ZooKeeper believes any digest: it is another account.
    other = await secured.open(secured.config("digest", **wrong), f"set-{next(_numbers)}")
    await other.close()
    with pytest.raises(ConfigError, match="does not give user 'pocketmq'"):
        await (await secured.open(secured.config("digest", **wrong), name)).read()
    with pytest.raises(ConfigError, match="refused the account 'pocketmq'"):
        await secured.open(secured.config("sasl", **wrong), name)


@pytest.mark.long
@pytest.mark.java
@pytest.mark.processes
async def test_a_server_that_is_not_who_it_should_be_is_not_spoken_to(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo

    def of_ipv4(host: Any, port: Any, _: int = 0, *more: Any) -> Any:
        return resolve(host, port, socket.AF_INET, *more)

    monkeypatch.setattr(socket, "getaddrinfo", of_ipv4)  # The server does not listen on ::1.
    stranger = secured.config(zookeeper_tls_ca=str(secured.folder / "other.pem"))
    with pytest.raises(RegistryUnavailable, match=r"(?s)last attempt.*certificate"):
        await secured.open(stranger, "s")
    host = secured.secure.replace("127.0.0.1", "localhost")  # Its certificate is for the address.
    with pytest.raises(RegistryUnavailable, match=r"(?s)last attempt.*localhost"):
        await ZooKeeperSession.open(
            host,
            session_ms=SESSION_MS,
            now_ms=SystemClock().now_ms,
            access=ZooKeeperAccess.of(secured.config()),
        )


@pytest.mark.java
@pytest.mark.processes
async def test_nodes_that_everyone_may_change_are_named(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"set-{next(_numbers)}"
    before = await secured.open(secured.config(), name)
    try:
        await before.create(CELL)
    finally:
        await before.close()
    with caplog.at_level(logging.WARNING):
        owner = await secured.open(secured.config("digest"), name)
    try:
        assert f"/pocketmq/c/sets/{name}/state" in caplog.text
        assert "can be changed by every client" in caplog.text
        assert await owner.open_nodes() == [
            "/pocketmq",
            "/pocketmq/c",
            "/pocketmq/c/sets",
            f"/pocketmq/c/sets/{name}",
            f"/pocketmq/c/sets/{name}/state",
        ]
    finally:
        await owner.close()


@pytest.mark.java
@pytest.mark.processes
def test_commands_use_the_account_of_the_configuration_file(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = secured.config("digest")
    settings = {name: getattr(config, name) for name in ("zookeeper_tls_ca", "zookeeper_auth")}
    settings |= {
        name: getattr(config, name) for name in ("zookeeper_user", "zookeeper_secret_file")
    }
    file = tmp_path / "replica.yaml"
    file.write_text(yaml.safe_dump({"replication": settings}))
    name = f"set-{next(_numbers)}"
    where = ["--zookeeper", f"{secured.secure}/{name}", "--cluster", "c", "--config", str(file)]
    assert cli.run(["replicas", "init", name, "1=127.0.0.1:1", *where]) == 0
    assert cli.run(["replicas", "status", name, *where]) == 0
    assert name in capsys.readouterr().out
    assert (
        cli.run(
            [
                "replicas",
                "status",
                name,
                "--zookeeper",
                f"{secured.server.address}/{name}",
                "--cluster",
                "c",
            ]
        )
        == 2
    )
    assert "without an account" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zookeeper_tls_cert": "c"}, "zookeeper_tls_key is empty"),
        ({"zookeeper_tls_cert": "c", "zookeeper_tls_key": "k"}, "zookeeper_tls_ca is empty"),
        ({"zookeeper_user": "u"}, "zookeeper_auth is empty"),
        ({"zookeeper_auth": "digest"}, "zookeeper_user is empty"),
        ({"zookeeper_auth": "sasl", "zookeeper_user": "u"}, "zookeeper_secret_file is empty"),
        (
            {"zookeeper_auth": "sasl", "zookeeper_user": "u:v", "zookeeper_secret_file": "f"},
            "must not contain a colon",
        ),
    ],
)
def test_half_an_account_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ReplicationConfig(**settings)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    (tmp_path / "empty").touch(0o600)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"zookeeper_tls_ca": str(tmp_path / "none")}, "zookeeper_tls_ca: .*none cannot be used"),
        ({"zookeeper_tls_ca": str(tmp_path / "text")}, "zookeeper_tls_ca: .*text cannot be used"),
        (
            {
                "zookeeper_auth": "digest",
                "zookeeper_user": "u",
                "zookeeper_secret_file": str(tmp_path / "empty"),
            },
            "zookeeper_secret_file: its first line is empty",
        ),
    ]
    for settings, words in refused:
        with pytest.raises(ConfigError, match=words):
            ZooKeeperAccess.of(ReplicationConfig(**settings))


def test_a_digest_goes_in_plaintext_to_this_machine_alone() -> None:
    digest = ZooKeeperAccess(auth="digest", user="u", secret="s")
    digest.check_servers("127.0.0.1:2181,[::1]:2181/root")
    replace(digest, auth="sasl").check_servers("10.0.0.1:2181")
    OPEN_TO_ALL.check_servers("10.0.0.1:2181")
    with pytest.raises(ConfigError, match=r"would send the secret to 10\.0\.0\.1:2181"):
        digest.check_servers("127.0.0.1:2181,10.0.0.1:2181")
