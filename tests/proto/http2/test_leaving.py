"""What streams hear that are open when their connection ends."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pocketmq.proto.carriers import Http2Carrier

from ..carriers.echo import RUN, EchoService
from .calls import message, request_fields
from .frames import Code, Type
from .peer import Peer


async def test_a_stream_that_a_stop_ends_is_not_reset_behind_its_last_word() -> None:
    # A client (tonic's) that reads on behind an error would find the reset each time, and never an end.
    echo = EchoService()
    carrier = Http2Carrier([echo.methods()])
    port = await carrier.start("127.0.0.1", 0)
    async with Peer.open(port) as peer:
        stream = peer.begin(request_fields("/test.Echo/Endless"))
        encoded = message(RUN(run_id=1).SerializeToString())
        await peer.send_body(stream, encoded, end=False)
        both_ways = peer.begin(request_fields("/test.Echo/Echo"))
        await peer.send_body(both_ways, encoded, end=False)
        await echo.arrived.wait()
        await peer.round_trip()
        stopping = asyncio.ensure_future(carrier.stop(grace_s=1))
        last = await peer.ended()
        statuses = [(await peer.answer(one)).status for one in (stream, both_ways)]
        resets = [frame for frame in peer.frames if frame.type == Type.RST_STREAM]
        await peer.close()
        await stopping
    assert last is not None
    assert last.code == Code.NO_ERROR
    assert statuses == ["14", "14"]
    assert resets == []


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_arrives_while_its_server_stops_is_closed(turns: int) -> None:
    carrier = Http2Carrier([EchoService().methods()])
    port = await carrier.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setblocking(False)
        for _ in range(turns):  # Of the steps from the listening socket to the protocol.
            await asyncio.sleep(0)
        await carrier.stop(0)
        try:
            heard = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1), 30)
        except ConnectionResetError:
            heard = b""
    assert heard == b""
    assert carrier.connections == 0


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_arrives_while_all_are_counted_is_shown_once_it_is_made(
    turns: int,
) -> None:
    carrier = Http2Carrier([EchoService().methods()])
    port = await carrier.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        host, at = peer.getsockname()
        for _ in range(turns):
            await asyncio.sleep(0)
        early = carrier.connection_figures(0, 9)
        for _ in range(6):
            await asyncio.sleep(0)
        late = carrier.connection_figures(0, 9)
    await carrier.stop(0)
    assert [one.peer for one in late] == [f"{host}:{at}"]
    assert {one.peer for one in early} <= {one.peer for one in late}
