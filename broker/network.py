"""How a broker is reached, and how it reaches name servers: over gRPC, unless a test brings a network of its own."""

from __future__ import annotations

from dataclasses import dataclass

from ..proto.channels import Dial
from ..proto.rpc import MakeCarrier
from .registration import dial


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """MAKE_CARRIER puts the broker's methods within reach (None: as its settings say), DIAL opens channels."""

    make_carrier: MakeCarrier | None = None
    dial: Dial = dial


#: The real one.
GRPC = Network()
