"""`pocketmq user` and `pocketmq acl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.access.files import UserFile
from pocketmq.tools import cli


@pytest.fixture(autouse=True)
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserFile:
    monkeypatch.setenv("POCKETMQ_USERS", str(tmp_path / "users.yaml"))
    return UserFile(tmp_path / "users.yaml")


def run(*words: str) -> int:
    return cli.run(words)


def test_users_come_change_and_go(users: UserFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("user", "create", "root", "--type", "super", "--secret", "env:ROOT") == 0
    assert run("user", "create", "alice") == 0
    shown = capsys.readouterr().out
    secret = users.read()["alice"].secret
    assert secret in shown
    assert len(secret) == 32
    assert run("user", "create", "alice") == 5
    assert run("user", "update", "alice", "--status", "disable", "--certificate", "a.example") == 0
    assert run("user", "update", "nobody", "--status", "disable") == 3
    capsys.readouterr()
    assert run("user", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"user": "root", "type": "Super", "status": "enable", "policies": []},
        {
            "user": "alice",
            "type": "Normal",
            "status": "disable",
            "certificates": ["a.example"],
            "policies": [],
        },
    ]
    assert users.read()["alice"].secret == secret
    assert run("user", "delete", "alice") == 0
    assert list(users.read()) == ["root"]


def test_policies_come_change_and_go(users: UserFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("user", "create", "alice", "--secret", "s") == 0
    orders = "Topic:orders*"
    assert (
        run("acl", "create", "alice", "Pub,Sub", f"{orders},Group:g", "--source", "10.0.0.0/8") == 0
    )
    assert run("acl", "create", "alice", "Pub", orders) == 5
    assert run("acl", "update", "alice", "Pub", orders, "--deny", "--source", "everywhere") == 0
    assert run("acl", "update", "alice", "Pub", "Topic:other") == 3
    assert run("acl", "create", "alice", "All", "*", "--default") == 0
    assert run("acl", "delete", "alice", "Topic:other") == 3
    assert run("acl", "create", "alice", "Pubb", "Topic:a") == 2
    assert run("acl", "create", "alice", "Pub", "Topic:a*b") == 2
    assert (
        "'Topic:a*b' has a * before its end, which would mean Topic:a*" in capsys.readouterr().err
    )
    capsys.readouterr()
    assert run("acl", "list") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        ["alice", "Group:g", "Pub,Sub", "10.0.0.0/8", "Allow", "Custom"],
        ["alice", "Topic:orders*", "Pub", "everywhere", "Deny", "Custom"],
        ["alice", "*", "All", "everywhere", "Allow", "Default"],
    ]
    assert run("acl", "delete", "alice", "*") == 0
    assert run("acl", "delete", "alice") == 0
    assert users.read()["alice"].policies == ()


#: The options of a user and of a policy: what sets each, and what sets it to something else.
USER_OPTIONS = {
    "secret": (["--secret", "one"], ["--secret", "two"]),
    "type": (["--type", "Super"], ["--type", "Normal"]),
    "status": (["--status", "disable"], ["--status", "enable"]),
    "certificates": (["--certificate", "a"], ["--certificate", "b"]),
}


@pytest.mark.parametrize("changed", USER_OPTIONS)
def test_an_update_of_a_user_changes_what_is_given_alone(users: UserFile, changed: str) -> None:
    first = [word for option, _ in USER_OPTIONS.values() for word in option]
    assert run("user", "create", "alice", *first) == 0
    assert run("acl", "create", "alice", "Pub", "Topic:a") == 0
    before = users.read()["alice"].to_document()

    assert run("user", "update", "alice", *USER_OPTIONS[changed][1]) == 0

    after = users.read()["alice"].to_document()
    assert {key for key in before | after if before.get(key) != after.get(key)} == {changed}


def test_an_update_of_a_policy_keeps_its_addresses_and_its_decision(users: UserFile) -> None:
    def policy() -> str:
        return str(users.read()["alice"].policies[0])

    assert run("user", "create", "alice") == 0
    assert run("acl", "create", "alice", "Pub", "Topic:a", "--deny", "--source", "10.0.0.0/8") == 0

    assert run("acl", "update", "alice", "Sub", "Topic:a") == 0
    assert policy() == "Deny Sub on Topic:a from 10.0.0.0/8"
    assert run("acl", "update", "alice", "Sub", "Topic:a", "--allow") == 0
    assert policy() == "Allow Sub on Topic:a from 10.0.0.0/8"
    assert run("acl", "update", "alice", "Sub", "Topic:a", "--source", "10.1.0.0/16") == 0
    assert policy() == "Allow Sub on Topic:a from 10.1.0.0/16"
    assert run("acl", "update", "alice", "Sub", "Topic:a", "--source", "everywhere") == 0
    assert policy() == "Allow Sub on Topic:a"


@pytest.mark.parametrize(
    ("words", "code", "policy", "reason"),
    [
        ("alice Pub Topic:orders-eu --source 10.1.2.3", 0, "Allow Pub on", "the decision is allow"),
        ("alice Pub Topic:orders-eu --source 11.1.2.3", 1, "", "no matched policies"),
        ("alice Pub Topic:orders-no", 1, "Deny Pub on", "the decision is deny"),
        ("root Delete Topic:*", 0, "", "a Super user may do everything"),
        ("gone Pub Topic:orders", 1, "", "the user is disabled"),
    ],
)
def test_a_check_says_which_policy_decides(
    capsys: pytest.CaptureFixture[str], words: str, code: int, policy: str, reason: str
) -> None:
    assert run("user", "create", "root", "--type", "Super") == 0
    assert run("user", "create", "gone", "--status", "disable") == 0
    assert run("user", "create", "alice") == 0
    assert run("acl", "create", "alice", "Pub", "Topic:orders*", "--source", "10.0.0.0/8") == 0
    assert run("acl", "create", "alice", "Pub", "Topic:orders-no", "--deny") == 0
    capsys.readouterr()
    assert run("acl", "check", *words.split(), "--json") == code
    told = json.loads(capsys.readouterr().out)
    assert told["decision"] == ("Deny" if code else "Allow")
    assert told["reason"] == reason
    assert told["policy"].startswith(policy)
    assert bool(told["policy"]) is bool(policy)


def test_users_of_apaches_5_are_taken(tmp_path: Path, users: UserFile) -> None:
    path = tmp_path / "dump.json"
    documents: list[dict[str, Any]] = [
        {"username": "alice", "password": "env:x", "userType": "Normal", "userStatus": "disable"},
        {"username": "root", "password": "12345678", "userType": "Super", "userStatus": "enable"},
        {
            "subject": "User:alice",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [
                        {
                            "resource": "Topic:orders",
                            "actions": ["Pub", "Sub"],
                            "sourceIps": ["127.0.0.1"],
                            "decision": "Allow",
                        }
                    ],
                },
                {
                    "policyType": "Default",
                    "entries": [{"resource": "*", "actions": ["All"], "decision": "Deny"}],
                },
            ],
        },
    ]
    path.write_text(json.dumps(documents, indent=1))
    assert run("user", "import", str(path)) == 0
    found = users.read()
    assert (found["alice"].secret, found["alice"].status) == ("inline:env:x", "disable")
    assert found["root"].type == "Super"
    assert [str(one) for one in found["alice"].policies] == [
        "Allow Pub, Sub on Topic:orders from 127.0.0.1/32"
    ]
    assert [str(one) for one in found["alice"].default_policies] == ["Deny All on *"]
    documents[0]["password"] = "another"
    path.write_text(json.dumps(documents))
    assert run("user", "import", str(path)) == 5
    assert run("user", "import", str(path), "--replace") == 0
    assert users.read()["alice"].secret == "another"


#: As Java's formats have it: %-16s  %-22s …, a line for each entry, and once for each broker.
USER_ROW = "{:<16}  {:<22}  {:<22}\n"
ACL_ROW = "{:<16}  {:<22}  {:<22}  {:<22}  {:<22}  {:<22}\n"
PRINTED_ACLS = "".join(
    ACL_ROW.format(*row)
    for row in (
        ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision"),
        ("User:alice", "Custom", "Topic:orders", "[Pub, Sub]", "[127.0.0.1, 10.0.0.0/8]", "Allow"),
        ("User:alice", "Custom", "Group:*", "[Sub]", "null", "Deny"),
        ("User:alice", "Default", "*", "[All]", "[]", "Deny"),
        ("User:bob", "", "", "", "", ""),
    )
)


def test_the_tables_that_apaches_mqadmin_prints_are_taken(tmp_path: Path, users: UserFile) -> None:
    people, rules = tmp_path / "users.txt", tmp_path / "acls.txt"
    people.write_text(
        "OpenJDK 64-Bit Server VM warning: something\n"
        + USER_ROW.format("#UserName", "#Password", "#UserType")
        + USER_ROW.format("alice", "a secret", "Normal")
        + USER_ROW.format("bob", "file:of bob, longer than its column", "Super")
        + "get user from 127.0.0.1:10911 success.\n"
    )
    rules.write_text(
        f"{PRINTED_ACLS}get acl from 127.0.0.1:10911 success.\n{PRINTED_ACLS}get acl from 127.0.0.1:10921 success.\n"
    )

    assert run("user", "import", str(people), str(rules)) == 0

    found = users.read()
    assert found["alice"].secret == "a secret"
    assert (found["bob"].secret, found["bob"].type) == (
        "inline:file:of bob, longer than its column",
        "Super",
    )
    assert [str(one) for one in found["alice"].policies] == [
        "Allow Pub, Sub on Topic:orders from 127.0.0.1/32, 10.0.0.0/8",
        "Deny Sub on Group:*",
    ]
    assert [str(one) for one in found["alice"].default_policies] == ["Deny All on *"]
    assert found["bob"].policies == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (USER_ROW.format("#UserName", "#Colour", "#UserType"), "'#Colour'"),
        (
            USER_ROW.format("#UserName", "#Password", "#UserType")
            + USER_ROW.format("alice", "two  spaces", "Normal"),
            "dump.txt:2: 4 columns",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_by_its_line(
    tmp_path: Path, users: UserFile, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "dump.txt"
    path.write_text(text)
    assert run("user", "import", str(path)) == 2
    assert words in capsys.readouterr().err
    assert users.read() == {}


def test_accounts_of_apaches_4_are_taken(
    tmp_path: Path, users: UserFile, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        """\ufeff
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
    groupPerms:
      - groupA=DENY
  - accessKey: rocketmq2
    secretKey: "87654321"
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""
    )
    assert run("user", "import", str(path)) == 0
    found = users.read()
    assert [(one.name, one.secret, one.type) for one in found.values()] == [
        ("RocketMQ", "12345678", "Normal"),
        ("rocketmq2", "87654321", "Super"),
    ]
    policies = found["RocketMQ"].policies, found["RocketMQ"].default_policies
    assert [[str(one) for one in some] for some in policies] == [
        [
            "Deny Pub, Sub on Topic:topicA",
            "Allow Pub, Sub on Topic:topicB",
            "Deny Pub, Sub on Group:groupA",
        ],
        ["Deny Pub, Sub on Topic:*", "Allow Sub on Group:*"],
    ]
    notes = capsys.readouterr().err
    assert "globalWhiteRemoteAddresses: left out" in notes
    assert "rocketmq2: whiteRemoteAddress left out" in notes


