"""How replicas and commands authenticate to ZooKeeper, and who may change the nodes that they create.

    zookeeper_tls_ca         TLS: an authority of this file signed the server's certificate, for the host dialled
    zookeeper_tls_cert       shown to a server that asks for one, with zookeeper_tls_key
    zookeeper_auth           digest: user and secret are sent to the server, and so need TLS beyond loopback
                             sasl:   DIGEST-MD5, which proves the secret without sending it
    zookeeper_user, zookeeper_secret_file

With an account, nodes are created with all rights for that account and none for others (ZooKeeper's CREATOR_ALL_ACL).
All replicas of a set, and the commands, use the same account. Nodes that were created before stay open to everyone
until their ACL is set: `open_paths` names them.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...proto.access.policies import is_loopback
from ...proto.access.secret_files import read_secret_file
from ...proto.errors import ConfigError
from ...proto.extras import pip_install
from .config import ReplicationConfig

if TYPE_CHECKING:
    from kazoo.client import KazooClient

#: ZooKeeper's permissions but READ: create, delete, write, administer.
_CHANGING: Final = 0b11110


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """The credentials of a client: TLS context and account; empty: plaintext without an account."""

    tls: ssl.SSLContext | None = None
    auth: str = ""
    user: str = ""
    secret: str = ""

    @classmethod
    def of(cls, config: ReplicationConfig) -> ZooKeeperAccess:
        """Return the access in CONFIG. Raises ConfigError for files that cannot be used."""
        secret = ""
        if config.zookeeper_auth:
            secret = read_secret_file(
                config.zookeeper_secret_file, "replication.zookeeper_secret_file"
            )
            if not secret:
                raise ConfigError(
                    "replication.zookeeper_secret_file: its first line is empty: write the secret there",
                    field="zookeeper_secret_file",
                )
        return cls(_context(config), config.zookeeper_auth, config.zookeeper_user, secret)

    def check_servers(self, servers: str) -> None:
        """Raise ConfigError if the secret would go to one of SERVERS in plaintext."""
        if self.auth != "digest" or self.tls is not None:
            return
        for server in servers.partition("/")[0].split(","):
            host = server.rpartition(":")[0].strip("[]")
            if not is_loopback(host):
                raise ConfigError(
                    f"replication.zookeeper_auth is digest, which would send the secret to {server} in plaintext: set"
                    " replication.zookeeper_tls_ca for TLS, or use sasl",
                    field="zookeeper_auth",
                    value=server,
                )

    def settings(self) -> dict[str, Any]:
        """Return arguments for a KazooClient. Raises ConfigError if a library is missing."""
        settings: dict[str, Any] = {}
        if self.auth:
            from kazoo.security import CREATOR_ALL_ACL

            settings["default_acl"] = CREATOR_ALL_ACL
        if self.auth == "digest":
            settings["auth_data"] = [("digest", f"{self.user}:{self.secret}")]
        elif self.auth == "sasl":
            try:
                import puresasl  # noqa: F401
            except ImportError:
                raise ConfigError(
                    f"replication.zookeeper_auth is sasl, which needs pure-sasl: {pip_install('replication')}",
                    field="zookeeper_auth",
                ) from None
            settings["sasl_options"] = {
                "mechanism": "DIGEST-MD5",
                "username": self.user,
                "password": self.secret,
            }
        return settings


#: Plaintext without an account.
OPEN_TO_ALL: Final = ZooKeeperAccess()


def _context(config: ReplicationConfig) -> ssl.SSLContext | None:
    if not config.zookeeper_tls_ca:
        return None
    name, path = "zookeeper_tls_ca", config.zookeeper_tls_ca
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # It checks certificates and host names.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(config.zookeeper_tls_ca)
        if config.zookeeper_tls_cert:
            name, path = "zookeeper_tls_cert", config.zookeeper_tls_cert
            context.load_cert_chain(config.zookeeper_tls_cert, config.zookeeper_tls_key)
    except (OSError, ValueError) as error:  # An SSLError is an OSError.
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"replication.{name}: {path} cannot be used ({reason}): set it to a PEM file, and zookeeper_tls_key to the"
            " key of zookeeper_tls_cert",
            field=name,
            value=path,
        ) from None
    return context


async def open_paths(ask: Any, paths: list[str]) -> list[str]:
    """Return those of PATHS that every client may change. ASK is that of a session. Missing nodes are left out."""
    from kazoo import exceptions

    found = []
    for path in paths:
        try:
            acls, _ = await ask(lambda client, path=path: _acls_of(client, path))
        except exceptions.NoNodeError:
            continue
        if any(acl.id.scheme == "world" and acl.perms & _CHANGING for acl in acls):
            found.append(path)
    return found


def _acls_of(client: KazooClient, path: str) -> Any:
    return client.get_acls_async(path)
