"""Port services: the method table of a server together with health, reflection and connections.

services = PortServices(table, carrier, settings, {"writable": takes_messages})
carrier = make_carrier([services.methods], limits=limits)
…
services.health.begin()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..request_bounds import bounded
from ..rpc import MethodTable
from .connections_service import ConnectionsService
from .health_service import HealthService
from .reflection_service import Reflection
from .settings import SettingsService


class PortServices:
    """The methods of one port: OWN, the server's own methods, and the services about them.

    CARRIER returns the gRPC server, once methods are called. SETTINGS are those of the process. CONDITIONS are further
    names that clients can check with the health service.
    """

    def __init__(
        self,
        own: MethodTable,
        carrier: Callable[[], object],
        settings: SettingsService,
        conditions: Mapping[str, Callable[[], bool]] | None = None,
    ) -> None:
        self.health = HealthService(own.services(), conditions)
        described = own | self.health.methods() | ConnectionsService(carrier).methods()
        described |= settings.methods()
        #: All methods, for a gRPC server.
        self.methods = bounded(described | Reflection(described).methods())
