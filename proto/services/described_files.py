"""Described files: an index of the .proto descriptors that a method table needs, by file and by symbol.

Descriptors are in two pools: `pocketmq.v1` in the default pool, other protocols in a private one. A pool may contain
more than is served, and cannot find methods by name. So the first lookup builds an index of about 2,000 names.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from ..rpc import MethodTable


class DescribedFiles:
    """The files that describe TABLE, by name and by the symbols they declare."""

    def __init__(self, table: MethodTable) -> None:
        self._table = table

    @property
    def services(self) -> list[str]:
        """The names of the described services, in order: tools fail at a service without a description."""
        return [name for name in self._table.services() if name in self._symbols]

    def named(self, name: str) -> FileDescriptor | None:
        """Return the file called NAME, "pocketmq/proto/gen/pocketmq_v1.proto"."""
        return self._files.get(name)

    def declaring(self, symbol: str) -> FileDescriptor | None:
        """Return the file that declares SYMBOL, a full name such as "pocketmq.v1.Broker.Status"."""
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
        """Declared symbols and their files, by full name."""
        return {
            name: (file, declared)
            for file in self._files.values()
            for name, declared in _declared(file)
        }

    @cached_property
    def _extensions(self) -> dict[tuple[str, int], FileDescriptor]:
        """The files of extensions, by the message that they extend and their number."""
        return {
            (declared.containing_type.full_name, declared.number): file
            for file, declared in self._symbols.values()
            if isinstance(declared, FieldDescriptor)
            and declared.is_extension
            and declared.containing_type is not None
        }


def with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    """Return FILE and all files that it imports, directly or not, each once."""
    found = {file.name: file}
    left = [file]
    while left:
        for imported in left.pop().dependencies:
            if imported.name not in found:
                found[imported.name] = imported
                left.append(imported)
    return list(found.values())


def _roots(table: MethodTable) -> Iterator[FileDescriptor]:
    """Yield the files of the types of TABLE's methods, and of its services if a pool knows them."""
    for method in table:
        name = method.path[1:].rpartition("/")[0]
        for message in (method.request_type, method.reply_type):
            file: Any = message.DESCRIPTOR.file
            yield file
            try:
                yield file.pool.FindServiceByName(name).file
            except KeyError:
                continue  # The table has no .proto file for it, or one in another pool.


def _declared(file: FileDescriptor) -> Iterator[tuple[str, Any]]:
    """Yield the full name and the descriptor of each symbol in FILE."""
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
    """Yield ENUM and its values; the values are named as siblings of ENUM."""
    yield enum.full_name, enum
    scope = enum.full_name.rpartition(".")[0]
    for value in enum.values:
        yield f"{scope}.{value.name}" if scope else value.name, value
