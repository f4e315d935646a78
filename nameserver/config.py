"""Settings of a name server: the section `nameserver:` of the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from ..proto.carriers import check_grpc
from ..proto.errors import ConfigError
from ..proto.tls import check_tls


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """The settings of a name server. The defaults are enough for a cluster of 1,000 brokers."""

    #: What `pocketmq config set` and SIGHUP change: code that uses one of these reads it here each time.
    LIVE: ClassVar[frozenset[str]] = frozenset(
        {
            "broker_expiry_ms",
            "scan_interval_ms",
            "ordered_queues_kept_ms",
            "brokers_max",
            "topics_per_broker_max",
            "topics_per_route_max",
        }
    )

    #: The address to listen on. Other machines cannot reach the default.
    host: str = "127.0.0.1"
    #: 0: any free port.
    port: int = 9876
    #: The HTTP/2 server: "builtin", or "grpcio", which is slower (docs/http2.md).
    grpc: str = "builtin"
    #: Serve the remoting protocol of RocketMQ 4.x clients on the port too (docs/remoting.md), but not with "grpcio".
    remoting: bool = True
    #: PEM files, the key without a password. The builtin server then accepts TLS and plaintext, "grpcio" only TLS.
    tls_cert: str = ""
    tls_key: str = ""
    #: Is plaintext refused?
    tls_only: bool = False
    #: A PEM file of authorities. Clients must show a certificate of one of them; plaintext is refused.
    tls_ca: str = ""
    #: YAML file of users (docs/users-and-acls.md), read again when it changes; empty: any client may do everything.
    users: str = ""
    #: May callers on other machines show credentials without TLS?
    plaintext_credentials: bool = False
    #: A broker that sent nothing for this long is forgotten, although its stream is open.
    broker_expiry_ms: int = 120_000
    #: How often the name server looks for silent brokers.
    scan_interval_ms: int = 5_000
    #: How long routes of FIFO topics keep the queues of a broker that is down, so that message groups wait for it
    #: instead of moving to other queues; 0: not at all.
    ordered_queues_kept_ms: int = 3_600_000

    #: Brokers registered at once; further ones are refused.
    brokers_max: int = 1_000
    #: Topics of one broker; a registration with more is refused.
    topics_per_broker_max: int = 50_000
    #: Topics in one question for routes.
    topics_per_route_max: int = 1_000
    #: A larger request is refused; 50,000 topics take about 3 MB.
    request_size_max_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("nameserver.host is empty: use 127.0.0.1 or 0.0.0.0", field="host")
        check_grpc("nameserver", self.grpc)
        check_tls("nameserver", self.tls_cert, self.tls_key)
        if self.takes_tls_only and not self.tls_cert:
            raise ConfigError(
                "nameserver.tls_only or tls_ca is set, but nameserver.tls_cert is empty:"
                " a certificate and its key are needed for TLS",
                field="tls_cert",
            )
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value < least or (most is not None and value > most):
                limit = f"at least {least}" if most is None else f"{least} to {most}"
                raise ConfigError(
                    f"nameserver.{name} is {value}: must be {limit}",
                    field=name,
                    limit=limit,
                    value=value,
                )

    @property
    def takes_tls_only(self) -> bool:
        """Is plaintext refused?"""
        return self.tls_only or bool(self.tls_ca)


_BOUNDS: Final[Mapping[str, tuple[int, int | None]]] = {
    "port": (0, 65_535),
    "broker_expiry_ms": (1, None),
    "scan_interval_ms": (1, None),
    "ordered_queues_kept_ms": (0, None),
    "brokers_max": (1, None),
    "topics_per_broker_max": (1, None),
    "topics_per_route_max": (1, None),
    "request_size_max_bytes": (1024, None),
}
