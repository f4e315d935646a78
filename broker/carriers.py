"""What carries a broker's methods: our own HTTP/2 server, or grpcio behind a relay (`broker.grpc`)."""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol, runtime_checkable

from ..proto.carrier_http2 import Http2Carrier
from ..proto.listening import connections_fitting
from ..proto.pages import Page, in_http1
from ..proto.rpc import Carrier, Certificate, Limits, MethodTable
from .certificates import Certificates
from .config import BrokerConfig
from .timers import Timers

#: Descriptors of a connection that is relayed: both ends of the relay, and the carrier's.
_RELAYED: Final = 3


@runtime_checkable
class Counting(Protocol):
    """A carrier that knows how many connections are open."""

    @property
    def connections(self) -> int: ...


@runtime_checkable
class Relaying(Protocol):
    """A carrier behind a relay, which callers on this machine need not pass."""

    @property
    def direct_address(self) -> str: ...


def carrier_of(
    table: MethodTable,
    config: BrokerConfig,
    certificates: Certificates,
    page: Page,
    timers: Timers,
) -> Carrier:
    """Return the carrier of TABLE that CONFIG asks for: it shows CERTIFICATES to TLS, and PAGE to plain HTTP."""
    limits = Limits(
        receive_bytes_max=2 * config.run_bytes_max,
        half_sent_bytes_server=config.held_bytes_max,
        queue_bytes_server=config.held_bytes_max,
        connections_max=connections_fitting(config.connections_max),
        connection_age_ms=config.connection_age_ms,
        connection_age_grace_ms=config.connection_age_grace_ms,
    )
    if config.grpc == "grpcio":
        return _grpcio(table, config, limits, certificates, page, timers)

    async def certificate() -> Certificate:
        await certificates.prepare()
        return certificates.current()

    return Http2Carrier(
        [table], limits=limits, certificate=certificate if config.tls else None, page=page
    )


def _grpcio(
    table: MethodTable,
    config: BrokerConfig,
    limits: Limits,
    certificates: Certificates,
    page: Page,
    timers: Timers,
) -> Carrier:
    """Return grpcio's server alone, or two of them behind one port: each speaks TLS, or does not."""
    # Whoever is served by our own has no need of grpcio's, which takes a tenth of a second to import.
    from ..proto.carrier_grpcio import GrpcioCarrier
    from .front import Front

    if not config.tls:
        return GrpcioCarrier([table], limits=limits)
    callers: dict[str, str] = {}

    def caller(peer: str) -> str:
        return callers.get(peer, peer)

    async def secure() -> Carrier:
        await certificates.prepare()
        return GrpcioCarrier(
            [table], limits=limits, caller=caller, certificate=certificates.current
        )

    return Front(
        GrpcioCarrier([table], limits=limits, caller=caller),
        secure,
        timers,
        callers=callers,
        connections_max=connections_fitting(config.connections_max, _RELAYED),
        direct_port=config.direct_port,
        page=partial(in_http1, page),
    )
