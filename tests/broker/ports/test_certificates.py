"""The certificate of a broker: the operator's, or one made for development, kept and shown again."""

from __future__ import annotations

import logging
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.ports.certificates import Certificates, development_certificate
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConfigError, StoreFull
from pocketmq.proto.rpc import Certificate
from pocketmq.store.os_disk import OsDisk

from ...fakes import FaultyDisk

NOW_MS = 1_790_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)
DAY_MS = 86_400_000


def certificates(
    folder: Path, *, now_ms: int = NOW_MS, config: BrokerConfig | None = None
) -> Certificates:
    return Certificates(config or BrokerConfig(), OsDisk(), str(folder), VirtualClock(now_ms))


async def prepared(found: Certificates) -> Certificate:
    await found.prepare()
    return found.current()


def given(folder: Path, certificate: Certificate) -> BrokerConfig:
    """Return the settings of a broker whose operator has written CERTIFICATE to two files."""
    (folder / "chain.pem").write_bytes(certificate.chain)
    (folder / "private.pem").write_bytes(certificate.key)
    return BrokerConfig(tls_cert=str(folder / "chain.pem"), tls_key=str(folder / "private.pem"))


def names_in(certificate: Certificate) -> set[str]:
    extension = x509.load_pem_x509_certificate(
        certificate.chain
    ).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return {str(name.value) for name in extension.value}


async def test_one_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    made = await prepared(certificates(tmp_path))
    kept = tmp_path / "tls"

    assert {path.name for path in kept.iterdir()} == {"certificate.pem", "key.pem"}
    assert (kept / "key.pem").stat().st_mode & 0o777 == 0o600
    assert (kept / "key.pem").read_bytes() == made.key
    assert await prepared(certificates(tmp_path)) == made
    assert made.key not in repr(made).encode()


async def test_a_draft_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    draft = tmp_path / "tls" / "key.pem.tmp"
    draft.parent.mkdir()
    draft.write_bytes(b"left by a crash")
    os.chmod(draft, 0o644)

    await prepared(certificates(tmp_path))

    assert (tmp_path / "tls" / "key.pem").stat().st_mode & 0o777 == 0o600


async def test_it_names_this_machine_and_where_the_broker_is(tmp_path: Path) -> None:
    config = BrokerConfig(host="0.0.0.0", advertised_address="broker.example:8081")

    made = await prepared(certificates(tmp_path, config=config))

    assert names_in(made) >= {"localhost", "127.0.0.1", "::1", "broker.example"}
    assert "0.0.0.0" not in names_in(made)


async def test_it_serves_a_caller_that_trusts_it_and_checks_the_name(tmp_path: Path) -> None:
    await prepared(certificates(tmp_path))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls/certificate.pem", tmp_path / "tls/key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "tls/certificate.pem"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    answerer = server.wrap_bio(to_server, to_client, server_side=True)

    for side in (caller, answerer, caller, answerer):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue

    assert caller.getpeercert() is not None


@pytest.mark.parametrize("damage", ["expired", "foreign key", "no key", "not PEM"])
async def test_one_that_is_of_no_use_any_more_is_replaced(tmp_path: Path, damage: str) -> None:
    made = await prepared(certificates(tmp_path))
    now_ms, key = NOW_MS, tmp_path / "tls" / "key.pem"
    match damage:
        case "expired":
            now_ms += 3_625 * DAY_MS
        case "foreign key":
            key.write_bytes(development_certificate([], NOW).key)
        case "no key":
            key.unlink()
        case "not PEM":
            key.write_bytes(b"garbage")

    replaced = await prepared(certificates(tmp_path, now_ms=now_ms))

    assert replaced != made
    assert await prepared(certificates(tmp_path, now_ms=now_ms)) == replaced


async def test_one_is_used_to_its_last_month(tmp_path: Path) -> None:
    made = await prepared(certificates(tmp_path))

    assert await prepared(certificates(tmp_path, now_ms=NOW_MS + 3_619 * DAY_MS)) == made
    valid = x509.load_pem_x509_certificate(made.chain)
    assert valid.not_valid_before_utc < NOW - timedelta(hours=23)


async def test_a_full_disk_keeps_nobody_from_being_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    disk.fail_write = lambda path, size: StoreFull("no space left", path=path)
    found = Certificates(BrokerConfig(), disk, str(tmp_path), VirtualClock(NOW_MS))

    with caplog.at_level(logging.WARNING):
        made = await prepared(found)

    assert made.chain.startswith(b"-----BEGIN CERTIFICATE")
    assert "development certificate not stored reason=no space left" in caplog.text


# ---------------------------------------------------------------- the operator's


async def test_files_win_and_nothing_is_made(tmp_path: Path) -> None:
    mine = development_certificate(["broker.example"], NOW)
    found = certificates(tmp_path, config=given(tmp_path, mine))

    found.load()

    assert await prepared(found) == mine
    assert not (tmp_path / "tls").exists()


def test_new_files_are_shown_after_a_reload(tmp_path: Path) -> None:
    config = given(tmp_path, development_certificate([], NOW))
    found = certificates(tmp_path, config=config)
    found.load()
    newer = development_certificate([], NOW)
    given(tmp_path, newer)

    found.reload()

    assert found.current() == newer


def test_a_reload_of_bad_files_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = development_certificate([], NOW)
    found = certificates(tmp_path, config=given(tmp_path, mine))
    found.load()
    (tmp_path / "private.pem").write_bytes(b"half a k")

    with caplog.at_level(logging.ERROR):
        found.reload()

    assert found.current() == mine
    assert "certificate not reloaded" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chain.pem", None, "broker.tls_cert: .*chain.pem cannot be read: No such file"),
        ("private.pem", None, "broker.tls_key: .*private.pem cannot be read: No such file"),
        ("chain.pem", b"garbage", "cannot be used"),
        ("private.pem", b"garbage", "cannot be used"),
        (
            "private.pem",
            development_certificate([], NOW).key,
            "the key does not belong to the cert",
        ),
    ],
    ids=["no certificate", "no key", "bad certificate", "bad key", "foreign key"],
)
def test_files_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    config = given(tmp_path, development_certificate([], NOW))
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match=words):
        certificates(tmp_path, config=config).load()
