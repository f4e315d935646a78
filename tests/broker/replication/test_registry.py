"""What lies in the registry: cells, live nodes, what is refused; and the registry in memory that tests use."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.replication.registry import LiveNode, ReplicaSetState
from pocketmq.broker.replication.registry_format import (
    NODE_SIZE_MAX,
    parse_cell,
    parse_live,
    render_cell,
    render_live,
)
from pocketmq.proto.errors import ConfigError, RegistryUnavailable, SessionExpired

from .memory_registry import Ensemble, Fault, MemoryRegistry

NODE = "/pocketmq/c/sets/orders/state"
ADDRESSES = {1: "10.0.0.1:9876", 2: "b:9876", 3: "[::1]:1"}
CELL = ReplicaSetState(epoch=7, master=2, in_sync=frozenset({2, 1}), replicas=ADDRESSES)
LIVE = LiveNode(address="b:9876", epoch=7, end=4096)


def test_a_cell_has_the_bytes_that_the_design_shows() -> None:
    assert render_cell(CELL) == (
        b'{"format":1,"epoch":7,"master":2,"in_sync":[1,2],'
        b'"replicas":{"1":"10.0.0.1:9876","2":"b:9876","3":"[::1]:1"}}'
    )
    assert render_live(LIVE) == b'{"address":"b:9876","epoch":7,"end":4096,"unclean":false}'


@given(st.data())
def test_cells_and_live_nodes_come_back_from_their_bytes(data: st.DataObject) -> None:
    ids = st.integers(1, 2**31 - 1)
    replicas = data.draw(st.dictionaries(ids, st.just("host:1"), max_size=8))
    in_sync = (
        data.draw(st.frozensets(st.sampled_from(sorted(replicas)))) if replicas else frozenset()
    )
    master = data.draw(st.sampled_from([0, *sorted(in_sync)]))
    cell = ReplicaSetState(
        epoch=data.draw(st.integers(0, 2**31 - 1)),
        master=master,
        in_sync=in_sync,
        replicas=replicas,
    )
    live = LiveNode(
        address="host:65535",
        epoch=cell.epoch,
        end=data.draw(st.integers(0, 2**63 - 1)),
        unclean=data.draw(st.booleans()),
        epoch_seen=data.draw(st.integers(0, 2**31 - 1)),
    )

    assert parse_cell(render_cell(cell), NODE) == cell
    assert parse_live(render_live(live), NODE) == live


def _with(**changes: object) -> bytes:
    fields = json.loads(render_cell(CELL))
    fields.update(changes)
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "it is not JSON: b''"),
        (b"{", "it is not JSON: b'{'"),
        (b"\xff\xfe", r"it is not JSON: b'\xff\xfe'"),
        (b"[" * 10_000, "it is not JSON: "),
        (b"[]", "it is not a JSON object: b'[]'"),
        (b" " * (NODE_SIZE_MAX + 1), f"it has {NODE_SIZE_MAX + 1} bytes, the limit is {NODE_SIZE_MAX}"),
        (_with(format=2), '"format" is 2, and this program knows 1; upgrade this broker'),
        (_with(format=None), '"format" must be an integer from 1 to '),
        (_with(format=True), '"format" must be an integer from 1 to '),
        (_with(epoch=-1), '"epoch" must be an integer from 0 to 2147483647, not -1'),
        (_with(epoch=2**31), '"epoch" must be an integer from 0 to 2147483647, not 2147483648'),
        (_with(epoch="7"), "\"epoch\" must be an integer from 0 to 2147483647, not '7'"),
        (_with(master=3), '"master" is 3, which "in_sync" does not have'),
        (_with(master=None), '"master" must be an integer from 0 to '),
        (_with(in_sync=[1, 4]), '"in_sync" has 4, which "replicas" does not have'),
        (_with(in_sync=[1, 1, 2]), '"in_sync" names a replica twice: [1, 1, 2]'),
        (_with(in_sync=[True, 2]), '"in_sync" must be a list of replica ids from 1 on'),
        (_with(in_sync={"1": 1}), '"in_sync" must be a list of replica ids from 1 on'),
        (_with(replicas=[]), '"replicas" must be an object of addresses by replica id, not []'),
        (_with(replicas={"01": "a:1"}), "\"replicas\" has the key '01', which is no replica id"),
        (_with(replicas={"0": "a:1"}), '"replicas" has the id 0, not from 1 to '),
        (_with(replicas={"9" * 5000: "a:1"}), "\"replicas\" has the key '9999"),
        (_with(replicas={"1": "a:1", "2": "b"}), '"replicas" at "2" must be "host:port", not \'b\''),
        (_with(replicas={"1": "a:0", "2": "b:1"}), '"replicas" at "1" must be "host:port"'),
        (_with(replicas={"1": "\ud800:1", "2": "b:1"}), '"replicas" at "1" must be "host:port"'),
        (_with(replicas={"1": 5, "2": "b:1"}), '"replicas" at "1" must be "host:port", not 5'),
        (
            _with(replicas={str(one): "a:1" for one in range(1, 66)}),
            '"replicas" has 65 entries, and 64 are the limit',
        ),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_bad_cell_is_refused_with_its_node_its_field_and_a_remedy(
    data: bytes, fault: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_cell(data, NODE)

    assert f"{NODE}: {fault}" in str(refused.value)
    assert "; " in str(refused.value)
    assert refused.value.details["node"] == NODE
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"unclean": 0}, '"unclean"'),
        ({"end": -1}, '"end"'),
        ({"epoch": 1.5}, '"epoch"'),
        ({"epoch_seen": 2**31}, '"epoch_seen"'),
        ({"address": "\ud800:1"}, '"address"'),
        ({"address": ""}, '"address"'),
        ({"address": "h" * 300 + ":1"}, '"address"'),
    ],
)
def test_a_bad_live_node_is_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        parse_live(json.dumps({**json.loads(render_live(LIVE)), **change}).encode(), "live/2")


def test_a_cell_that_breaks_a_rule_is_not_written() -> None:
    with pytest.raises(ConfigError, match='"master" is 3'):
        render_cell(ReplicaSetState(epoch=1, master=3, in_sync=frozenset({1}), replicas=ADDRESSES))


# ---------------------------------------------------------------- the registry in memory


class Rig:
    """An ensemble with a cell, and sessions whose next fault is set."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ensemble = Ensemble()
        self.ensemble.create(CELL)
        self.fault = Fault.NONE

    def session(self) -> MemoryRegistry:
        return MemoryRegistry(self.ensemble, lambda: self.now_ms, self._fault)

    def _fault(self, _operation: str) -> Fault:
        fault, self.fault = self.fault, Fault.NONE
        return fault


