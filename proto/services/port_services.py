"""A server's methods, and with them those of the services that stand beside them on its port.

services = PortServices(table, carrier, settings, {"writable": takes_messages})
carrier = make_carrier([services.methods], limits=limits)
…
services.health.begin()

`pocketmq.v1.Connections` says who is connected to this server, and what goes over each connection. In the spirit of
gRPC's channelz, and as much of it as helps to find who is slow, many, or silent. Answers come in pages, by the
connections' ids, so that one never holds more than `PAGE_MAX` of them, which takes the event loop some 3 ms. A
connection that opens or closes meanwhile is told of or is not; none is told of twice.

`grpc.health.v1.Health`: can this server handle calls? Load balancers and Kubernetes' probes ask it.

    health = Health(table.services(), {"writable": lambda: store.health.state == "open"})
    table |= health.methods()
    health.begin()   # once calls are answered
    health.look()    # from time to time: conditions change by themselves
    health.end()     # a stop begins: those who watch hear it before their streams end

Names that can be asked for: "" (the server as a whole), every service of its tables, and every condition. All are
NOT_SERVING before `begin` and after `end`. In between services are SERVING, and a condition is while it holds. A
condition is a name of its own, and not a part of "": a broker whose disk is full still has messages to read, and
killing it would make no room.

Semantics: gRPC's doc/health-checking.md. An unknown name fails a Check with NOT_FOUND; a Watch is told
SERVICE_UNKNOWN and stays open, in vain here, since the names do not change while a server runs.

Bound: `WATCHERS_MAX` streams watch at once; further ones are Overloaded. The event loop owns it.

`grpc.reflection.v1.ServerReflection`, and v1alpha: what does this server serve?

    table |= Reflection(table).methods()

Tools that have no .proto files (grpcurl, Postman, a dynamic client) ask for the services, then for the files that
declare what they want to call. A file is answered with all that it imports, itself first. Both versions have the same
messages under different names; grpcurl asks for the newer one and falls back to the older.

A question that cannot be answered gets an error response, NOT_FOUND or INVALID_ARGUMENT, and the stream goes on. What
is told is what the tables that are carried need, and these services themselves; no secret, since the project is open.

Descriptors live in pools, and ours in two: `pocketmq.v1` in everybody's, the protocols of others in a private one. Both
have Google's own types. A pool may hold more than is served, which is nobody's business, and does not find methods by
name; so an index of our own is made, when something is first looked up: some 2,000 names. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cached_property, reduce
from operator import or_
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from ..errors import InvalidArgument, NotServed, Overloaded, ServiceNotFound
from ..gen import (
    grpc_health_pb2 as health_pb,
    grpc_reflection_pb2 as v1,
    grpc_reflection_v1alpha_pb2 as v1alpha,
    pocketmq_v1_pb2 as pb,
)
from ..request_bounds import bounded
from ..rpc import Call, MethodTable, Stream, bidi, server_stream, service, unary
from ..rpc.methods import ConnectionFigures, ConnectionTotals, CountsConnections
from .settings import SettingsService

NAME: Final = "pocketmq.v1.Connections"
#: Connections in one answer.
PAGE_MAX: Final = 1_000
#: Characters of what a peer said of itself, and of a path, which it made up as well.
TEXT_MAX: Final = 200

_FIELDS: Final = tuple(field.name for field in fields(ConnectionFigures))


class PortServices:
    """What one port serves: OWN, the server's own methods, and the services about them.

    CARRIER returns what carries them, once they are called; SETTINGS are those of the process. CONDITIONS are names
    that the server's health can be asked for besides those of services.
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
        #: All of it, for a carrier.
        self.methods = bounded(described | Reflection(described).methods())


# --- who is connected


