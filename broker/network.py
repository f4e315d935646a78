"""How a broker is reached, and how it reaches name servers: over gRPC, unless a test brings a network of its own."""

from __future__ import annotations

from dataclasses import dataclass

from ..proto.carrier_grpcio import GrpcioCarrier
from ..proto.rpc import MakeCarrier, MakeRelayedCarrier
from .registration import Dial, dial


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """MAKE_CARRIER puts the broker's methods within reach, DIAL opens channels to name servers.

    MAKE_RELAYED_CARRIER does the former behind a relay, with TLS or without; None: this network has neither.
    """

    make_carrier: MakeCarrier = GrpcioCarrier
    dial: Dial = dial
    make_relayed_carrier: MakeRelayedCarrier | None = None


#: The real one.
GRPC = Network(make_relayed_carrier=GrpcioCarrier)
