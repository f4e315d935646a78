"""Settings of a broker: its names, where it listens, its limits and periods."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar, Final

from ..proto.carriers import check_grpc
from ..proto.errors import ConfigError, InvalidName
from ..proto.tls import Trust, check_tls
from ..proto.topics import check_new_topic

#: Sections of the settings that a broker's port serves.
BROKER_SECTIONS: Final = ("broker", "replication", "store", "log")
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """Settings of one broker. The defaults of names and numbers are those of Apache RocketMQ."""

    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    #: 0 is the master.
    broker_id: int = 0

    #: Settings that `pocketmq config set` and SIGHUP change while the broker runs. Read them here
    #: on each use.
    LIVE: ClassVar[frozenset[str]] = frozenset(
        {
            "auto_create_topics",
            "default_topic_queues",
            "topic_queues_max",
            "topics_max",
            "queues_max",
            "groups_max",
            "produce_batches_in_flight",
            "flush_waiting_max",
            "fetches_waiting_max",
            "fetches_in_flight",
            "fetch_max_bytes",
            "fetch_default_bytes",
            "fetch_messages_max",
            "fetch_wait_max_ms",
            "transaction_timeout_ms",
            "transaction_check_interval_ms",
            "transaction_checks_max",
            "transactions_open_max",
            "group_members_max",
            "members_max",
            "subscription_grace_ms",
            "group_rebalance_delay_ms",
            "group_initial_rebalance_max_ms",
            "lease_ms",
            "leases_max",
            "lease_waits_max",
            "pop_in_flight_max",
            "invisible_min_ms",
            "clients_max",
            "metrics_series_max",
            "metrics_names",
            "v2_delay_max_ms",
            "stop_grace_ms",
        }
    )

    REMOVED_KEYS: ClassVar[dict[str, str]] = {
        "direct_port": "a broker has one port with grpcio too; remove it, and let all clients connect to broker.port",
    }

    #: Address on which the broker listens; 127.0.0.1 accepts connections from this machine only.
    host: str = "127.0.0.1"
    port: int = 8081
    #: Address that name servers return to clients; empty: the host and port on which the broker
    #: listens.
    advertised_address: str = ""
    #: HTTP/2 server: "builtin", or "grpcio", which is slower (docs/ports.md).
    grpc: str = "builtin"
    #: Serve the remoting protocol of RocketMQ 4.x clients on the port too (docs/remoting.md). Not
    #: with "grpcio" or replicas.
    remoting: bool = True
    #: Accept TLS as well as plaintext. With "grpcio" and a certificate: TLS instead of plaintext.
    tls: bool = True
    #: Paths of PEM files; empty: a development certificate is created when it is first needed.
    tls_cert: str = ""
    tls_key: str = ""
    #: Refuse plaintext.
    tls_only: bool = False
    #: Path of a PEM file with authorities: clients need a certificate of one of them. Plaintext is
    #: refused.
    tls_ca: str = ""
    #: Connect to name servers, and to other replicas of the set, with TLS. Their certificates must
    #: be of an authority in the PEM file; empty: of an authority of the system. The broker presents
    #: its own certificate on request.
    peers_tls: bool = False
    peers_tls_ca: str = ""
    #: Path of a YAML file with users (docs/users-and-acls.md), read again when it changes; empty:
    #: no authentication.
    users: str = ""
    #: Accept credentials from other machines without TLS.
    plaintext_credentials: bool = False
    #: Maximum number of open connections; further ones are closed.
    connections_max: int = 10_000
    #: Bytes of incomplete requests on all connections together, and the same number for responses
    #: that clients have not read. Beyond the limit, the clients that hold the most bytes for the
    #: longest time lose their calls.
    pending_max_bytes: int = 256 * _MIB
    #: A connection of this age receives GOAWAY, and then has connection_grace_ms to finish open
    #: calls. Age 0: no limit. With grpcio there is never a limit.
    connection_age_ms: int = 7 * 86_400_000
    connection_age_grace_ms: int = 300_000
    #: Name the queues of all brokers of a topic in routes for official clients. Not with
    #: v2_endpoints.
    v2_cluster: bool = True
    #: Addresses "host:port" that official clients get; empty: the address that each
    #: client has dialled.
    v2_endpoints: tuple[str, ...] = ()
    #: Name servers, "host:port"; the broker registers at each of them.
    nameservers: tuple[str, ...] = ("127.0.0.1:9876",)
    registration_interval_ms: int = 30_000
    #: Accept Java slaves (docs/back-to-rocketmq.md). They connect to java_slaves_port and the port
    #: two below; the log is at the next one.
    java_slaves: bool = False
    java_slaves_host: str = "127.0.0.1"
    java_slaves_port: int = 10911

    #: Create a topic when a message for an unknown one arrives.
    auto_create_topics: bool = True
    #: Refuse messages of another type than their topic has. NORMAL topics accept all types from
    #: PocketMQ clients.
    topic_message_type_check: bool = True
    #: Queues of a topic that its first message creates, up to the 8 of TBW102.
    default_topic_queues: int = 4
    #: Maximum number of queues of a topic.
    topic_queues_max: int = 1024
    topics_max: int = 10_000
    #: Maximum number of queues of all topics together: each needs about 2 KB of memory, and time at
    #: a start.
    queues_max: int = 100_000
    groups_max: int = 10_000

    #: Maximum number of unanswered batches per stream; further ones are not read.
    produce_batches_in_flight: int = 256
    #: Maximum size of one batch in bytes.
    batch_max_bytes: int = 16 * _MIB
    #: Sends that may wait for a flush to disk, in all; further ones are refused.
    flush_waiting_max: int = 100_000
    #: Maximum number of sequences of idempotent producers, one per queue of each; the least
    #: recently used is forgotten.
    producers_max: int = 10_000
    #: A sequence that is not used for this time is forgotten.
    producer_expiry_ms: int = 86_400_000
    #: Maximum number of fetches that wait; further ones are answered at once.
    fetches_waiting_max: int = 100_000
    #: Maximum number of unanswered fetches per stream; further ones are not read.
    fetches_in_flight: int = 1024
    fetch_max_bytes: int = 4 * _MIB
    fetch_default_bytes: int = 1 * _MIB
    fetch_messages_max: int = 20_000
    fetch_wait_max_ms: int = 60_000

    #: How far ahead a delivery time may be (RocketMQ's timerMaxDelaySec). Delay levels have their
    #: own lengths.
    delay_max_ms: int = 3 * 86_400_000
    #: Maximum number of messages that are due in the same second; further ones are refused.
    delay_slot_messages_max: int = 1_000_000
    #: Scheduled messages that are due within this time are delivered as one batch, later by up to
    #: this time.
    delay_batch_ms: int = 10
    #: How often the progress of delayed messages is saved. After a kill, messages of this time may
    #: be delivered twice.
    delay_persist_interval_ms: int = 1_000

    #: When a half message is first checked, how often after that, and how many times in all.
    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 30_000
    transaction_checks_max: int = 15
    #: Maximum number of open transactions; further half messages are refused.
    transactions_open_max: int = 100_000

    #: Maximum number of members of one group, and of all groups together; further ones are refused.
    group_members_max: int = 1_000
    members_max: int = 10_000
    #: How long the broker serves members whose subscription is not the newest one of their group.
    subscription_grace_ms: int = 600_000
    #: Delay between the first change of a group and its new generation, which includes all changes
    #: until then.
    group_rebalance_delay_ms: int = 100
    #: The first generation of a group waits while members join within the delay of each other, up
    #: to this time and not shorter than the delay.
    group_initial_rebalance_max_ms: int = 1_000
    #: How long a member owns a queue that it does not renew, if its request does not say.
    lease_ms: int = 60_000
    #: Maximum number of queues with an owner, present or last; further ones are refused.
    leases_max: int = 100_000
    #: Maximum number of requests that wait for a queue; further ones are answered at once.
    lease_waits_max: int = 10_000

    #: Maximum number of messages in flight by pop; further ones are refused.
    pop_in_flight_max: int = 500_000
    #: The shortest invisible duration that a consumer may ask for with a receive (RocketMQ's
    #: minInvisibleTimeMillsForRecv). A message that the consumer returns may be redelivered sooner.
    invisible_min_ms: int = 10_000
    #: Maximum number of official clients; further ones are refused.
    clients_max: int = 20_000
    #: Have official clients send their metrics here, for `/metrics`.
    client_metrics: bool = True
    #: Maximum number of series of one kind on `/metrics`: topics by type, groups by topic. The rest
    #: is counted.
    metrics_series_max: int = 20_000
    #: Names of RocketMQ's metrics on `/metrics`: "with-units" as in RocketMQ 5.4 and later, "plain"
    #: as in 5.0 to 5.3.
    metrics_names: str = "with-units"
    #: How far ahead official clients may schedule a message (RocketMQ's maxDelayTimeMills);
    #: delay_max_ms is a limit too.
    v2_delay_max_ms: int = 86_400_000

    offsets_persist_interval_ms: int = 5_000
    #: How long a stop waits for open sends and fetches.
    stop_grace_ms: int = 3_000

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(
                    f"broker.{name} is {value}: must be at least {least}", field=name, value=value
                )
        check_grpc("broker", self.grpc)
        if self.metrics_names not in ("with-units", "plain"):
            raise ConfigError(
                f"broker.metrics_names is {self.metrics_names!r}: must be 'with-units' or 'plain'",
                field="metrics_names",
                value=self.metrics_names,
            )
        self._check_ports()
        for name in ("name", "cluster"):
            try:
                check_new_topic(getattr(self, name))  # Both are names of system topics.
            except InvalidName as error:
                raise ConfigError(f"broker.{name}: {error.message}", field=name) from error
        self._check_addresses()
        if self.fetch_default_bytes > self.fetch_max_bytes:
            raise ConfigError(
                f"broker.fetch_default_bytes is {self.fetch_default_bytes}: must not exceed"
                f" fetch_max_bytes, {self.fetch_max_bytes}",
                field="fetch_default_bytes",
            )

    def _check_ports(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(
                f"broker.port is {self.port}: must be between 0 and 65535", field="port"
            )
        if not 3 <= self.java_slaves_port <= 65534:
            raise ConfigError(
                f"broker.java_slaves_port is {self.java_slaves_port}: must be 3 to 65534, for the port two below"
                " and the next are needed as well",
                field="java_slaves_port",
                value=self.java_slaves_port,
            )
        check_tls("broker", self.tls_cert, self.tls_key)
        if self.takes_tls_only and not self.tls:
            raise ConfigError(
                "broker.tls_only or tls_ca is set and broker.tls is false: no client could connect",
                field="tls",
            )
        if self.takes_tls_only and self.grpc == "grpcio" and not self.tls_cert:
            raise ConfigError(
                "broker.tls_only or tls_ca is set, but broker.tls_cert is empty: with grpcio"
                " a certificate and its key are needed for TLS",
                field="tls_cert",
            )

    def _check_addresses(self) -> None:
        for address in self.nameservers:
            _check_address("nameservers", address)
        for address in self.v2_endpoints:
            _check_address("v2_endpoints", address)
        if self.advertised_address:
            _check_address("advertised_address", self.advertised_address)
        elif self.host in ("", "0.0.0.0", "::"):
            raise ConfigError(
                f"broker.host is {self.host!r}, which clients cannot connect to: set"
                " broker.advertised_address (--advertised-address) to the host:port that they reach the broker at",
                field="advertised_address",
            )

    @property
    def takes_tls_only(self) -> bool:
        """Whether plaintext is refused."""
        return self.tls_only or bool(self.tls_ca)

    @property
    def names_tls_files(self) -> bool:
        """Whether there are certificate files to read again."""
        return bool(self.tls_cert or self.tls_ca)

    @property
    def peers(self) -> Trust:
        """Return the trust for connections to name servers and other replicas."""
        if not self.peers_tls:
            return Trust(tls=False)
        return Trust(tls=True, ca=self.peers_tls_ca, cert=self.tls_cert, key=self.tls_key)

    @property
    def store_host(self) -> str:
        """Return the IPv4 address that records, and so message ids, carry as their store host."""
        return store_address(self.advertised_address.rpartition(":")[0] or self.host)


def _check_address(field: str, address: str) -> None:
    if _ADDRESS.fullmatch(address) is None:
        raise ConfigError(
            f"broker.{field}: {address!r} is not host:port", field=field, value=address
        )


#: A name, an IPv4 address or a bracketed IPv6 address, and a port.
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+):[1-9][0-9]{0,4}")

_LEAST: Final = {
    "broker_id": 0,
    "connections_max": 1,
    "pending_max_bytes": _MIB,
    "connection_age_ms": 0,
    "connection_age_grace_ms": 0,
    "registration_interval_ms": 1_000,
    "default_topic_queues": 1,
    "topic_queues_max": 1,
    "topics_max": 1,
    "queues_max": 1,
    "groups_max": 1,
    "produce_batches_in_flight": 1,
    "batch_max_bytes": 1024,
    "flush_waiting_max": 1,
    "producers_max": 1,
    "producer_expiry_ms": 60_000,
    "fetches_waiting_max": 0,
    "fetches_in_flight": 1,
    "fetch_max_bytes": 1024,
    "fetch_default_bytes": 1024,
    "fetch_messages_max": 1,
    "fetch_wait_max_ms": 0,
    "delay_max_ms": 1_000,
    "delay_slot_messages_max": 1,
    "delay_batch_ms": 0,
    "delay_persist_interval_ms": 100,
    "transaction_timeout_ms": 0,
    "transaction_check_interval_ms": 1_000,
    "transaction_checks_max": 0,
    "transactions_open_max": 1,
    "group_members_max": 1,
    "members_max": 1,
    "subscription_grace_ms": 0,
    "group_rebalance_delay_ms": 0,
    "group_initial_rebalance_max_ms": 0,
    "lease_ms": 1_000,
    "leases_max": 1,
    "lease_waits_max": 0,
    "pop_in_flight_max": 1,
    "invisible_min_ms": 1,
    "clients_max": 1,
    "metrics_series_max": 1,
    "v2_delay_max_ms": 0,
    "offsets_persist_interval_ms": 100,
    "stop_grace_ms": 0,
}


def store_address(host: str) -> str:
    """Return the IPv4 address that records carry as their store host for a broker that listens on HOST.

    A record's store host is the broker's own field. A name, a wildcard or an IPv6 address has no IPv4 form here:
    such a broker writes 127.0.0.1 (RocketMQ's `brokerIP1` in a store of one machine).
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "127.0.0.1"
    return str(address) if address.version == 4 and not address.is_unspecified else "127.0.0.1"