def _next(cell: ReplicaSetState) -> ReplicaSetState:
    return ReplicaSetState(
        epoch=cell.epoch + 1, master=1, in_sync=frozenset({1}), replicas=cell.replicas
    )


@pytest.mark.parametrize(("fault", "applied"), [(Fault.LOST, False), (Fault.ANSWER_LOST, True)])
async def test_a_set_without_an_answer_may_have_been_applied(fault: Fault, applied: bool) -> None:
    rig = Rig()
    registry = rig.session()
    rig.fault = fault

    with pytest.raises(RegistryUnavailable):
        await registry.compare_and_set(_next(CELL), 0)

    assert (await registry.read()) == ((_next(CELL), 1) if applied else (CELL, 0))


async def test_an_old_read_has_an_old_version() -> None:
    rig = Rig()
    registry = rig.session()
    await registry.compare_and_set(_next(CELL), 0)
    rig.fault = Fault.OLD

    assert (await registry.read()) == (CELL, 0)


async def test_what_was_announced_ends_with_its_session_and_others_are_told() -> None:
    rig = Rig()
    registry, other = rig.session(), rig.session()
    told: list[None] = []
    other.watch(lambda: told.append(None))
    await registry.announce(2, LIVE)
    assert await other.live() == {2: LIVE}
    rig.fault = Fault.EXPIRED

    with pytest.raises(SessionExpired):
        await registry.read()

    assert await other.live() == {}
    assert len(told) == 2
    with pytest.raises(SessionExpired):
        await registry.announce(2, LIVE)


@pytest.mark.parametrize(
    ("fault", "answered_ms"), [(Fault.NONE, 700), (Fault.ANSWER_LOST, 0), (Fault.LOST, 0)]
)
async def test_only_an_answer_counts_and_from_when_it_was_asked_for(
    fault: Fault, answered_ms: int
) -> None:
    rig = Rig()
    registry = rig.session()
    rig.now_ms = 700
    rig.fault = fault

    try:
        await registry.read()
    except RegistryUnavailable:
        assert fault is not Fault.NONE

    assert registry.answered_ms == answered_ms