class ConnectionsService:
    """Asks what CARRIER returns, which is made after its tables, for its figures."""

    def __init__(self, carrier: Callable[[], object]) -> None:
        self._carrier = carrier

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        entry = unary(pb.ConnectionListRequest, pb.ConnectionListReply, self.list_open)
        return service(NAME, {"List": entry})

    def list_open(self, request: pb.ConnectionListRequest, call: Call) -> pb.ConnectionListReply:
        """Answer which connections are open, and what became of all."""
        for field in ("first_id", "max_connections"):
            value = getattr(request, field)
            if value < 0:
                raise InvalidArgument(
                    f"{field} is {value}: it begins at 0", field=field, limit=0, value=value
                )
        carrier = self._carrier()
        if not isinstance(carrier, CountsConnections):
            raise NotServed(
                "this server's carrier keeps no figures of connections: grpcio's cannot, so serve with --grpc own"
            )
        size = min(request.max_connections or PAGE_MAX, PAGE_MAX)
        found = carrier.connection_figures(request.first_id, size + 1)
        return pb.ConnectionListReply(
            connections=map(_message, found[:size]),
            next_id=found[size].id if len(found) > size else 0,
            totals=_totals(carrier.connection_totals()),
        )


def _message(figures: ConnectionFigures) -> pb.ConnectionFigures:
    told: dict[str, Any] = {name: getattr(figures, name) for name in _FIELDS}
    told["user_agent"] = _cut(figures.user_agent)
    told["last_path"] = _cut(figures.last_path)
    return pb.ConnectionFigures(**told)


def _totals(totals: ConnectionTotals) -> pb.ConnectionTotals:
    return pb.ConnectionTotals(
        open=totals.open,
        accepted=totals.accepted,
        refused=totals.refused,
        closed=dict(totals.closed),
        requests_held_bytes=totals.requests_held_bytes,
        answers_held_bytes=totals.answers_held_bytes,
    )


def _cut(text: str) -> str:
    """Return TEXT, a peer's, without what UTF-8 cannot hold, and not too long."""
    return text[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]


# ---------------------------------------------------------------- `grpc.health.v1.Health`


HEALTH: Final = "grpc.health.v1.Health"
WATCHERS_MAX: Final = 10_000

