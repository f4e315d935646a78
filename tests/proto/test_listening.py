"""Taking a port: which addresses it covers, and what is said when it cannot be had."""

from __future__ import annotations

import socket

import pytest

from pocketmq.proto.rpc.errors import CannotListen
from pocketmq.proto.rpc.listening import address_of, check_bindable, listen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", ""])
def test_all_sockets_of_a_host_have_one_port(host: str) -> None:
    found = listen(host, 0)

    assert len({one.getsockname()[1] for one in found}) == 1
    with socket.create_connection(("127.0.0.1", found[0].getsockname()[1]), timeout=5):
        pass
    for one in found:
        one.close()


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("127.0.0.1", 70_000, "a port must be from 0 to 65535"),
        ("0.0.0.0", 70_000, "a port must be from 0 to 65535"),
        ("192.0.2.1", 0, "cannot listen on 192.0.2.1:0: Cannot assign requested address. Stop"),
        ("no such host", 1, "cannot listen on no such host:1: "),
    ],
)
def test_what_cannot_be_had_is_said_in_the_systems_words(host: str, port: int, words: str) -> None:
    for take in (listen, check_bindable):
        with pytest.raises(CannotListen, match=words):
            take(host, port)


def test_a_port_belongs_to_one_server() -> None:
    (taken,) = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with taken:
        for take in (listen, check_bindable):
            with pytest.raises(
                CannotListen, match=f"{port}: Address already in use. Stop the other"
            ):
                take("127.0.0.1", port)
    check_bindable("127.0.0.1", port)


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert (address_of("::1", 1), address_of("a", 2)) == ("[::1]:1", "a:2")
