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
    """One broker. Names and numbers default to Apache RocketMQ's."""

    name: str = "broker-a"
    cluster: str = "DefaultCluster"
    #: 0 is the master.
    broker_id: int = 0

    #: What `pocketmq config set` and SIGHUP change: whoever uses one of these reads it here each time.
    LIVE: ClassVar[frozenset[str]] = frozenset(
        {
            "auto_create_topics",
            "default_topic_queues",
            "topic_queues_max",
            "topics_max",
            "queues_max",
            "groups_max",
            "produce_runs_in_flight",
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
        "direct_port": "a broker has one port with grpcio too; leave it out, and have everybody connect to broker.port",
    }

    #: Where it listens; 127.0.0.1 takes connections of this machine only.
    host: str = "127.0.0.1"
    port: int = 8081
    #: What name servers tell clients; empty means the host and port that it listens on.
    advertised_address: str = ""
    #: What speaks HTTP/2: "builtin", or "grpcio", which is slower (docs/ports.md).
    grpc: str = "builtin"
    #: Does the port take TLS besides plaintext? With "grpcio", instead of plaintext, where a certificate is named.
    tls: bool = True
    #: PEM files; empty: a certificate is made for development when it is first needed.
    tls_cert: str = ""
    tls_key: str = ""
    #: Is plaintext refused?
    tls_only: bool = False
    #: A PEM file with authorities: who connects shows a certificate of one of them, or is refused, as plaintext is.
    tls_ca: str = ""
    #: Do name servers, and the other replicas of its set where clients connect, take TLS? By certificates of the
    #: authorities in a PEM file; empty: of the system's. The broker's own certificate is shown if it is asked for.
    peers_tls: bool = False
    peers_tls_ca: str = ""
    #: YAML file of users (docs/users-and-acls.md), read again when it changes; empty: any client may do everything.
    users: str = ""
    #: May callers on other machines show credentials without TLS?
    plaintext_credentials: bool = False
    #: Connections at once; further ones are closed.
    connections_max: int = 10_000
    #: Bytes of requests that are not whole, on all connections together; and as many of answers that wait for peers.
    #: Beyond, the calls of whoever holds most for longest fail.
    pending_max_bytes: int = 256 * _MIB
    #: A connection that is so old is asked to come anew, and has so long to end what is open; age 0: it may grow old.
    #: With grpcio it always may.
    connection_age_ms: int = 7 * 86_400_000
    connection_age_grace_ms: int = 300_000
    #: Do routes for official clients name the queues of all brokers that have a topic? With v2_endpoints they do not.
    v2_cluster: bool = True
    #: What official clients are told to connect to, "host:port"; none: the address that each has dialled.
    v2_endpoints: tuple[str, ...] = ()
    #: Every one of them is registered with, "host:port".
    nameservers: tuple[str, ...] = ("127.0.0.1:9876",)
    registration_interval_ms: int = 30_000
    #: May Java slaves follow (docs/back-to-rocketmq.md)? They ask at the port and two below, the log is at the next.
    java_slaves: bool = False
    java_slaves_host: str = "127.0.0.1"
    java_slaves_port: int = 10911

    #: Is a topic made when a message for an unknown one arrives?
    auto_create_topics: bool = True
    #: Are messages of another type refused than their topic has? NORMAL ones take all from our own clients.
    topic_message_type_check: bool = True
    #: Queues of a topic that its first message makes, at most TBW102's 8.
    default_topic_queues: int = 4
    #: Queues that a topic may have.
    topic_queues_max: int = 1024
    topics_max: int = 10_000
    #: Queues of all topics together: each costs some 2 KB of memory and its share of a start.
    queues_max: int = 100_000
    groups_max: int = 10_000

    #: Runs that one stream may have unanswered; further ones are not read.
    produce_runs_in_flight: int = 256
    #: Bytes of one run.
    batch_max_bytes: int = 16 * _MIB
    #: Sends that may wait for the device in all; further ones are refused.
    flush_waiting_max: int = 100_000
    #: Sequences of idempotent producers, one for each queue that one sends to; the least recently used is forgotten.
    producers_max: int = 10_000
    #: A sequence that was not used for so long is forgotten.
    producer_expiry_ms: int = 86_400_000
    #: Fetches that may wait in all; further ones are answered at once.
    fetches_waiting_max: int = 100_000
    #: Fetches that one stream may have unanswered; further ones are not read.
    fetches_in_flight: int = 1024
    fetch_max_bytes: int = 4 * _MIB
    fetch_default_bytes: int = 1 * _MIB
    fetch_messages_max: int = 20_000
    fetch_wait_max_ms: int = 60_000

    #: How far ahead of now a message may be due (Apache's timerMaxDelaySec); delay levels have their own lengths.
    delay_max_ms: int = 3 * 86_400_000
    #: Messages that may be due in one second; further ones are refused.
    delay_slot_messages_max: int = 1_000_000
    #: Timed messages that are due so soon after others were delivered go together, so much later at most.
    delay_batch_ms: int = 10
    #: How often the progress of delayed messages is saved: so much may fire twice after a kill.
    delay_persist_interval_ms: int = 1_000

    #: When a half message is first checked, how often after that, and how many times in all.
    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 30_000
    transaction_checks_max: int = 15
    #: Half messages without an outcome; further ones are refused.
    transactions_open_max: int = 100_000

    #: Members that a group, and all groups together, may have; further ones are refused.
    group_members_max: int = 1_000
    members_max: int = 10_000
    #: How long members of a group are served whose subscription is not the newest one of the group.
    subscription_grace_ms: int = 600_000
    #: A new generation of a group begins so long after the first change, with all changes until then.
    group_rebalance_delay_ms: int = 100
    #: The first generation of a group waits for members as long as one comes within the delay of the other; at most so
    #: long, and never shorter than the delay.
    group_initial_rebalance_max_ms: int = 1_000
    #: How long a member holds a queue that it does not renew, if it does not say.
    lease_ms: int = 60_000
    #: Queues that are held, or were last; further ones are refused.
    leases_max: int = 100_000
    #: Requests that may wait for a queue; further ones are answered at once.
    lease_waits_max: int = 10_000

    #: Messages that were received and are not finished; further ones are refused.
    pop_in_flight_max: int = 500_000
    #: The shortest time that a consumer may ask messages to stay away for while it has them (Apache's
    #: minInvisibleTimeMillsForRecv); what it hands back may come again sooner.
    invisible_min_ms: int = 10_000
    #: Official clients that are known at once; further ones are refused.
    clients_max: int = 20_000
    #: Do they send what they measure here, for `/metrics`?
    client_metrics: bool = True
    #: Series of one kind on `/metrics`: topics by type, or groups by topic; of further ones is told how many they are.
    metrics_series_max: int = 20_000
    #: Names of Apache's metrics on `/metrics`: "with-units", as its exporters of 5.4 and later have them, or "plain",
    #: as those of 5.0 to 5.3 had them.
    metrics_names: str = "with-units"
    #: How far ahead they may have a message delivered (Apache's maxDelayTimeMills); delay_max_ms bounds it, too.
    v2_delay_max_ms: int = 86_400_000

    offsets_persist_interval_ms: int = 5_000
    #: How long a stop waits for sends and fetches under way.
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
                "broker.tls_only or tls_ca is set and broker.tls is false: nobody could connect",
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
        """Is plaintext refused?"""
        return self.tls_only or bool(self.tls_ca)

    @property
    def names_tls_files(self) -> bool:
        """Are there files that are read again?"""
        return bool(self.tls_cert or self.tls_ca)

    @property
    def peers(self) -> Trust:
        """Return whom it believes as a client of name servers and of other replicas."""
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
    "produce_runs_in_flight": 1,
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
    such a broker writes 127.0.0.1 (Apache's `brokerIP1` in a store of one machine).
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "127.0.0.1"
    return str(address) if address.version == 4 and not address.is_unspecified else "127.0.0.1"
