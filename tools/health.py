"""`pocketmq health`: reports whether servers are ready, for probes that ask every few seconds.

Each probe starts a process, so this module imports neither asyncio nor numpy nor protobuf. It calls
`grpc.health.v1.Health/Check` over a blocking socket, and reads the two bytes that mean SERVING (gRPC's
doc/health-checking.md; a HealthCheckResponse is one enum in field 1).
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ..client.name_server_addresses import NAMESERVER_VARIABLE, named_or_default, parse_addresses
from ..proto.errors import ConnectionLost, InvalidArgument, TlsFailed
from ..proto.rpc.connection import ClientConnection
from ..proto.rpc.frames import ErrorCode
from ..proto.rpc.incoming import (
    ConnectionEnded,
    DataReceived,
    GoAwayReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from ..proto.rpc.limits import ConnectionLimits
from ..proto.time_text import parse_duration
from ..proto.tls import Trust
from .options import WAIT_MAX_MS, json_option, tls_options

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_BROKER: Final = "127.0.0.1:8081"
_READ_BYTES: Final = 65_536
_ANSWER_BYTES_MAX: Final = 1_024
#: The statuses of a HealthCheckResponse, by number.
_STATUSES: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_GRPC_NOT_FOUND: Final = "5"


class BrokerHealth(NamedTuple):
    """The health of SERVER, a "broker" or "name server", at ADDRESS. STATUS is a name of gRPC, such as SERVING."""

    server: str
    address: str
    status: str


@click.command()
@click.option(
    "--nameserver",
    "nameservers",
    metavar="HOST:PORT",
    multiple=True,
    help="Address of a name server. Repeatable.",
)
@click.option(
    "--broker",
    "brokers",
    metavar="HOST:PORT",
    multiple=True,
    help="Address of a broker. Repeatable.",
)
@click.option("--writable", is_flag=True, help="Also check that brokers accept messages.")
@click.option(
    "--timeout", metavar="2s", default="2s", show_default=True, help="Time limit for each server."
)
@tls_options
@json_option("one server per line")
@click.pass_context
def health(
    context: click.Context,
    *,
    nameservers: Sequence[str],
    brokers: Sequence[str],
    writable: bool,
    timeout: str,
    as_json: bool,
) -> None:
    """Check that servers are ready, for probes.

    Prints one line per server: SERVING or its other status. Without --nameserver and --broker it asks the name servers
    in $POCKETMQ_NAMESERVER; without that variable, the name server and the broker of `pocketmq serve` on this machine.

    \b
    Example: pocketmq health --broker 10.0.0.5:8081 --writable

    Exit code 1: a server is not ready; 4: a server does not answer; 5: client and server do not agree on TLS.
    """
    timeout_ms = parse_duration(timeout, field="--timeout", max_ms=WAIT_MAX_MS)
    if not timeout_ms:
        raise click.UsageError(f"--timeout {timeout} is too short: give 1ms or more.")
    if not (nameservers or brokers):
        nameservers = parse_addresses(named_or_default(None))
        brokers = () if os.environ.get(NAMESERVER_VARIABLE) else (DEFAULT_BROKER,)
    if writable and not brokers:
        raise click.UsageError("--writable checks brokers: add --broker HOST:PORT for each.")
    asked = [("name server", address, "") for address in nameservers]
    asked += [("broker", address, "writable" if writable else "") for address in brokers]
    tls = Trust().or_environment().context()
    all_serve = True
    for kind, address, service in asked:
        found = BrokerHealth(kind, address, _check(address, service, timeout_ms / 1000, tls))
        all_serve &= found.status == "SERVING"
        click.echo(json.dumps(found._asdict()) if as_json else f"{kind} {address}: {found.status}")
    context.exit(0 if all_serve else 1)


def _check(address: str, service: str, timeout_s: float, tls: SSLContext | None) -> str:
    """Return the status of SERVICE at ADDRESS. Raises InvalidArgument, ConnectionLost, TlsFailed."""
    host, _, port = address.rpartition(":")
    if not (host and len(port) <= 5 and port.isdecimal() and 0 < int(port) < 65_536):
        raise InvalidArgument(f"{address[:64]!r} is not an address: write HOST:PORT")
    until = time.monotonic() + timeout_s
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connected:
            if tls is None:
                return _ask(connected, address, service, until)
            with tls.wrap_socket(connected, server_hostname=host.strip("[]")) as secured:
                return _ask(secured, address, service, until)
    except TimeoutError as error:
        raise ConnectionLost(f"{address} did not answer within {timeout_s:g} s") from error
    except OSError as error:
        if tls is not None:
            import ssl

            from ..proto.rpc.client_link import reason_of

            kind = TlsFailed if isinstance(error, ssl.SSLError) else ConnectionLost
            raise kind(f"{address}: {reason_of(error)}") from error
        raise ConnectionLost(f"{address}: {error.strerror or error}") from error


def _ask(connected: socket.socket, address: str, service: str, until: float) -> str:
    """Call over a connection; return the status. Raises OSError, TimeoutError, ConnectionLost, TlsFailed."""
    name = service.encode()
    request = bytes((0x0A, len(name))) + name if name else b""
    http2 = ClientConnection(ConnectionLimits(), 0)
    answer = b""
    is_asked = False
    while True:
        if http2.can_open and not is_asked:
            is_asked = True
            http2.open(_fields(address), b"\0" + len(request).to_bytes(4, "big") + request)
        connected.sendall(http2.take())
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connected.settimeout(left_s)
        data = connected.recv(_READ_BYTES)
        if not data:
            raise ConnectionLost(f"{address} closed the connection. Is it a port of PocketMQ?")
        for event in http2.receive(data, 0):
            _check_open(address, event)
            if isinstance(event, DataReceived):
                answer = (answer + event.data)[:_ANSWER_BYTES_MAX]
            elif isinstance(event, TrailersReceived) or (
                isinstance(event, ResponseReceived) and event.ended
            ):
                return _status(address, answer, dict(event.fields))


def _check_open(address: str, event: object) -> None:
    """Raise TlsFailed or ConnectionLost if EVENT ends the call."""
    if isinstance(event, GoAwayReceived) and event.code == ErrorCode.INADEQUATE_SECURITY:
        raise TlsFailed(f"{address}: TLS failed: the server accepts no plaintext: connect with TLS")
    if isinstance(event, GoAwayReceived) and event.reason:
        raise ConnectionLost(f"{address} ended the connection: {event.reason}")
    if isinstance(event, StreamReset | GoAwayReceived | ConnectionEnded):
        raise ConnectionLost(f"{address} ended the call. Is it a port of PocketMQ?")


def _fields(address: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", address),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]


def _status(address: str, answer: bytes, trailers: dict[str, str]) -> str:
    """Return the name of the status in ANSWER, a gRPC message, and TRAILERS. Raises ConnectionLost."""
    code = trailers.get("grpc-status", "")
    if code == _GRPC_NOT_FOUND:
        return "SERVICE_UNKNOWN"
    message = answer[5:]
    if code != "0" or len(message) not in {0, 2} or (message and message[0] != 0x08):
        from urllib.parse import unquote

        reason = unquote(trailers.get("grpc-message", "")) or "no reason given"
        raise ConnectionLost(f"{address} answered with gRPC status {code or 'none'}: {reason}")
    number = message[1] if message else 0
    return _STATUSES[number] if number < len(_STATUSES) else f"status {number}"