_Status = health_pb.HealthCheckResponse.ServingStatus
_SERVING: Final = health_pb.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN: Final = health_pb.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService:
    """What a server's SERVICES and CONDITIONS, by name, are like, and who watches them."""

    def __init__(
        self, services: Iterable[str], conditions: Mapping[str, Callable[[], bool]] | None = None
    ) -> None:
        self._names: dict[str, Callable[[], bool]] = dict.fromkeys(("", *services, HEALTH), _always)
        self._names |= conditions or {}
        self._is_serving = False
        #: What each has been told last, with what it watches.
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
        """How many streams watch."""
        return len(self._watchers)

    # --- what the server says

    def begin(self) -> None:
        """Serve from now on."""
        self._is_serving = True
        self.look()

    def end(self) -> None:
        """Serve no more: a stop has begun."""
        self._is_serving = False
        self.look()

    def look(self) -> None:
        """Tell those who watch what has changed."""
        now = {name: self._status(name) for name, _ in self._watchers.values()}
        for stream, (name, told) in list(self._watchers.items()):
            if now[name] != told:
                self._watchers[stream] = name, now[name]
                stream.send(health_pb.HealthCheckResponse(status=now[name]))

    # --- what callers ask

    def check(
        self, request: health_pb.HealthCheckRequest, call: Call
    ) -> health_pb.HealthCheckResponse:
        """Answer what a service is like now."""
        status = self._status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise ServiceNotFound(
                f"service: nobody here is called {request.service!r}; List tells all names",
                field="service",
                value=request.service,
            )
        return health_pb.HealthCheckResponse(status=status)

    def list_all(
        self, request: health_pb.HealthListRequest, call: Call
    ) -> health_pb.HealthListResponse:
        """Answer what everything is like now, by name."""
        statuses = {
            name: health_pb.HealthCheckResponse(status=self._status(name)) for name in self._names
        }
        return health_pb.HealthListResponse(statuses=statuses)

    def watch(self, request: health_pb.HealthCheckRequest, stream: Stream) -> None:
        """Tell what a service is like now, and each change of that."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise Overloaded(
                f"{WATCHERS_MAX} streams watch this server's health, which is the limit: use Check",
                limit=WATCHERS_MAX,
            )
        name, status = request.service, self._status(request.service)
        stream.send(health_pb.HealthCheckResponse(status=status))
        # A name that nobody has may be as long as a request: it is not kept.
        self._watchers[stream] = name if name in self._names else _NOBODY, status
        stream.on_cancel(lambda: self._forget(stream))

    def _forget(self, stream: Stream) -> None:
        self._watchers.pop(stream, None)

    def _status(self, name: str) -> _Status:
        holds = self._names.get(name)
        if holds is None:
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_serving and holds() else _NOT_SERVING


#: Stands for all names that nobody has.
_NOBODY: Final = "?"


def _always() -> bool:
    return True


# ---------------------------------------------------------------- `grpc.reflection.v1.ServerReflection`, and v1alpha


#: The modules of the versions that are served. Their messages are alike, which no type says.
_VERSIONS: Final[tuple[Any, ...]] = (v1, v1alpha)
#: gRPC's codes, which an error response has as numbers.
NOT_FOUND: Final = 5
INVALID_ARGUMENT: Final = 3
#: Characters of a question that an error repeats.
_QUOTED_MAX: Final = 200

#: Fields of a message, by name.
_Fields: TypeAlias = dict[str, Any]


class Reflection:
    """Describes OWN, the methods of a server, and itself."""

    def __init__(self, own: MethodTable) -> None:
        self._methods = reduce(or_, (self._version(pb) for pb in _VERSIONS))
        self._files = DescribedFiles(own | self._methods)

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier, of both versions."""
        return self._methods

    def _version(self, pb: Any) -> MethodTable:
        described = pb.DESCRIPTOR.services_by_name["ServerReflection"]
        entry = bidi(
            pb.ServerReflectionRequest,
            pb.ServerReflectionResponse,
            lambda stream: _Questions(stream, self, pb),
        )
        return service(described.full_name, {"ServerReflectionInfo": entry})

    def answer(self, request: Any, pb: Any) -> Any:
        """Return the response to REQUEST in the version of PB."""
        return pb.ServerReflectionResponse(
            valid_host=request.host, original_request=request, **self._found(request)
        )

    def _found(self, request: Any) -> _Fields:
        """Return what REQUEST asks for."""
        match request.WhichOneof("message_request"):
            case "list_services":
                services = [{"name": name} for name in self._files.services]
                return {"list_services_response": {"service": services}}
            case "file_by_filename":
                name = request.file_by_filename
                return _described(self._files.named(name), f"file {_quoted(name)}")
            case "file_containing_symbol":
                symbol = request.file_containing_symbol
                return _described(self._files.declaring(symbol), f"symbol {_quoted(symbol)}")
            case "file_containing_extension":
                asked = request.file_containing_extension
                what = f"extension {asked.extension_number} of {_quoted(asked.containing_type)}"
                found = self._files.extending(asked.containing_type, asked.extension_number)
                return _described(found, what)
            case "all_extension_numbers_of_type":
                return self._numbers(request.all_extension_numbers_of_type)
            case _:
                return _refusal(
                    INVALID_ARGUMENT,
                    "message_request: the request asks for nothing that this server knows",
                )

    def _numbers(self, message: str) -> _Fields:
        numbers = self._files.extensions(message)
        if numbers is None:
            return _refusal(NOT_FOUND, f"no message {_quoted(message)} here")
        found = {"base_type_name": message, "extension_number": numbers}
        return {"all_extension_numbers_response": found}


class _Questions:
    """One stream: each message is a question, answered at once."""

    def __init__(self, stream: Stream, reflection: Reflection, pb: Any) -> None:
        self._stream = stream
        self._reflection = reflection
        self._pb = pb

    def on_message(self, message: Any) -> None:
        self._stream.send(self._reflection.answer(message, self._pb))

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        """Nothing is held."""


def _described(file: FileDescriptor | None, what: str) -> _Fields:
    """Return FILE with all that it imports, or that WHAT was asked for is not here."""
    if file is None:
        return _refusal(NOT_FOUND, f"no {what} here")
    files = [one.serialized_pb for one in with_imports(file)]
    return {"file_descriptor_response": {"file_descriptor_proto": files}}


def _refusal(code: int, sentence: str) -> _Fields:
    return {"error_response": {"error_code": code, "error_message": sentence}}


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "…")


