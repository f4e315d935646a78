"""How a broker is reached, and how it reaches name servers: over gRPC, unless a test brings a network of its own."""

from __future__ import annotations

from dataclasses import dataclass

from ..proto.carrier_http2 import Http2Carrier
from ..proto.rpc import Carrier, Certificate, Limits, MakeCarrier, MethodTable
from ..proto.rpc.channels import Dial
from ..proto.rpc.listening import connections_fitting
from ..proto.rpc.pages import Page
from .certificates import Certificates
from .config import BrokerConfig
from .registration import dial


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """MAKE_CARRIER puts the broker's methods within reach (None: as its settings say), DIAL opens channels."""

    make_carrier: MakeCarrier | None = None
    dial: Dial = dial

    def carrier(
        self, table: MethodTable, config: BrokerConfig, certificates: Certificates, page: Page
    ) -> Carrier:
        """Return the carrier of TABLE. The one of CONFIG shows CERTIFICATES to TLS, and PAGE to plain HTTP."""
        limits = Limits(
            receive_bytes_max=2 * config.run_bytes_max,
            half_sent_bytes_server=config.held_bytes_max,
            queue_bytes_server=config.held_bytes_max,
            connections_max=connections_fitting(config.connections_max),
            connection_age_ms=config.connection_age_ms,
            connection_age_grace_ms=config.connection_age_grace_ms,
        )
        if self.make_carrier is not None:
            return self.make_carrier([table], limits=limits)
        if config.grpc == "grpcio":
            # Whoever is served by our own need not have it.
            from ..proto.carrier_grpcio import GrpcioCarrier

            secure = config.tls and config.tls_certificate
            return GrpcioCarrier(
                [table], limits=limits, certificate=certificates.current if secure else None
            )

        async def certificate() -> Certificate:
            await certificates.prepare()
            return certificates.current()

        return Http2Carrier(
            [table], limits=limits, certificate=certificate if config.tls else None, page=page
        )


#: The real one.
GRPC = Network()
