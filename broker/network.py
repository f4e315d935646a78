"""How a broker is reached, and how it reaches name servers: over gRPC, unless a test brings a network of its own."""

from __future__ import annotations

from dataclasses import dataclass

from ..proto.carrier_grpcio import GrpcioCarrier
from ..proto.rpc import MakeCarrier, MakeSecureCarrier
from .registration import Dial, dial


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """MAKE_CARRIER puts the broker's methods within reach, DIAL opens channels to name servers.

    MAKE_SECURE_CARRIER does the former over TLS; None: this network knows no TLS.
    """

    make_carrier: MakeCarrier = GrpcioCarrier
    dial: Dial = dial
    make_secure_carrier: MakeSecureCarrier | None = None


#: The real one.
GRPC = Network(make_secure_carrier=GrpcioCarrier)
