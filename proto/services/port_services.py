"""A server's methods, and with them those of the services that stand beside them on its port.

services = PortServices(table, {"writable": takes_messages})
carrier = make_carrier([services.methods], limits=limits)
…
services.health.begin()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..rpc import MethodTable
from .connections import Connections
from .health import Health
from .reflection import Reflection


class PortServices:
    """What one port serves: OWN, the server's own methods, and the services about them.

    CARRIER returns what carries them, once they are called. CONDITIONS are names that the server's health can be asked
    for besides those of services.
    """

    def __init__(
        self,
        own: MethodTable,
        carrier: Callable[[], object],
        conditions: Mapping[str, Callable[[], bool]] | None = None,
    ) -> None:
        self.health = Health(own.services(), conditions)
        described = own | self.health.methods() | Connections(carrier).methods()
        #: All of it, for a carrier.
        self.methods = described | Reflection(described).methods()
