"""TLS: which certificate is shown, and how long a handshake may take."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime

import grpc
import grpc.aio

from pocketmq.broker.certificates import development_certificate
from pocketmq.proto.rpc import Certificate, Limits

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
