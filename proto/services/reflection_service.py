"""The service `grpc.reflection.v1.ServerReflection`, and v1alpha: which services and messages does this server have?

    table |= Reflection(table).methods()

Tools without .proto files (grpcurl, Postman) ask for the services, then for the files that declare them. A reply
contains the file, then all files that it imports. Both versions have the same messages under different names; grpcurl
tries the newer one first.

A failed request gets an error response, NOT_FOUND or INVALID_ARGUMENT, and the stream continues. Only files that the
served tables need are visible.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FileDescriptor

from ..gen import grpc_reflection_pb2 as v1, grpc_reflection_v1alpha_pb2 as v1alpha
from ..rpc import MethodTable, Stream, bidi, service
from .described_files import DescribedFiles, with_imports

#: The modules of the versions that are served. Their messages are alike, but have no common type.
_VERSIONS: Final[tuple[Any, ...]] = (v1, v1alpha)
#: gRPC's codes, which an error response has as numbers.
NOT_FOUND: Final = 5
INVALID_ARGUMENT: Final = 3
#: Characters of a request that an error message quotes.
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
        """Return the answer to REQUEST."""
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
                    "message_request: unknown kind of request",
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
        """Do nothing: nothing is held."""


def _described(file: FileDescriptor | None, what: str) -> _Fields:
    """Return FILE with all its imports, or an error that WHAT was not found."""
    if file is None:
        return _refusal(NOT_FOUND, f"no {what} here")
    files = [one.serialized_pb for one in with_imports(file)]
    return {"file_descriptor_response": {"file_descriptor_proto": files}}


def _refusal(code: int, sentence: str) -> _Fields:
    return {"error_response": {"error_code": code, "error_message": sentence}}


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "…")
