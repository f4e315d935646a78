"""The service `grpc.health.v1.Health`: can this server handle calls? Load balancers and Kubernetes probes use it.

    health = Health(table.services(), {"writable": lambda: store.health.state == "open"})
    table |= health.methods()
    health.begin()   # once calls are answered
    health.look()    # from time to time, because conditions change by themselves
    health.end()     # when a stop begins: watchers get the change before their streams end

Valid names: "" (the whole server), every service of its tables, and every condition. All are NOT_SERVING before
`begin` and after `end`. In between, services are SERVING, and a condition is SERVING while it holds. Conditions do not
affect "": a broker with a full disk still serves consumers, and killing it would free no space.

Semantics: gRPC's doc/health-checking.md. Check of an unknown name fails with NOT_FOUND; Watch gets SERVICE_UNKNOWN and
stays open. Limit: `WATCHERS_MAX` watching streams; further ones get Overloaded. The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..errors import Overloaded, ServiceNotFound
from ..gen import grpc_health_pb2 as health_pb
from ..rpc import Call, MethodTable, Stream, server_stream, service, unary

HEALTH: Final = "grpc.health.v1.Health"
WATCHERS_MAX: Final = 10_000
_Status = health_pb.HealthCheckResponse.ServingStatus
_SERVING: Final = health_pb.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN: Final = health_pb.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """The status of a server's SERVICES and CONDITIONS, by name, and the streams that watch it."""

    def __init__(
        self, services: Iterable[str], conditions: Mapping[str, Callable[[], bool]] | None = None
    ) -> None:
        self._names: dict[str, Callable[[], bool]] = dict.fromkeys(("", *services, HEALTH), _always)
        self._names |= conditions or {}
        self._is_serving = False
        #: For each watcher, the name that it watches and the status sent last.
        self._watchers: dict[Stream, tuple[str, _Status]] = {}

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            HEALTH,
            {
                "Check": unary(
                    health_pb.HealthCheckRequest, health_pb.HealthCheckResponse, self.check
                ),
                "List": unary(
                    health_pb.HealthListRequest, health_pb.HealthListResponse, self.list_all
                ),
                "Watch": server_stream(
                    health_pb.HealthCheckRequest, health_pb.HealthCheckResponse, self.watch
                ),
            },
        )

    @property
    def watchers(self) -> int:
        """The number of watching streams."""
        return len(self._watchers)

    def begin(self) -> None:
        """Report SERVING from now on."""
        self._is_serving = True
        self.look()

    def end(self) -> None:
        """Report NOT_SERVING from now on: the server is stopping."""
        self._is_serving = False
        self.look()

    def look(self) -> None:
        """Send changes to the watchers."""
        now = {name: self._status(name) for name, _ in self._watchers.values()}
        for stream, (name, sent) in list(self._watchers.items()):
            if now[name] != sent:
                self._watchers[stream] = name, now[name]
                stream.send(health_pb.HealthCheckResponse(status=now[name]))

    def check(
        self, request: health_pb.HealthCheckRequest, call: Call
    ) -> health_pb.HealthCheckResponse:
        """Return the current status of a service."""
        status = self._status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise ServiceNotFound(
                f"service: {request.service!r} does not exist here; List returns all names",
                field="service",
                value=request.service,
            )
        return health_pb.HealthCheckResponse(status=status)

    def list_all(
        self, request: health_pb.HealthListRequest, call: Call
    ) -> health_pb.HealthListResponse:
        """Return the current status of all services, by name."""
        statuses = {
            name: health_pb.HealthCheckResponse(status=self._status(name)) for name in self._names
        }
        return health_pb.HealthListResponse(statuses=statuses)

    def watch(self, request: health_pb.HealthCheckRequest, stream: Stream) -> None:
        """Send the current status of a service, and each change of it."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise Overloaded(
                f"the limit of {WATCHERS_MAX} streams that watch this server's health is reached: use Check",
                limit=WATCHERS_MAX,
            )
        name, status = request.service, self._status(request.service)
        stream.send(health_pb.HealthCheckResponse(status=status))
        # An unknown name may be as long as a request, so it is not stored.
        self._watchers[stream] = name if name in self._names else _UNKNOWN, status
        stream.on_cancel(lambda: self._forget(stream))

    def _forget(self, stream: Stream) -> None:
        self._watchers.pop(stream, None)

    def _status(self, name: str) -> _Status:
        holds = self._names.get(name)
        if holds is None:
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_serving and holds() else _NOT_SERVING


#: Used for all unknown names.
_UNKNOWN: Final = "?"


def _always() -> bool:
    return True
