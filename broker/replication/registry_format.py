"""The metadata of a replica set as the bytes of nodes in ZooKeeper.

    <cluster>/sets/<name>/state      persistent, changed only by compare-and-set on the version that was read
        {"format":1,"epoch":7,"master":2,"in_sync":[1,2],"replicas":{"1":"host:port","2":"host:port"}}
    <cluster>/sets/<name>/live/<id>  ephemeral: removed with the session that announced it
        {"address":"host:port","epoch":7,"end":4096,"unclean":false,"epoch_seen":7,"damaged":1}
    <cluster>/sets/<name>/mark       persistent: how far acknowledged records reach (mark.py)
        {"format":1,"end":4096,"epoch":7,"accepted":0}

Unknown fields are ignored and lost at the next change. Incompatible changes raise `format`, and a later format is
refused.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ...proto.errors import ConfigError
from .registry import EndMark, LiveNode, ReplicaSetState

FORMAT: Final = 1
NODE_SIZE_MAX: Final = 65_536
REPLICAS_MAX: Final = 64
REPLICA_ID_MAX: Final = 2**31 - 1
EPOCH_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
_ADDRESS_LENGTH_MAX: Final = 255


def render_cell(cell: ReplicaSetState) -> bytes:
    """Return the bytes of CELL. Raises ConfigError if it is invalid."""
    _check_cell(cell, "the metadata to write")
    return _render(
        {
            "format": FORMAT,
            "epoch": cell.epoch,
            "master": cell.master,
            "in_sync": sorted(cell.in_sync),
            "replicas": {str(one): cell.replicas[one] for one in sorted(cell.replicas)},
        }
    )


def parse_cell(data: bytes, node: str) -> ReplicaSetState:
    """Return the metadata in DATA, the bytes of NODE, which is named in errors. Raises ConfigError."""
    fields = _object_in(data, node)
    number = _integer(fields, "format", node, 1, 2**31)
    if number != FORMAT:
        raise _refused(
            node,
            f'"format" is {number}, and this program knows {FORMAT}',
            "upgrade this broker: another one of the set is of a later version",
        )
    epoch = _integer(fields, "epoch", node, 0, EPOCH_MAX)
    master = _integer(fields, "master", node, 0, REPLICA_ID_MAX)
    in_sync = fields.get("in_sync")
    if not isinstance(in_sync, list) or not all(_is_id(one) for one in in_sync):
        raise _refused(
            node, f'"in_sync" must be a list of replica ids from 1 on, not {in_sync!r:.80}'
        )
    if len(set(in_sync)) != len(in_sync):
        raise _refused(node, f'"in_sync" names a replica twice: {in_sync!r:.80}')
    addresses = fields.get("replicas")
    if not isinstance(addresses, dict):
        raise _refused(
            node, f'"replicas" must be an object of addresses by replica id, not {addresses!r:.80}'
        )
    replicas: dict[int, str] = {}
    for key, address in addresses.items():
        if not (key.isascii() and key.isdecimal() and str(int(key[:12])) == key):
            raise _refused(
                node, f'"replicas" has the key {key!r:.80}, which is no replica id from 1 on'
            )
        replicas[int(key)] = address
    cell = ReplicaSetState(
        epoch=epoch, master=master, in_sync=frozenset(in_sync), replicas=replicas
    )
    _check_cell(cell, node)
    return cell


def render_live(node: LiveNode) -> bytes:
    """Return the bytes of a live node."""
    return _render(
        {
            "address": node.address,
            "epoch": node.epoch,
            "end": node.end,
            "unclean": node.unclean,
            **({"damaged": node.damaged} if node.damaged else {}),
            **({"epoch_seen": node.epoch_seen} if node.epoch_seen else {}),
            **({"store": node.store_id} if node.store_id else {}),
        }
    )


def parse_live(data: bytes, node: str) -> LiveNode:
    """Return the live node in DATA, the bytes of NODE, which is named in errors. Raises ConfigError."""
    fields = _object_in(data, node)
    unclean = fields.get("unclean")
    if not isinstance(unclean, bool):
        raise _refused(node, f'"unclean" must be true or false, not {unclean!r:.80}')
    address = fields.get("address")
    _check_address(address, '"address"', node)
    store_id = fields.get("store", "")
    if not isinstance(store_id, str):
        raise _refused(node, f'"store" must be text, not {store_id!r:.80}')
    return LiveNode(
        address=str(address),
        epoch=_integer(fields, "epoch", node, 0, EPOCH_MAX),
        end=_integer(fields, "end", node, 0, OFFSET_MAX),
        unclean=unclean,
        store_id=store_id,
        epoch_seen=_integer({"epoch_seen": 0, **fields}, "epoch_seen", node, 0, EPOCH_MAX),
        damaged=_integer({"damaged": 0, **fields}, "damaged", node, 0, OFFSET_MAX),
    )


def render_mark(mark: EndMark) -> bytes:
    """Return the bytes of MARK. Raises ConfigError if it is invalid."""
    data = _render({"format": FORMAT, **mark._asdict()})
    parse_mark(data, "the mark to write")
    return data


def parse_mark(data: bytes, node: str) -> EndMark:
    """Return the mark in DATA, the bytes of NODE, which is named in errors. Raises ConfigError."""
    fields = _object_in(data, node)
    if (number := fields.get("format")) != FORMAT:
        raise _refused(
            node,
            f'"format" is {number!r:.40}, and this program knows {FORMAT}',
            "upgrade this broker: another one of the set is of a later version",
        )
    return EndMark(
        end=_integer(fields, "end", node, 0, OFFSET_MAX),
        epoch=_integer(fields, "epoch", node, 0, EPOCH_MAX),
        accepted=_integer(fields, "accepted", node, 0, EPOCH_MAX),
    )


def _render(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _object_in(data: bytes, node: str) -> dict[str, Any]:
    if len(data) > NODE_SIZE_MAX:
        raise _refused(node, f"it has {len(data)} bytes, the limit is {NODE_SIZE_MAX}")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise _refused(node, f"it is not JSON: {data[:40]!r}") from None
    if not isinstance(fields, dict):
        raise _refused(node, f"it is not a JSON object: {data[:40]!r}")
    return fields


def _check_cell(cell: ReplicaSetState, node: str) -> None:
    """Raise ConfigError if the values of CELL are inconsistent or exceed limits."""
    if not 0 <= cell.epoch <= EPOCH_MAX:
        raise _refused(node, f'"epoch" is {cell.epoch}, not from 0 to {EPOCH_MAX}')
    if len(cell.replicas) > REPLICAS_MAX:
        raise _refused(
            node, f'"replicas" has {len(cell.replicas)} entries, and {REPLICAS_MAX} are the limit'
        )
    for one, address in cell.replicas.items():
        if not _is_id(one):
            raise _refused(node, f'"replicas" has the id {one}, not from 1 to {REPLICA_ID_MAX}')
        _check_address(address, f'"replicas" at "{one}"', node)
    if unknown := sorted(cell.in_sync - cell.replicas.keys()):
        raise _refused(node, f'"in_sync" has {unknown[0]}, which "replicas" does not have')
    if cell.master and cell.master not in cell.in_sync:
        raise _refused(node, f'"master" is {cell.master}, which "in_sync" does not have')


def _check_address(address: object, name: str, node: str) -> None:
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host.isprintable():  # This excludes lone surrogates, which no reply could carry.
        host = ""
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    if not (host and colon and is_port and len(host) <= _ADDRESS_LENGTH_MAX):
        raise _refused(node, f'{name} must be "host:port", not {address!r:.80}')


def _is_id(value: object) -> bool:
    return type(value) is int and 1 <= value <= REPLICA_ID_MAX


def _integer(fields: dict[str, Any], name: str, node: str, least: int, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _refused(
            node, f'"{name}" must be an integer from {least} to {most}, not {value!r:.80}'
        )
    return value


def _refused(node: str, fault: str, remedy: str = "") -> ConfigError:
    remedy = remedy or "correct the node, or write it again for the replica with the newest log"
    return ConfigError(f"{node}: {fault}; {remedy}", node=node)
