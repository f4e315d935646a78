"""`grpc.reflection.v1.ServerReflection`, and v1alpha: what does this server serve?

    table |= Reflection(table).methods()

Tools that have no .proto files (grpcurl, Postman, a dynamic client) ask for the services, then for the files that
declare what they want to call. A file is answered with all that it imports, itself first. Both versions have the same
messages under different names; grpcurl asks for the newer one and falls back to the older.

A question that cannot be answered gets an error response, NOT_FOUND or INVALID_ARGUMENT, and the stream goes on. What
is told is what the tables that are carried need, and these services themselves; no secret, since the project is open.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor

from ..gen import grpc_reflection_pb2 as v1
from ..gen import grpc_reflection_v1alpha_pb2 as v1alpha
from ..rpc import MethodTable, Stream, bidi, service
from .described_files import DescribedFiles, with_imports

#: The modules of the versions that are served. Their messages are alike, which no type says.
_VERSIONS: Final[tuple[Any, ...]] = (v1, v1alpha)
#: gRPC's codes, which an error response has as numbers.
NOT_FOUND: Final = 5
INVALID_ARGUMENT: Final = 3
#: Characters of a question that an error repeats.
_QUOTED_MAX: Final = 200


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
        reply = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        match request.WhichOneof("message_request"):
            case "list_services":
                services = [pb.ServiceResponse(name=name) for name in self._files.services]
                reply.list_services_response.service.extend(services)
            case "file_by_filename":
                name = request.file_by_filename
                _put(reply, self._files.named(name), f"file {_quoted(name)}")
            case "file_containing_symbol":
                symbol = request.file_containing_symbol
                _put(reply, self._files.declaring(symbol), f"symbol {_quoted(symbol)}")
            case "file_containing_extension":
                asked = request.file_containing_extension
                what = f"extension {asked.extension_number} of {_quoted(asked.containing_type)}"
                found = self._files.extending(asked.containing_type, asked.extension_number)
                _put(reply, found, what)
            case "all_extension_numbers_of_type":
                self._put_numbers(reply, request.all_extension_numbers_of_type)
            case _:
                _refuse(
                    reply,
                    INVALID_ARGUMENT,
                    "message_request: the request asks for nothing that this server knows",
                )
        return reply

    def _put_numbers(self, reply: Any, message: str) -> None:
        numbers = self._files.extensions(message)
        if numbers is None:
            _refuse(reply, NOT_FOUND, f"no message {_quoted(message)} here")
        else:
            reply.all_extension_numbers_response.base_type_name = message
            reply.all_extension_numbers_response.extension_number.extend(numbers)


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


def _put(reply: Any, file: FileDescriptor | None, what: str) -> None:
    """Have REPLY hold FILE with all that it imports, or say that WHAT was asked for is not here."""
    if file is None:
        _refuse(reply, NOT_FOUND, f"no {what} here")
    else:
        files = [one.serialized_pb for one in with_imports(file)]
        reply.file_descriptor_response.file_descriptor_proto.extend(files)


def _refuse(reply: Any, code: int, sentence: str) -> None:
    reply.error_response.error_code = code
    reply.error_response.error_message = sentence


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "…")
