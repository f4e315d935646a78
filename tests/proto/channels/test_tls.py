"""TLS among those who know each other: both sides show a certificate of one authority, or there is no call."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from pocketmq.proto.rpc import Certificate, Server, StatusCode
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.rpc.channels import CallFailed, HandshakeFailed
from pocketmq.proto.rpc.client_link import ClientLink
from pocketmq.proto.rpc.frames import ACK, PING, PREFACE, frame, settings
from pocketmq.proto.rpc.limits import ChannelLimits
from pocketmq.proto.rpc.tls_transport import TlsSession

from ...authority import Authority
from ..carriers.echo import RUN, EchoService
from .methods import echo, unary

OURS, OTHERS = Authority(), Authority("others")


@asynccontextmanager
async def serving(certificate: Certificate) -> AsyncIterator[str]:
    async def shown() -> Certificate:
        return certificate

    server = Server([EchoService().methods()], certificate=shown, secure_only=True)
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_calls_and_streams_go_over_tls() -> None:
    async with (
        serving(OURS.certificate()) as address,
        Http2Channel(address, tls=OURS.certificate().client_context()) as channel,
    ):
        assert (await unary(channel)(RUN(run_id=7), timeout=10)).run_id == 7
        call = echo(channel)()
        for size in (1, 100_000, 1_000_000):
            await call.write(RUN(run_id=size, queue=size, records=bytes(size)))
            reply = await call.read()
            assert reply.run_id == size
        call.cancel()


async def test_records_that_come_together_are_read_whole() -> None:
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session, heard = TlsSession(OURS.certificate().server_context()), b""
        while b"together" not in heard and (data := await reader.read(65_536)):
            heard += session.receive(data)
            if heard.startswith(PREFACE):
                heard = heard.removeprefix(PREFACE)
                session.send(settings({}))
                session.send(frame(PING, 0, 0, b"together"))
            writer.write(session.take())
        answered.set_result(heard)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Http2Channel(
        f"127.0.0.1:{port}", tls=OURS.certificate().client_context()
    ) as channel:
        call = echo(channel)()

        assert frame(PING, ACK, 0, b"together") in await answered
        call.cancel()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("who", ["without one", "of another authority", "expired", "plaintext"])
async def test_a_caller_who_shows_no_certificate_of_the_authority_is_refused(who: str) -> None:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.load_verify_locations(cadata=OURS.pem.decode())
    other = replace(OTHERS.certificate(), authorities=OURS.pem)
    context = {
        "without one": anybody,
        "of another authority": other.client_context(),
        "expired": OURS.certificate(valid_days=-1).client_context(),
        "plaintext": None,
    }[who]

    async with (
        serving(OURS.certificate()) as address,
        Http2Channel(address, tls=context) as channel,
    ):
        with pytest.raises(CallFailed) as caught:
            await unary(channel)(RUN(run_id=7), timeout=10)
    assert caught.value.code() is StatusCode.UNAVAILABLE


async def test_a_server_of_another_authority_is_not_believed() -> None:
    theirs = replace(OTHERS.certificate(), authorities=OURS.pem)
    async with (
        serving(theirs) as address,
        Http2Channel(address, tls=OURS.certificate().client_context()) as channel,
    ):
        with pytest.raises(CallFailed, match=r"TLS failed: .*certificate") as caught:
            await unary(channel)(RUN(run_id=7), timeout=10)
    assert caught.value.code() is StatusCode.UNAVAILABLE


async def test_a_server_without_tls_is_not_spoken_to() -> None:
    server = Server([EchoService().methods()])
    port = await server.start("127.0.0.1", 0)
    tls = OURS.certificate().client_context()
    async with Http2Channel(f"127.0.0.1:{port}", tls=tls) as channel:
        with pytest.raises(HandshakeFailed, match="speaks plaintext at this port") as caught:
            await unary(channel)(RUN(run_id=7), timeout=10)
    assert caught.value.code() is StatusCode.UNAVAILABLE
    await server.stop(0)


async def test_a_server_that_takes_tls_alone_says_so_to_who_speaks_plaintext() -> None:
    async with serving(OURS.certificate()) as address:
        async with Http2Channel(address) as channel:
            with pytest.raises(HandshakeFailed, match="accepts no plaintext at this port"):
                await unary(channel)(RUN(run_id=7), timeout=10)
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        said = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"accepts only TLS" in said


async def test_a_connection_that_is_lost_amid_the_handshake_may_be_made_later() -> None:
    async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(lose, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Http2Channel(
        f"127.0.0.1:{port}", tls=OURS.certificate().client_context()
    ) as channel:
        with pytest.raises(CallFailed) as caught:
            await unary(channel)(RUN(run_id=7), timeout=10)
    assert not isinstance(caught.value, HandshakeFailed)
    server.close()
    await server.wait_closed()


async def test_the_end_of_tls_is_answered() -> None:
    async with serving(OURS.certificate()) as address:
        link = await ClientLink.open(
            address, ChannelLimits(), lambda link: None, OURS.certificate().client_context()
        )
        link.close()
        async with asyncio.timeout(20):  # asyncio waits 30 s for a server's last word.
            await link.closed


async def test_a_peer_may_end_tls_together_with_its_last_data(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(OURS.certificate()) as address:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = OURS.certificate().client_context()
        session = context.wrap_bio(incoming, outgoing, server_hostname=host)
        while not session.version():
            with suppress(ssl.SSLWantReadError):
                session.do_handshake()
            writer.write(outgoing.read())
            if not session.version():
                incoming.write(await reader.read(65_536))
        session.write(PREFACE + settings({}) + frame(PING, 0, 0, b"the last"))
        with suppress(ssl.SSLWantReadError):
            session.unwrap()
        writer.write(outgoing.read())
        async with asyncio.timeout(20):
            while await reader.read(65_536):
                pass
        writer.close()
    assert not [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
