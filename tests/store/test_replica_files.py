"""The files of a replica: Apache's bytes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pocketmq.store.format.replica_files import (
    EPOCHS_FILE,
    IDENTITY_FILE,
    REPLICA_FILE,
    BrokerIdentity,
    ReplicaNote,
    parse_epochs,
    parse_identity,
    parse_note,
    render_epochs,
    render_identity,
    render_note,
)
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

#: As Apache RocketMQ 5.5.0 wrote them.
EPOCHS = "1\n1725254278\n1-0\n"
IDENTITY = "DefaultCluster#broker-a#1"
MANY = tuple((number + 3, number**5 * 17) for number in range(2, 2000))


def test_the_bytes_are_apaches() -> None:
    assert render_epochs([(1, 0)]) == EPOCHS
    assert parse_epochs(EPOCHS) == ((1, 0),)
    assert render_identity(BrokerIdentity("DefaultCluster", "broker-a", 1)) == IDENTITY
    assert parse_identity(IDENTITY) == BrokerIdentity("DefaultCluster", "broker-a", 1)


@pytest.mark.parametrize("epochs", [(), ((0, 0),), ((2**31 - 1, 2**63 - 1),), MANY])
def test_epochs_come_back(epochs: tuple[tuple[int, int], ...]) -> None:
    assert parse_epochs(render_epochs(epochs)) == epochs


def test_a_crc_of_zero_is_not_compared_and_a_last_line_needs_no_end() -> None:
    assert parse_epochs("2\n0\n1-0\n4-92\n") == ((1, 0), (4, 92))
    assert parse_epochs(EPOCHS.rstrip("\n")) == ((1, 0),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not begin with the number"),
        ("1\n", "does not begin with the number"),
        ("x\n0\n1-0\n", "does not begin with the number"),
        ("2\n1725254278\n1-0\n", "1 entries, but its first line says 2"),
        ("1\n1725254279\n1-0\n", "is 1725254278, but its second line says 1725254279"),
        ("1\n0\n1\n", "'1' is not an epoch and its start"),
        ("1\n0\n-1-0\n", "'-1-0' is not an epoch"),
        ("1\n0\n2147483648-0\n", "is not an epoch"),
        ("1\n0\n1-9223372036854775808\n", "is not an epoch"),
        ("2\n0\n1-0\n\n", "'' is not an epoch"),
        ("2\n0\n2-0\n1-9\n", "epoch 1 from 9 does not follow 2 from 0"),
        ("2\n0\n1-9\n2-9\n", "epoch 2 from 9 does not follow 1 from 9"),
    ],
)
def test_epochs_that_cannot_be_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_epochs(text)


@pytest.mark.parametrize("text", ["", "c#b", "c#b#", "c#b#x", "c#b#-1", "c#b#1#2", "#b#1"])
def test_an_identity_that_names_no_replica_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not cluster#broker#id"):
        parse_identity(text)


def test_a_note_comes_back() -> None:
    note = ReplicaNote(7, True, 4096, 2**63 - 1, 6, "8c1f", "5a0e")
    text = (
        '{"format":1,"epochSeen":7,"unclean":true,"synced":4096,"confirm":9223372036854775807,'
        '"confirmEpoch":6,"bootId":"8c1f","storeId":"5a0e"}'
    )
    assert render_note(note) == text
    assert parse_note(text) == note
    assert parse_note(render_note(ReplicaNote())) == ReplicaNote()
    assert parse_note(NOTE).store_id == "", "as earlier ones were written"
    assert parse_note(NOTE).confirm_epoch == 0, "as earlier ones were written"


NOTE = '{"format":1,"epochSeen":7,"unclean":false,"synced":4,"confirm":4,"bootId":""}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("7", "not a JSON object"),
        ("{", "Expecting"),
        (NOTE.replace('t":1', 't":2'), '"format" is 2, but this version knows only 1'),
        ('{"format":1}', '"unclean" is None'),
        (NOTE.replace("7", "-1"), '"epochSeen" is -1'),
        (NOTE.replace("7", "true"), '"epochSeen" is True'),
        (NOTE.replace("7", "9" * 20), '"epochSeen" is 99999999999999999999'),
        (NOTE.replace("false", "0"), '"unclean" is 0'),
        (NOTE.replace('""', "7"), '"bootId" is 7'),
        (NOTE.replace("}", ',"storeId":7}'), '"storeId" is 7'),
        (NOTE.replace('"synced":4', '"synced":0.5'), '"synced" is 0.5'),
        (NOTE.replace('"confirm":4', f'"confirm":{2**63}'), '"confirm" is 9223372036854775808'),
    ],
)
def test_a_note_that_cannot_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_note(text)


def test_a_note_with_an_epoch_that_cannot_be_can_be_read_to_be_repaired() -> None:
    assert parse_note(NOTE.replace("7", str(2**31))) == parse_note(NOTE)._replace(epoch_seen=2**31)


def test_nothing_is_written_that_cannot_be_read_back() -> None:
    for note in (
        ReplicaNote(2**31),
        ReplicaNote(-1),
        ReplicaNote(1, synced=2**63),
        ReplicaNote(1, confirm=-1),
    ):
        with pytest.raises(ValueError, match=r"not a number from 0 to|above the limit"):
            render_note(note)
    for epochs in ([(2**31, 0)], [(1, 2**63)], [(2, 0), (1, 9)], [(1, 9), (2, 9)]):
        with pytest.raises(ValueError, match=r"is not an epoch|does not follow"):
            render_epochs(epochs)
    for identity in (BrokerIdentity("a#b", "c", 1), BrokerIdentity(" a", "c", 1)):
        with pytest.raises(ValueError, match=r"is not cluster|another identity"):
            render_identity(identity)


@pytest.mark.parametrize(
    ("name", "folder", "parse", "old", "new"),
    [
        (EPOCHS_FILE, "", parse_epochs, EPOCHS, render_epochs([(1, 0), (2, 80)])),
        (IDENTITY_FILE, "", parse_identity, IDENTITY, "DefaultCluster#broker-a#2"),
        (
            REPLICA_FILE,
            "pocketmq",
            parse_note,
            render_note(ReplicaNote(1)),
            render_note(ReplicaNote(2)),
        ),
    ],
)
def test_they_lie_where_they_belong_and_the_old_one_is_the_backup(
    tmp_path: Path, name: str, folder: str, parse: Callable[[str], object], old: str, new: str
) -> None:
    file = StateFile(OsDisk(), str(tmp_path), name, folder)
    assert file.load(parse).value is None
    file.save(old)
    file.save(new)

    place = tmp_path / folder / name
    assert place.read_text() == new
    place.write_text(new[:-3])
    loaded = StateFile(OsDisk(), str(tmp_path), name, folder).load(parse)
    assert loaded.value == parse(old)
    assert loaded.problem is not None
