"""Clients are sent where they came from."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.service_v2.client_addresses import Reach, endpoints_at
from pocketmq.broker.service_v2.statuses import Refused
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

OWN = "127.0.0.1:8081"
ECHO = Reach((), lambda: (OWN,))


@pytest.mark.parametrize(
    ("address", "scheme", "host"),
    [
        ("localhost:1", v2.DOMAIN_NAME, "localhost"),
        ("pocketmq.default.svc:8081", v2.DOMAIN_NAME, "pocketmq.default.svc"),
        ("10.0.0.7:65535", v2.IPv4, "10.0.0.7"),
        ("[::1]:8081", v2.IPv6, "::1"),
        ("[fe80::1%eth0]:8081", v2.IPv6, "fe80::1%eth0"),
    ],
)
def test_a_client_is_sent_where_it_came_from(
    address: str, scheme: v2.AddressScheme, host: str
) -> None:
    dialled = endpoints_at([address])

    assert (dialled.scheme, dialled.addresses[0].host) == (scheme, host)
    assert ECHO.of(dialled) == dialled


@given(st.lists(st.integers(1, 65_535), min_size=1, max_size=64), st.sampled_from([0, 1, 2, 3]))
def test_addresses_stay_as_they_are_and_get_a_scheme_if_they_had_none(
    ports: list[int], scheme: v2.AddressScheme
) -> None:
    dialled = v2.Endpoints(
        scheme=scheme, addresses=[v2.Address(host="10.0.0.1", port=port) for port in ports]
    )

    told = ECHO.of(dialled)

    assert list(told.addresses) == list(dialled.addresses)
    assert told.scheme == (scheme or v2.IPv4)


@pytest.mark.parametrize("dialled", [v2.Endpoints(), v2.Endpoints(scheme=v2.IPv4)])
def test_a_client_that_does_not_say_is_told_the_brokers_address(dialled: v2.Endpoints) -> None:
    assert ECHO.of(dialled) == endpoints_at([OWN])


def test_settings_overrule_what_was_dialled() -> None:
    reach = Reach(("10.0.0.1:80", "10.0.0.2:80"), lambda: (OWN,))

    told = reach.of(endpoints_at(["localhost:1"]))

    assert told.scheme == v2.IPv4
    assert [address.host for address in told.addresses] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(("host", "port"), [("", 1), (" ", 1), ("h", 0), ("h", -1), ("h", 65_536)])
def test_what_nobody_can_connect_to_is_refused_in_routes_and_passed_over_in_settings(
    host: str, port: int
) -> None:
    dialled = v2.Endpoints(scheme=v2.DOMAIN_NAME, addresses=[v2.Address(host=host, port=port)])

    with pytest.raises(Refused) as caught:
        ECHO.of(dialled)
    assert caught.value.code == v2.ILLEGAL_ACCESS_POINT
    assert ECHO.of_settings(dialled) == endpoints_at([OWN])


def test_addresses_have_a_bound() -> None:
    with pytest.raises(Refused, match="65 addresses, the limit is 64"):
        ECHO.of(endpoints_at([OWN] * 65))


# ---------------------------------------------------------------- replica sets

REPLICAS = ("10.0.0.2:8081", "10.0.0.1:8081", "10.0.0.3:8081")
OF_SET = Reach((), lambda: REPLICAS)


@pytest.mark.parametrize(
    "dialled",
    [
        [],
        ["10.0.0.1:8081"],
        ["10.0.0.2:8081"],
        ["10.0.0.3:8081", "10.0.0.1:8081"],
        ["10.0.0.3:8081", "10.9.9.9:8081"],
        ["10.9.9.9:8081"],
    ],
)
def test_who_dialled_any_replica_is_told_all_the_master_first(dialled: list[str]) -> None:
    asked = endpoints_at(dialled) if dialled else v2.Endpoints()

    assert OF_SET.of(asked, elsewhere={"10.9.9.9:8081"}) == endpoints_at(REPLICAS)


def test_who_came_to_a_replica_set_by_another_way_is_sent_where_it_came_from() -> None:
    dialled = endpoints_at(["localhost:18081"])

    assert OF_SET.of(dialled) == dialled


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        (("a.orders:1", "b.orders:1"), ("a.orders:1",)),
        (("10.0.0.1:1", "b.orders:1", "10.0.0.3:1"), ("10.0.0.1:1", "10.0.0.3:1")),
        (("[::1]:1", "10.0.0.1:1", "[::2]:1"), ("[::1]:1", "[::2]:1")),
    ],
)
def test_of_replicas_those_are_told_that_clients_take_together(
    replicas: tuple[str, ...], told: tuple[str, ...]
) -> None:
    assert Reach((), lambda: replicas).of(v2.Endpoints()) == endpoints_at(told)


def test_what_is_measured_goes_to_the_master() -> None:
    assert OF_SET.of_settings(endpoints_at(REPLICAS)) == endpoints_at(REPLICAS[:1])
