"""The carriers that there are, each with how it is made. Every test of this folder runs on every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.rpc import Carrier, Certificate, Limits, MakeCarrier, MethodTable

MakeSecureCarrier = Callable[[Iterable[MethodTable], Limits, Callable[[], Certificate]], Carrier]


@dataclass(frozen=True)
class CarrierKind:
    """A carrier: PLAIN makes one that serves in the clear, SECURE one that serves TLS."""

    name: str
    plain: MakeCarrier
    secure: MakeSecureCarrier


GRPCIO: Final = CarrierKind(
    "grpcio",
    GrpcioCarrier,
    lambda tables, limits, certificate: GrpcioCarrier(
        tables, limits=limits, certificate=certificate
    ),
)


def _own_secure(
    tables: Iterable[MethodTable], limits: Limits, certificate: Callable[[], Certificate]
) -> Carrier:
    async def current() -> Certificate:
        return certificate()

    return Http2Carrier(tables, limits=limits, certificate=current)


OWN: Final = CarrierKind("own", Http2Carrier, _own_secure)

CARRIERS: Final = [GRPCIO, OWN]
