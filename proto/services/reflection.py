"""`grpc.reflection.v1.ServerReflection`, and v1alpha: what does this server serve?

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

from collections.abc import Iterator
from functools import cached_property, reduce
from operator import or_
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from ..gen import grpc_reflection_pb2 as v1
from ..gen import grpc_reflection_v1alpha_pb2 as v1alpha
from ..rpc import MethodTable, Stream, bidi, service

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