@pytest.mark.parametrize("verb", ["create", "update"])
def test_a_secret_that_no_server_could_read_is_refused(
    tmp_path: Path, users: UserFile, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    if verb == "update":
        assert run("user", "create", "alice", "--secret", "one") == 0
    before = users.read() if verb == "update" else None
    missing, open_to_all, empty = tmp_path / "missing", tmp_path / "open", tmp_path / "empty"
    open_to_all.write_text("secret")
    open_to_all.chmod(0o644)
    empty.touch(0o600)
    for path, reason in (
        (missing, "missing: cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (open_to_all, "others may read it, its mode is 0644"),
        (empty, "has 0 characters"),
    ):
        if path == tmp_path:
            path.chmod(0o700)
        capsys.readouterr()
        assert run("user", verb, "alice", "--secret", f"file:{path}") == 2
        message = capsys.readouterr().err
        assert message.startswith("pocketmq: users.alice.secret: ")
        assert reason in message
    assert run("user", verb, "alice", "--secret", "env:") == 2
    assert (users.read() if users.path.exists() else None) == before


def test_the_path_of_a_secret_does_not_depend_on_where_a_server_starts(
    tmp_path: Path, users: UserFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alice.secret").touch(0o600)
    (tmp_path / "alice.secret").write_text("s3cret\n")
    assert run("user", "create", "alice", "--secret", "file:alice.secret") == 0
    assert users.read()["alice"].secret == f"file:{tmp_path}/alice.secret"


def test_a_variable_that_is_not_set_here_is_noted(
    users: UserFile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALICE_SECRET", raising=False)
    assert run("user", "create", "alice", "--secret", "env:ALICE_SECRET") == 0
    assert "ALICE_SECRET is not set here" in capsys.readouterr().err
    monkeypatch.setenv("ALICE_SECRET", "s")
    assert run("user", "update", "alice", "--secret", "env:ALICE_SECRET") == 0
    assert capsys.readouterr().err == ""
    assert users.read()["alice"].secret == "env:ALICE_SECRET"


def test_a_resource_that_no_call_asks_for_is_refused(
    users: UserFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("user", "create", "alice", "--secret", "s") == 0
    users.path.write_text(
        users.path.read_text().replace(
            "policies: []",
            """policies:
    - {resource: "Namespace:x", actions: [Pub]}""",
        )
    )
    for words in (
        ("create", "alice", "Pub", "Namespace:y"),
        ("update", "alice", "Pub", "Namespace:x"),
        ("check", "alice", "Pub", "Namespace:x"),
        ("create", "alice", "Pub", "Tpoic:y"),
    ):
        capsys.readouterr()
        assert run("acl", *words) == 2
        assert "Topic:, Group:" in capsys.readouterr().err
    assert run("acl", "delete", "alice", "Namespace:x") == 0
    assert users.read()["alice"].policies == ()


@pytest.mark.parametrize("text", ["[1]", "- {subject: 'User:nobody'}", "accounts: [{}]", "a: ["])
def test_what_is_no_file_of_apaches_is_refused(tmp_path: Path, users: UserFile, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    assert run("user", "import", str(path)) == 2
    assert users.read() == {}


def test_the_file_is_that_of_the_configuration(
    tmp_path: Path, users: UserFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POCKETMQ_USERS")
    config = tmp_path / "pocketmq.yaml"
    config.write_text(f"broker:\n  users: {users.path}\n")
    assert run("user", "create", "alice", "--config", str(config)) == 0
    assert list(users.read()) == ["alice"]
    assert run("user", "list") == 2
    config.write_text("broker: {}\n")
    assert run("user", "list", "--config", str(config)) == 2
