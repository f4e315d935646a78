"""HPACK, the compression of HTTP/2's header fields (RFC 7541): blocks of bytes in, lists of fields out, and back. Pure.

A block is a row of representations. What is in brackets is an integer: it fills the rest of its first byte and, if that
is all ones, goes on in bytes of seven bits, lowest first (§5.1, §6):

    1[index]                          a field of the table
    01[index] (name) value            a literal, which both ends then add to the dynamic table
    001[size]                         a new size of the dynamic table; only where a block begins
    0000[index] (name) value          a literal that is not added
    0001[index] (name) value          the same; whoever passes it on must not add it either (a secret)

A name is spelled out where the index is 0. A string is H[length] and its bytes, in Huffman's code if the bit H is set.
Indices 1 to 61 are the static table, from 62 on the dynamic one, newest first. A field counts as its bytes + 32, in the
table, from whose old end entries fall when it is full, as in the size of a list.

A block that breaks these rules leaves the two tables different: CompressionError, the connection is over. A block that
keeps them, but has a field that HTTP forbids or too many fields, costs its stream alone: `FieldList` says so.

One FieldDecoder and one FieldEncoder belong to each connection; blocks come in the order of the wire. Not thread-safe.
"""

from __future__ import annotations

from .field_decoder import CompressionError, FieldDecoder, FieldList
from .field_encoder import FieldEncoder, literal
from .fields import Field

__all__ = ["CompressionError", "Field", "FieldDecoder", "FieldEncoder", "FieldList", "literal"]
