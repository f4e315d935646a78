"""TLS: which certificate is shown, and how long a handshake may take."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime

import grpc
import grpc.aio
import pytest

from pocketmq.broker.ports.certificates import development_certificate
from pocketmq.proto.rpc import Certificate, Limits
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import CallFailed

from ...authority import Authority
from ..channels.methods import unary
from .echo import REPLY, RUN
from .serving import Securing


def certificate() -> Certificate:
    return development_certificate([], datetime.now(UTC))


async def test_a_carrier_with_a_certificate_speaks_tls(securing: Securing) -> None:
    shown = [certificate()]
    async with securing(shown) as (_, port):
        credentials = grpc.ssl_channel_credentials(shown[0].chain)
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            call = channel.unary_unary("/test.Echo/Plain", RUN.SerializeToString, REPLY.FromString)
            assert (await call(RUN(run_id=7))).run_id == 7


async def test_a_new_certificate_is_shown_from_the_next_handshake_on(securing: Securing) -> None:
    shown = [certificate()]
    async with securing(shown) as (_, port):
        for _ in range(2):
            for _ in range(2):
                found = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
                assert found.encode() == shown[-1].chain
            shown.append(certificate())


async def test_a_handshake_that_takes_too_long_is_broken_off(securing: Securing) -> None:
    async with securing([certificate()], Limits(handshake_timeout_ms=100)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes((0x16, 3, 1)))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_the_names_in_a_caller_s_certificate_are_known_to_the_call(
    securing: Securing,
) -> None:
    ours = Authority()
    server = ours.certificate()
    caller = ours.certificate(name="billing", addresses=["10.0.0.7"])
    async with securing([server]) as (echo, port):
        address = f"127.0.0.1:{port}"
        async with Http2Channel(address, tls=caller.client_context()) as channel:
            await unary(channel)(RUN(run_id=7), timeout=30)
        assert tuple(echo.certificate_names) == ("billing", "10.0.0.7")
        with pytest.raises(CallFailed):
            async with Http2Channel(address, tls=nobody(ours)) as channel:
                await unary(channel)(RUN(run_id=7), timeout=30)


def nobody(believed: Authority) -> ssl.SSLContext:
    """Return the context of a caller who believes BELIEVED and shows nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=believed.pem.decode())
    context.set_alpn_protocols(["h2"])
    return context
