"""Signatures of remoting requests, as `AclClientRPCHook` of Apache RocketMQ's Java client makes them.

    AccessKey       the user
    SecurityToken   signed like other fields, and not used
    Signature       base64 of HMAC-SHA1, with the user's secret, of the signed content

The signed content is the values of all fields but `Signature`, in the order of their names, without anything between
them, in UTF-8, and then the body. Neither request code nor names are in it, and no time: an observer of a request can
send it again, as another one with the same content, or as a gRPC call of the same user. Only TLS hides it.

Clients up to 4.9.3 do not sign the field `_UNIQUE_KEY_QUERY`. Source: auth.md §2.
"""

from __future__ import annotations

import binascii
from typing import Final

from ..access.signing import Credentials
from ..access.users import NAME_LENGTH_MAX
from .command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
_UNSIGNED_BEFORE: Final = "_UNIQUE_KEY_QUERY"
#: The ordinal of version 4.9.3.
_V4_9_3: Final = 399
_SIGNATURE_LENGTH_MAX: Final = 128


def claim_in(command: RemotingCommand) -> Credentials | None:
    """Return the claim in COMMAND to be of a user; None: it names none. A malformed signature is an empty one."""
    fields = command.fields
    user = fields.get(ACCESS_KEY)
    if not user:
        return None
    # No user has a longer name. What is logged and counted of it is bounded.
    name = user[: NAME_LENGTH_MAX + 1]
    return Credentials(name, _decoded(fields.get(SIGNATURE, "")), signed_content(command))


def signed_content(command: RemotingCommand) -> bytes:
    """Return the bytes that the signature of COMMAND is made of."""
    fields = command.fields
    names = [name for name in fields if name != SIGNATURE]
    if command.version <= _V4_9_3 and _UNSIGNED_BEFORE in fields:
        names.remove(_UNSIGNED_BEFORE)
    names.sort(key=None if "".join(names).isascii() else _in_java)
    return "".join([fields[name] for name in names]).encode("utf-8", "replace") + command.body


def _in_java(name: str) -> bytes:
    """Return the sort key of NAME: Java compares the code units of UTF-16."""
    return name.encode("utf-16-be", "surrogatepass")


def _decoded(text: str) -> bytes:
    if len(text) > _SIGNATURE_LENGTH_MAX:
        return b""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return b""