# --- what methods are described by


class DescribedFiles:
    """The files that describe TABLE, by name and by what they declare."""

    def __init__(self, table: MethodTable) -> None:
        self._table = table

    @property
    def services(self) -> list[str]:
        """The names of the services that are described, in order: tools give up at one that is not."""
        return [name for name in self._table.services() if name in self._symbols]

    def named(self, name: str) -> FileDescriptor | None:
        """Return the file called NAME, "pocketmq/proto/gen/pocketmq_v1.proto"."""
        return self._files.get(name)

    def declaring(self, symbol: str) -> FileDescriptor | None:
        """Return the file that declares SYMBOL, the full name of anything that has one: "pocketmq.v1.Broker.Status"."""
        file, _ = self._symbols.get(symbol, (None, None))
        return file

    def extending(self, message: str, number: int) -> FileDescriptor | None:
        """Return the file that declares the extension of MESSAGE with field NUMBER."""
        return self._extensions.get((message, number))

    def extensions(self, message: str) -> list[int] | None:
        """Return the field numbers of all extensions of MESSAGE, in order; None: there is no such message."""
        _, declared = self._symbols.get(message, (None, None))
        if not isinstance(declared, Descriptor):
            return None
        return sorted(number for extended, number in self._extensions if extended == message)

    @cached_property
    def _files(self) -> dict[str, FileDescriptor]:
        files: dict[str, FileDescriptor] = {}
        for root in _roots(self._table):
            for file in with_imports(root):
                files.setdefault(file.name, file)
        return files

    @cached_property
    def _symbols(self) -> dict[str, tuple[FileDescriptor, Any]]:
        """What is declared, and in which file, by full name."""
        return {
            name: (file, declared)
            for file in self._files.values()
            for name, declared in _declared(file)
        }

    @cached_property
    def _extensions(self) -> dict[tuple[str, int], FileDescriptor]:
        """Where extensions are declared, by the message that they extend and their number."""
        return {
            (declared.containing_type.full_name, declared.number): file
            for file, declared in self._symbols.values()
            if isinstance(declared, FieldDescriptor)
            and declared.is_extension
            and declared.containing_type is not None
        }


def with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    """Return FILE and all that it imports, directly or not, each once."""
    found = {file.name: file}
    left = [file]
    while left:
        for imported in left.pop().dependencies:
            if imported.name not in found:
                found[imported.name] = imported
                left.append(imported)
    return list(found.values())


def _roots(table: MethodTable) -> Iterator[FileDescriptor]:
    """Yield the files of the types of TABLE's methods, and of its services where a pool knows those."""
    for method in table:
        name = method.path[1:].rpartition("/")[0]
        for message in (method.request_type, method.reply_type):
            file: Any = message.DESCRIPTOR.file
            yield file
            try:
                yield file.pool.FindServiceByName(name).file
            except KeyError:
                continue  # Whoever made the table has written no .proto for it, or in another pool.


def _declared(file: FileDescriptor) -> Iterator[tuple[str, Any]]:
    """Yield the full name and the descriptor of all that FILE declares."""
    for declared in file.services_by_name.values():
        yield declared.full_name, declared
        yield from ((method.full_name, method) for method in declared.methods)
    for message in file.message_types_by_name.values():
        yield from _declared_in(message)
    for enum in file.enum_types_by_name.values():
        yield from _declared_by(enum)
    for extension in file.extensions_by_name.values():
        yield extension.full_name, extension


def _declared_in(message: Descriptor) -> Iterator[tuple[str, Any]]:
    yield message.full_name, message
    for field in (*message.fields, *message.extensions):
        yield field.full_name, field
    for oneof in message.oneofs:
        yield oneof.full_name, oneof
    for nested in message.nested_types:
        yield from _declared_in(nested)
    for enum in message.enum_types:
        yield from _declared_by(enum)


def _declared_by(enum: EnumDescriptor) -> Iterator[tuple[str, Any]]:
    """Yield ENUM and its values, which are named as if they stood beside it."""
    yield enum.full_name, enum
    scope = enum.full_name.rpartition(".")[0]
    for value in enum.values:
        yield f"{scope}.{value.name}" if scope else value.name, value
