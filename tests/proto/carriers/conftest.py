"""The carrier under test: each of `CARRIERS` in turn."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest

from pocketmq.proto.rpc import Carrier, Limits, MethodTable

from .kinds import CARRIERS, CarrierKind
from .serving import Make, Securing, Serving, secure, serve


@pytest.fixture(params=CARRIERS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> CarrierKind:
    found: CarrierKind = request.param
    return found


@pytest.fixture
def make(kind: CarrierKind) -> Make:
    """Return what makes a carrier of tables that serves in the clear."""

    def make_one(tables: Iterable[MethodTable] = (), limits: Limits | None = None) -> Carrier:
        return kind.plain(tables, limits=limits or Limits())

    return make_one


@pytest.fixture
def serving(make: Make) -> Serving:
    """Return what serves an EchoService on a free port, with Limits, and connects to it."""
    return partial(serve, make)


@pytest.fixture
def securing(kind: CarrierKind) -> Securing:
    """Return what serves an EchoService over TLS, with the last of a list of certificates."""
    return partial(secure, kind)
