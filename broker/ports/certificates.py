"""The TLS certificate of the broker: the operator's, or one made for development.

The operator's two PEM files (`broker.tls_cert`, with intermediate certificates appended, and `broker.tls_key`)
are read at start and again on `reload`. Without them a self-signed certificate is created for the first TLS client:

    <root>/pocketmq/tls/certificate.pem     for localhost, 127.0.0.1, ::1, the machine's name and the broker's address
    <root>/pocketmq/tls/key.pem             an EC key (P-256), readable by its owner only

It is valid for ten years and replaced when less than 30 days are left, or when the two files do not belong together.
Clients that verify use `certificate.pem` as their root. If you delete the folder, a new certificate is created.

Replicas show each other a certificate of their operator (`replication.tls_cert`, `tls_key`, `tls_ca`), or speak
plaintext. Any client with a certificate of these authorities counts as a replica, whatever name is in it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ...proto.clock import Clock
from ...proto.errors import ConfigError, PocketMQError
from ...proto.rpc import Certificate
from ...proto.tls import parsed_certificate, read_authorities, read_certificate
from ...store.disk import Disk
from ..config import BrokerConfig
from ..replication.config import ReplicationConfig

logger = logging.getLogger(__name__)

_VALID: Final = timedelta(days=3650)
#: Clocks of clients may be slow.
_BEFORE: Final = timedelta(days=1)
_LEFT_MIN: Final = timedelta(days=30)


class Certificates:
    """The certificate of the broker with CONFIG. FOLDER on DISK is its own folder. WALL is the machine's time."""

    def __init__(self, config: BrokerConfig, disk: Disk, folder: str, wall: Clock) -> None:
        self._config = config
        self._disk = disk
        self._folder = f"{folder}/tls"
        self._wall = wall
        self._current: Certificate | None = None
        #: Authorities of client certificates; empty: clients need no certificate.
        self._authorities = b""

    def load(self) -> None:
        """Read the operator's files, if there are any; raise ConfigError if they cannot be used."""
        config = self._config
        authorities = b""
        if config.tls_ca:
            authorities = read_authorities(self._disk.read, "broker", "tls_ca", config.tls_ca)
        if config.tls_cert:
            shown = read_certificate(self._disk.read, "broker", config.tls_cert, config.tls_key)
            self._current = replace(shown, authorities=authorities)
        elif self._current is not None and self._current.authorities != authorities:
            self._current = replace(self._current, authorities=authorities)
        self._authorities = authorities

    def reload(self) -> None:
        """Like `load`, for new connections. If the files cannot be used, nothing changes, and the reason is logged."""
        try:
            self.load()
        except ConfigError as error:
            logger.error("certificate not reloaded reason=%s", error.message)
        else:
            logger.info("certificate reloaded")

    def current(self) -> Certificate:
        """Return the certificate. Call `prepare`, or `load` with files, before. Thread-safe."""
        assert self._current is not None, "call prepare before"
        return self._current

    async def prepare(self) -> None:
        """Create the certificate if there is none; raises ConfigError or StoreError."""
        if self._current is None:
            found = await self._kept() or await self._made()
            self._current = replace(found, authorities=self._authorities)

    @property
    def _paths(self) -> tuple[str, str]:
        return f"{self._folder}/certificate.pem", f"{self._folder}/key.pem"

    async def _kept(self) -> Certificate | None:
        chain_path, key_path = self._paths
        try:
            found = Certificate(chain=self._disk.read(chain_path), key=self._disk.read(key_path))
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("certificate not read path=%s reason=%s", self._folder, error)
            return None
        try:
            certificate = await asyncio.to_thread(parsed_certificate, found.chain, found.key)
        except ValueError as error:
            logger.warning("certificate not used path=%s reason=%s", chain_path, error)
            return None
        return found if certificate.not_valid_after_utc - self._now() > _LEFT_MIN else None

    async def _made(self) -> Certificate:
        names = [self._config.host, self._config.advertised_address.rpartition(":")[0]]
        made = await asyncio.to_thread(development_certificate, names, self._now())
        chain_path, key_path = self._paths
        try:
            self._disk.make_folders(self._folder)
            self._disk.write_private(key_path, made.key)
            self._disk.write_atomically(chain_path, made.chain)
        except PocketMQError as error:
            # The broker can use it all the same; the next start creates another one.
            logger.warning("development certificate not stored reason=%s", error.message)
        else:
            logger.info("development certificate created path=%s", chain_path)
        return made

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall.unix_ms() / 1000, UTC)


def replica_certificate(config: ReplicationConfig, disk: Disk) -> Certificate | None:
    """Return the certificate that replicas present to each other, and their authorities; None: they use plaintext.

    Raises ConfigError, with the setting and the file, for what cannot be used.
    """
    if not config.tls_cert:
        return None
    shown = read_certificate(disk.read, "replication", config.tls_cert, config.tls_key)
    authorities = read_authorities(disk.read, "replication", "tls_ca", config.tls_ca)
    return replace(shown, authorities=authorities)


def development_certificate(hosts: Iterable[str], now: datetime) -> Certificate:
    """Return a self-signed certificate for this machine and HOSTS (names and addresses), valid from NOW on."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "PocketMQ development")])
    known = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *hosts]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(known)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        chain=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _alternative_names(hosts: Iterable[str]) -> list[Any]:
    """Return the names for HOSTS in a certificate, each once. Addresses that clients cannot dial are left out."""
    from cryptography import x509

    names: list[Any] = []
    for host in dict.fromkeys(host.strip("[]") for host in hosts):
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if host and host.isascii():
                names.append(x509.DNSName(host))
        else:
            if not address.is_unspecified:
                names.append(x509.IPAddress(address))
    return names
