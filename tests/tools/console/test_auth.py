"""Requests that reach the console of a broker without users: which count as this machine's own."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.rpc.pages import PageRequest
from pocketmq.tools.console.auth import TOKEN, Door, NotAllowed, host_in

OPEN = Door(None, lambda: 0.0)
HERE = "127.0.0.1:5"


def asked(method: str = "GET", peer: str = HERE, **headers: str) -> PageRequest:
    named = {"host": "127.0.0.1:8081"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return PageRequest(method, "/", named, peer=peer)


OWN_HOSTS = [
    "127.0.0.1",
    "127.0.0.1:8081",
    "127.9.8.7:80",
    "localhost",
    "LocalHost:8081",
    "[::1]",
    "[::1]:8081",
    "[0:0:0:0:0:0:0:1]:8081",
    "[::ffff:127.0.0.1]:8081",
]
FOREIGN_HOSTS = [
    "[::1].evil.com",
    "[::1].evil.com:8081",
    "[::1]evil.com",
    "[::1]:8081.evil.com",
    "[::1",
    "::1]",
    "::1",
    "::1:8081",
    "[[::1]]",
    "[::1%25lo]",
    "[::1%25evil.com]:8081",
    "[::1%lo]:8081",
    "127.0.0.1%25evil.com",
    "127.0.0.1%25evil.com:8081",
    "127.0.0.1%evil.com",
    "127.0.0.1.evil.com",
    "127.0.0.1.",
    "127.0.0.1:",
    "127.0.0.1:x",
    "127.0.0.1:8081:8081",
    "127.0.0.1:8081.evil.com",
    "127.0.0.1:65536",
    "127.0.0.1:-1",
    "127.0.0.1:+1",
    "127.0.0.1:٣",
    "127.0.0.1@evil.com",
    "evil.com@127.0.0.1",
    "user:secret@127.0.0.1:8081",
    "127.0.0.1/evil.com",
    "127.0.0.1#evil.com",
    "127.0.0.1?evil.com",
    "127.0.0.1\\evil.com",
    "127.0.0.1,evil.com",
    "127.0.0.1, 127.0.0.1",
    "127.0.0.1 evil.com",
    " 127.0.0.1",
    "127.0.0.1\t",
    "127.0.0.1\n",
    "127.0.0.1\0",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "127.000.000.001",
    "١٢٧.0.0.1",
    "localhost.",
    "localhost.:8081",
    "localhost.evil.com",
    "evil.localhost",
    "localhost%25evil.com",
    "localhost:",
    "[localhost]",
    "[127.0.0.1]",
    "lоcalhost",  # The second letter is Cyrillic.
    "localhoſt",  # str.casefold() makes it localhost.
    "0.0.0.0",
    "[::]",
    "10.0.0.1",
    "broker-1.example",
    "evil.com",
    "",
    ":8081",
    "[]",
]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_a_host_that_names_loopback_is_answered(host: str) -> None:
    OPEN.admit(asked(host=host))
    OPEN.check_metrics(asked(host=host))


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_every_other_host_is_refused(host: str) -> None:
    with pytest.raises(NotAllowed, match="Host"):
        OPEN.admit(asked(host=host))


@given(st.text(alphabet="[]:.%@1270locahst xe/-", max_size=24))
def test_a_host_that_counts_as_loopback_has_one_spelling(text: str) -> None:
    found = host_in(text)
    assert found is None or text.lower() in (
        shown + port
        for shown in (found, f"[{found}]")
        for port in ("", ":" + text.rpartition(":")[2])
    )


@pytest.mark.parametrize(
    "name",
    [
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded",
        "forwarded-for",
        "x-original-forwarded-for",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "cf-connecting-ipv6",
        "cf-ray",
        "cdn-loop",
        "fastly-client-ip",
        "fly-client-ip",
        "x-azure-clientip",
        "x-envoy-external-address",
        "x-appengine-user-ip",
        "x-amzn-trace-id",
        "x-original-host",
        "x-original-url",
        "x-rewrite-url",
        "x-scheme",
        "front-end-https",
        "proxy-client-ip",
        "wl-proxy-client-ip",
        "x-proxyuser-ip",
        "x-originating-ip",
        "x-remote-addr",
        "x-remote-ip",
    ],
)
@pytest.mark.parametrize("value", ["203.0.113.9", "127.0.0.1", ""])
def test_one_header_of_a_proxy_is_enough_to_be_refused(name: str, value: str) -> None:
    request = asked()._replace(headers={"host": "127.0.0.1:8081", name: value})
    with pytest.raises(NotAllowed, match=f"{name}"):
        OPEN.admit(request)


@pytest.mark.parametrize(
    "peer", ["10.0.0.2:5", "[fe80::1%lo]:5", "127.0.0.1%evil:5", "[::1].evil:5", "", "localhost"]
)
def test_a_peer_elsewhere_is_refused(peer: str) -> None:
    with pytest.raises(NotAllowed, match="this machine"):
        OPEN.admit(asked(peer=peer))


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:8081"}, True),
        ({"referer": "http://127.0.0.1:8081/topics?x=1"}, True),
        ({"referer": "http://127.0.0.1:8081"}, True),
        ({"origin": "http://127.0.0.1:8081", "referer": "http://evil.com/"}, True),
        ({"origin": "https://127.0.0.1:8081"}, False),
        ({"origin": "http://127.0.0.1:80810"}, False),
        ({"origin": "http://127.0.0.1"}, False),
        ({"origin": "http://127.0.0.1:8081.evil.com"}, False),
        ({"origin": "http://127.0.0.1:8081@evil.com"}, False),
        ({"origin": "http://127.0.0.1:8081/"}, False),
        ({"origin": "http://localhost:8081"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://evil.com", "referer": "http://127.0.0.1:8081/"}, False),
        ({"referer": "http://evil.com/http://127.0.0.1:8081/"}, False),
        ({"referer": "http://127.0.0.1:8081.evil.com/"}, False),
        ({"referer": "http://127.0.0.1:8081@evil.com/"}, False),
        ({"referer": "https://127.0.0.1:8081/"}, False),
        ({"referer": ""}, False),
    ],
)
def test_only_a_page_of_the_console_changes_something(
    headers: dict[str, str], allowed: bool
) -> None:
    request = asked("POST", **{TOKEN: OPEN.token}, **headers)
    if allowed:
        OPEN.admit(request)
    else:
        with pytest.raises(NotAllowed, match="cannot change anything"):
            OPEN.admit(request)


@pytest.mark.parametrize(
    ("host", "peer", "allowed"),
    [
        ("127.0.0.1:8081", HERE, True),
        ("10.0.0.7:8081", HERE, True),
        ("pocketmq:8081", HERE, True),
        ("Broker-1.example:8081", HERE, True),
        ("", HERE, True),
        ("broker-1.example.evil.com:8081", HERE, False),
        ("evil.com:8081", HERE, False),
        ("[::1].evil.com", HERE, False),
        ("127.0.0.1%25evil.com", HERE, False),
        ("localhost.", HERE, False),
        ("prometheus.example:8081", "10.0.0.7:5", True),
    ],
)
def test_metrics_are_not_read_by_a_site_whose_name_leads_to_loopback(
    host: str, peer: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "broker-1.example")
    request = asked(host=host, peer=peer)._replace(target="/metrics")
    if allowed:
        OPEN.check_metrics(request)
    else:
        with pytest.raises(NotAllowed, match="Host"):
            OPEN.check_metrics(request)
