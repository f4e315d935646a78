import re
from dataclasses import fields
from pathlib import Path

import pytest

from pocketmq.proto.configuration import parse_sections
from pocketmq.proto.errors import ConfigError
from pocketmq.tools import settings
from pocketmq.tools.settings import SECTIONS, Settings, load_settings, sample


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path


def test_the_sample_is_equal_to_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "pocketmq.yaml"
    path.write_text(sample())

    assert load_settings(path) == load_settings(None)


def test_the_sample_has_every_key_with_a_comment() -> None:
    lines = [line for line in sample().splitlines() if line.startswith("  ")]
    keys = [line.split(":")[0].strip() for line in lines]

    assert keys == [field.name for cls in SECTIONS.values() for field in fields(cls)]
    assert [line for line in lines if not re.search(r" # \S", line)] == []


def test_the_sample_names_no_section_that_is_unknown() -> None:
    assert parse_sections(sample(), SECTIONS).keys() == SECTIONS.keys()


def test_the_store_lies_below_the_users_data_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings(None).store.path == f"{home}/.local/share/pocketmq/store"

    monkeypatch.setenv("XDG_DATA_HOME", "/data")

    assert load_settings(None).store.path == "/data/pocketmq/store"


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("broker: {port: 1, name: own}\nstore: {path: /a}\nnameserver: {port: 2}")

    read = load_settings(path)
    changed = read.with_options(
        store=tmp_path / "b", broker_port=3, nameserver_port=0, nameservers="x:1,y:2;z:3"
    )

    assert (read.broker.port, read.store.path, read.nameserver.port) == (1, "/a", 2)
    assert (changed.broker.port, changed.store.path) == (3, f"{tmp_path}/b")
    assert changed.nameserver.port == 0
    assert changed.broker.nameservers == ("x:1", "y:2", "z:3")
    assert changed.broker.name == "own"


def test_a_home_in_the_file_is_the_users(home: Path) -> None:
    path = home / "own.yaml"
    path.write_text("store: {path: ~/mq}")

    assert load_settings(path).store.path == f"{home}/mq"


def test_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("store:\n  flsh: sync\n")

    with pytest.raises(ConfigError, match=r"own\.yaml:2: store\.flsh: .* did you mean 'flush'\?"):
        load_settings(path)


def test_a_value_that_a_server_refuses_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("\nbroker:\n  port: 70000\n")

    with pytest.raises(ConfigError, match=r"own\.yaml:3: broker\.port is 70000: must be"):
        load_settings(path)


def test_settings_know_the_sections_and_no_others() -> None:
    assert [field.name for field in fields(Settings) if field.name != "origins"] == list(
        settings.SECTIONS
    )
