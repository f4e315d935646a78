"""gRPC over HTTP/2 in Python: a server, a client and the protocol between them, without a compiled library.

    from pocketmq.proto.rpc import connect, serve, service, unary

README.md, in this folder, has an example and lists the features and their limits. This package does not know PocketMQ.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .carrier import (
        Carrier,
        ConnectionFigures,
        ConnectionTotals,
        CountsConnections,
        MakeCarrier,
    )
    from .channel import Http2Channel, connect
    from .channels import EOF, CallFailed, Channel, ChannelClosed, StatusCode, StreamCall
    from .errors import Describe, RpcError, RpcFailure
    from .limits import ChannelLimits, ConnectionLimits, Limits
    from .listening import Certificate
    from .methods import (
        LATER,
        Call,
        CallContext,
        CallUser,
        Later,
        Method,
        MethodEntry,
        MethodKind,
        MethodTable,
        Receiver,
        Stream,
        bidi,
        server_stream,
        service,
        unary,
    )
    from .server import Server, serve

__all__ = [
    "Server",
    "serve",
    "Http2Channel",
    "connect",
    "LATER",
    "CallUser",
    "Call",
    "CallContext",
    "Carrier",
    "Certificate",
    "ConnectionFigures",
    "ConnectionTotals",
    "CountsConnections",
    "Later",
    "MakeCarrier",
    "Method",
    "MethodEntry",
    "MethodKind",
    "MethodTable",
    "Receiver",
    "Stream",
    "bidi",
    "server_stream",
    "service",
    "unary",
    "Describe",
    "RpcFailure",
    "RpcError",
    "EOF",
    "CallFailed",
    "Channel",
    "ChannelClosed",
    "StatusCode",
    "StreamCall",
    "ChannelLimits",
    "ConnectionLimits",
    "Limits",
]

#: The module of each name. Names are imported on first use, so that users of errors and calls do not import a server.
_MODULES = {
    "CallUser": "methods",
    "Http2Channel": "channel",
    "connect": "channel",
    "CallFailed": "channels",
    "Channel": "channels",
    "ChannelClosed": "channels",
    "EOF": "channels",
    "StatusCode": "channels",
    "StreamCall": "channels",
    "Describe": "errors",
    "RpcFailure": "errors",
    "RpcError": "errors",
    "ChannelLimits": "limits",
    "ConnectionLimits": "limits",
    "Limits": "limits",
    "Call": "methods",
    "CallContext": "methods",
    "Carrier": "carrier",
    "Certificate": "listening",
    "ConnectionFigures": "carrier",
    "ConnectionTotals": "carrier",
    "CountsConnections": "carrier",
    "LATER": "methods",
    "Later": "methods",
    "MakeCarrier": "carrier",
    "Method": "methods",
    "MethodEntry": "methods",
    "MethodKind": "methods",
    "MethodTable": "methods",
    "Receiver": "methods",
    "Stream": "methods",
    "bidi": "methods",
    "server_stream": "methods",
    "service": "methods",
    "unary": "methods",
    "Server": "server",
    "serve": "server",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value
