"""Settings of a broker that is one of a replica set, and what follows from them for its replica."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from ...proto.access.policies import is_loopback
from ...proto.errors import ConfigError, InvalidName
from ...proto.topics import check_new_topic
from .in_sync import ReplicaSettings

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+):([0-9]{1,5})")
_LEAST: Final = {
    "replica_id": 0,
    "min_in_sync": 1,
    "replica_lag_ms": 1_000,
    "session_ms": 500,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicationConfig:
    """Which replica of which set a broker is, and the guarantees of the set."""

    #: No setting changes without a restart: the replica announces them once.
    LIVE: ClassVar[frozenset[str]] = frozenset()

    #: Name of the replica set, which is also the name of the broker; empty: the broker has no
    #: replicas.
    replica_set: str = ""
    #: Id of the replica in its set, from 1 on; it never changes.
    replica_id: int = 0
    #: The ZooKeeper servers with the metadata of the set, "host:port".
    zookeeper: tuple[str, ...] = ()
    #: PEM file of the authority of ZooKeeper's certificates, for TLS; empty: plaintext.
    zookeeper_tls_ca: str = ""
    #: PEM files of a client certificate for ZooKeeper, and of its key; empty: none.
    zookeeper_tls_cert: str = ""
    zookeeper_tls_key: str = ""
    #: How to authenticate: "digest", or "sasl" (DIGEST-MD5); empty: no account, all clients may
    #: change the nodes.
    zookeeper_auth: Literal["", "digest", "sasl"] = ""
    #: The account, the same for all replicas, and the file whose first line is its secret.
    zookeeper_user: str = ""
    zookeeper_secret_file: str = ""

    #: Address for the other replicas on this machine, "host:port".
    listen: str = "127.0.0.1:8082"
    #: Address that the other replicas dial, if it differs; the metadata in ZooKeeper must have it,
    #: too.
    address: str = ""
    #: PEM files of the replica's certificate and its key; empty: plaintext, on loopback only.
    tls_cert: str = ""
    tls_key: str = ""
    #: PEM file of the authorities of the set's certificates: each client with such a certificate counts as a replica.
    tls_ca: str = ""
    #: How many replicas must have a message before acks="replicas" acknowledges it, including the
    #: master.
    min_in_sync: int = 1
    #: What these replicas must have done: have it on "disk", or in "memory", which a power cut of
    #: all may lose.
    replica_ack: Literal["disk", "memory"] = "disk"
    #: When ZooKeeper learns up to which record messages were acknowledged, so that an old copy of a
    #: folder is not elected: once per "second", or before "each" acknowledgement (one write per
    #: batch of acknowledgements).
    mark: Literal["second", "each"] = "second"
    #: A follower that has not caught up for this time leaves the in-sync set; acks="replicas" may
    #: wait that long.
    replica_lag_ms: int = 10_000
    #: ZooKeeper regards a replica as dead after this time: a failover takes it and about half a
    #: second.
    session_ms: int = 2_000

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) < least:
                raise _refused(name, f"is {value}: must be at least {least}")
        self._check_places()
        self._check_zookeeper()
        if self.replica_set:
            self._check_set()

    def _check_places(self) -> None:
        host, port = _address("listen", self.listen)
        if port == 0 or (self.address and _address("address", self.address)[1] == 0):
            name = "address" if port else "listen"
            raise _refused(
                name,
                f"is {getattr(self, name)}: other replicas dial it, so its port must be 1 to 65535",
            )
        files = {name: getattr(self, name) for name in ("tls_cert", "tls_key", "tls_ca")}
        if any(files.values()) and not all(files.values()):
            missing = next(name for name, value in files.items() if not value)
            raise _refused(missing, "is empty: set all of tls_cert, tls_key and tls_ca, or none")
        if not is_loopback(host) and not self.tls_cert:
            raise _refused(
                "listen",
                f"is {self.listen}, which other machines reach, and each client counts as a replica: set"
                " certificates (replication.tls_cert, tls_key, tls_ca), or listen on 127.0.0.1",
            )

    def _check_zookeeper(self) -> None:
        if bool(self.zookeeper_tls_cert) != bool(self.zookeeper_tls_key):
            missing = "zookeeper_tls_key" if self.zookeeper_tls_cert else "zookeeper_tls_cert"
            raise _refused(missing, "is empty: set both the certificate and its key, or none")
        if self.zookeeper_tls_cert and not self.zookeeper_tls_ca:
            raise _refused("zookeeper_tls_ca", "is empty: a client certificate requires TLS")
        account = (self.zookeeper_user, self.zookeeper_secret_file)
        if any(account) and not self.zookeeper_auth:
            raise _refused("zookeeper_auth", "is empty: set it to digest or sasl for the account")
        if self.zookeeper_auth and not all(account):
            missing = "zookeeper_secret_file" if self.zookeeper_user else "zookeeper_user"
            raise _refused(missing, "is empty: an account needs a user and a file with the secret")
        if ":" in self.zookeeper_user:
            raise _refused(
                "zookeeper_user", f"is {self.zookeeper_user!r:.80}: it must not contain a colon"
            )

    def _check_set(self) -> None:
        try:
            check_new_topic(
                self.replica_set
            )  # It is also the name of the broker, and of a system topic.
        except InvalidName as error:
            raise _refused("replica_set", f"is not a valid name: {error.message}") from error
        if self.replica_id < 1:
            raise _refused(
                "replica_id",
                f"is {self.replica_id}: each replica needs its own id, from 1 on",
            )
        if self.mark == "each" and self.replica_ack == "memory":
            raise _refused(
                "mark",
                'is "each", which acknowledges what is on disk: set replication.replica_ack to "disk", or mark to'
                ' "second"',
            )
        if not self.zookeeper:
            raise _refused("zookeeper", "is empty: list the ZooKeeper servers, host:port each")
        for one in self.zookeeper:
            _address("zookeeper", one.partition("/")[0])

    @property
    def place(self) -> tuple[str, int]:
        """The host and port to listen on."""
        return _address("listen", self.listen)

    def settings(
        self, *, cluster: str, client_address: str, file_size: int, flush_sync: bool
    ) -> ReplicaSettings:
        """Return the settings of the replica."""
        return ReplicaSettings(
            cluster=cluster,
            set_name=self.replica_set,
            replica_id=self.replica_id,
            address=self.address or self.listen,
            client_address=client_address,
            file_size=file_size,
            min_in_sync=self.min_in_sync,
            replica_ack=self.replica_ack,
            mark=self.mark,
            flush_sync=flush_sync,
            replica_lag_ms=self.replica_lag_ms,
            session_ms=self.session_ms,
        )


def _address(name: str, value: str) -> tuple[str, int]:
    """Return host and port in VALUE."""
    found = _ADDRESS.fullmatch(value)
    if found is None or int(found[2]) > 65_535:
        raise _refused(name, f"is {value!r:.80}: must be host:port")
    return found[1].strip("[]"), int(found[2])


def _refused(name: str, fault: str) -> ConfigError:
    return ConfigError(f"replication.{name} {fault}", field=name)
