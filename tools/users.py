"""`pocketmq user` and `pocketmq acl`: the file of users, changed and asked. Servers see a change within a second.

The file is that of --users or $POCKETMQ_USERS, or the one that the broker's section of --config names. A secret is
shown once, when it is made for a user that is created without.

Users and permissions as Apache RocketMQ writes them down, taken for ours. Pure.

    5.x   the JSON of its admin calls, one object or a list of them, users and ACLs in any order:
            {"username": "alice", "password": "…", "userType": "Normal", "userStatus": "enable"}
            {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [{"resource": "Topic:orders",
              "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}]}]}
          or the tables that its `mqadmin getUser` and `getAcl` print, columns at least two spaces apart:
            #Subject          #PolicyType             #Resource      #Actions     #SourceIp    #Decision
            User:alice        Custom                  Topic:orders   [Pub, Sub]   null         Allow
    4.x   plain_acl.yml: `accounts` with accessKey, secretKey, admin, defaultTopicPerm, defaultGroupPerm, topicPerms and
          groupPerms. An admin is a Super user, a default is a default policy of all topics or groups

What has no likeness here is said in notes: addresses that need no signature (whiteRemoteAddress), above all.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ..broker.config import BrokerConfig
from ..proto.access.files import UserFile
from ..proto.access.policies import (
    NAMESPACE,
    SUPER,
    Judgement,
    Need,
    Pattern,
    Policies,
    Policy,
    Resource,
    action_names,
    merged,
    parse_actions,
    parse_source,
)
from ..proto.access.signing import own_path, read_secret
from ..proto.access.users import UserEntry, changed, check_secret, read_policy, read_users
from ..proto.errors import ConfigError, PolicyExists, PolicyNotFound, UserExists, UserNotFound
from ..proto.yaml_file import read_yaml
from .options import json_option
from .output import print_json, print_pairs, print_table
from .settings import load_settings

Function = TypeVar("Function", bound=Callable[..., Any])
_SECRET_BYTES: Final = 24
_DENIED: Final = 1
#: What --from says, and what is shown, of a policy without addresses.
_EVERYWHERE: Final = "everywhere"
_TYPES: Final = click.Choice(["Normal", "Super"], case_sensitive=False)
_STATUSES: Final = click.Choice(["enable", "disable"])


def _file_options(function: Function) -> Function:
    """Add --users and --config, which say where the file is."""
    users = click.option(
        "--users",
        "users_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="POCKETMQ_USERS",
        show_envvar=True,
        help="The file of users.",
    )
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="The configuration of a server whose broker.users names the file.",
    )
    return users(config(function))


def _file(users_file: Path | None, config: Path | None) -> UserFile:
    if users_file is not None:
        return UserFile(users_file)
    if config is not None:
        settings = load_settings(config)
        path = settings.broker.users or settings.nameserver.users
        if path:
            return UserFile(path)
        raise ConfigError(f"{config}: broker.users is empty: name the file there, or by --users")
    raise click.UsageError("Say where the file of users is: --users FILE, or --config FILE.")


def _user_of(users: MutableMapping[str, UserEntry], name: str) -> UserEntry:
    found = users.get(name)
    if found is None:
        raise UserNotFound(f"user {name!r} does not exist: pocketmq user create {name}", user=name)
    return found


# --- users


@click.group()
def user() -> None:
    """Create, change, list and delete users; take over those of Apache RocketMQ."""


def _user_options(function: Function) -> Function:
    options = [
        click.option("--secret", help="env:NAME, file:PATH, or the secret itself."),
        click.option("--type", "kind", type=_TYPES, help="Super: may do everything."),
        click.option("--status", type=_STATUSES, help="disable: may do nothing."),
        click.option(
            "--certificate",
            "certificates",
            multiple=True,
            help="A name in a certificate that is this user; may be given several times.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return _file_options(function)


def _values(
    name: str,
    secret: str | None,
    kind: str | None,
    status: str | None,
    certificates: tuple[str, ...],
) -> dict[str, Any]:
    """Return what the options say of user NAME. Raises ConfigError for a secret that no server could use."""
    return {
        "secret": None if secret is None else _usable_secret(name, secret),
        "is_super": None if kind is None else kind.lower() == "super",
        "enabled": None if status is None else status == "enable",
        "certificates": certificates or None,
    }


def _usable_secret(name: str, text: str) -> str:
    """Return the secret TEXT of user NAME as the file has it: a path is absolute. Raises ConfigError.

    A server with one secret that it cannot read does not start. The environment of the server may have variables that
    the command's has not: for these the command only prints a note.
    """
    kind, _, rest = text.partition(":")
    if kind == "env" and rest and rest not in os.environ:
        click.echo(
            f"pocketmq: the environment has no {rest} here: set it for the servers, or they do not start",
            err=True,
        )
        return text
    check_secret(name, read_secret(name, text))
    return f"file:{own_path(rest).absolute()}" if kind == "file" else text


@user.command("create")
@click.argument("name")
@_user_options
def create_user(
    name: str, users_file: Path | None, config: Path | None, secret: str | None, **values: Any
) -> None:
    """Create user NAME, and the file if it does not exist. Without --secret one is made, and printed this once."""
    made = secret is None
    secret = secret or secrets.token_urlsafe(_SECRET_BYTES)
    wanted = _values(name, secret, **values)
    with _file(users_file, config).change(make=True) as users:
        if name in users:
            raise UserExists(f"user {name!r} exists: pocketmq user update {name}", user=name)
        users[name] = changed(UserEntry(name, secret), **wanted)
    print_pairs({"created": name} | ({"secret": secret} if made else {}))


@user.command("update")
@click.argument("name")
@_user_options
def update_user(name: str, users_file: Path | None, config: Path | None, **values: Any) -> None:
    """Change what is given of user NAME."""
    with _file(users_file, config).change() as users:
        users[name] = changed(_user_of(users, name), **_values(name, **values))
    print_pairs({"updated": name})


@user.command("delete")
@click.argument("name")
@_file_options
def delete_user(name: str, users_file: Path | None, config: Path | None) -> None:
    """Delete user NAME, with its policies."""
    with _file(users_file, config).change() as users:
        _user_of(users, name)
        del users[name]
    print_pairs({"deleted": name})


@user.command("list")
@json_option("the users, without secrets")
@_file_options
def list_users(*, as_json: bool, users_file: Path | None, config: Path | None) -> None:
    """List users. Secrets are not shown."""
    users = _file(users_file, config).read().values()
    if as_json:
        print_json([_told(one) for one in users])
        return
    print_table(
        ["USER", "TYPE", "STATUS", "POLICIES", "CERTIFICATES"],
        [
            [
                one.name,
                one.type,
                one.status,
                len(one.policies) + len(one.default_policies),
                " ".join(one.certificates),
            ]
            for one in users
        ],
    )


def _told(entry: UserEntry) -> dict[str, Any]:
    document = entry.to_document()
    del document["secret"]
    return {"user": entry.name, **document}


@user.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--replace", "replaces", is_flag=True, help="Take the place of users that are there.")
@_file_options
def import_users(
    files: tuple[Path, ...], *, replaces: bool, users_file: Path | None, config: Path | None
) -> None:
    """Take users and ACLs from Apache RocketMQ's FILES.

    JSON of 5.x, or what its mqadmin has printed (users first); or plain_acl.yml of 4.x.
    """

    taken: dict[str, None] = {}
    notes: list[str] = []
    with _file(users_file, config).change(make=True) as users:
        for path in files:
            lines = _lines(path)
            document = printed("\n".join(lines), str(path))
            if document is None:
                # A list has no place at the top of a document: it is the value of a key.
                text = "\n".join(("document:", *(f"  {line}" for line in lines)))
                document = read_yaml(text, str(path))["document"]
            found, said = take(document, str(path), dict(users))
            for name, entry in found.items():
                if name in users and name not in taken and not replaces and users[name] != entry:
                    same = changed(entry, policies=(), default_policies=())
                    if same != changed(users[name], policies=(), default_policies=()):
                        raise UserExists(
                            f"{path}: user {name!r} exists: leave it out, or say --replace",
                            user=name,
                        )
                users[name] = entry
                taken[name] = None
            notes += said
    for note in notes:
        click.echo(f"pocketmq: {note}", err=True)
    print_pairs({"taken": len(taken)} | {name: users[name].type for name in taken})


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it cannot be read: {error}", file=path) from None


# --- ACLs


@click.group()
def acl() -> None:
    """Create, change, list, delete and try policies of users."""


def _policy_options(*, show_defaults: bool) -> Callable[[Function], Function]:
    def told(text: str, default: str) -> str:
        return f"{text}  [default: {default}]" if show_defaults else text

    options = [
        click.argument("name", metavar="USER"),
        click.argument("actions", metavar="ACTION[,…]"),
        click.argument("resources", metavar="RESOURCE...", nargs=-1, required=True),
        click.option(
            "--from",
            "sources",
            multiple=True,
            metavar="ADDRESS",
            help=told("Address or network, or everywhere.", "everywhere"),
        ),
        click.option("--deny/--allow", default=None, help=told("Deny instead of allow.", "allow")),
        click.option(
            "--default", "is_default", is_flag=True, help="Asked where no other policy matches."
        ),
    ]

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return _file_options(function)

    return add


def _policies(
    there: Iterable[Policy],
    actions: str,
    resources: Iterable[str],
    sources: Iterable[str],
    deny: bool | None,
) -> list[Policy]:
    """Return the policies that are asked for. SOURCES and DENY that are not given are those that are THERE."""
    known = {one.resource: one for one in there}
    wanted = parse_actions(actions.split(","), "ACTION")
    texts = [one.strip() for text in sources for one in text.split(",")]
    places = tuple(parse_source(one, "--from") for one in texts if one != _EVERYWHERE)
    found = []
    for text in (one for words in resources for one in words.split(",")):
        resource = _effective(_resource(text), text)
        old = known.get(resource, Policy(resource, wanted))
        found.append(
            Policy(
                resource,
                wanted,
                places if texts else old.sources,
                old.allow if deny is None else not deny,
            )
        )
    return found


def _resource(text: str) -> Resource:
    """Return the resource that TEXT names. Raises ConfigError, also for a `*` that is not the end of a name.

    A file may have one: as in Apache RocketMQ, the name ends there, so the policy is wider than its text.
    """
    found = Resource.parse(text, "RESOURCE")
    if "*" in text.strip()[:-1]:
        raise ConfigError(
            f"RESOURCE: {text[:80]!r} has a * before its end, which would stand for {found}: write that, or a whole"
            " name",
            field="RESOURCE",
            value=text[:80],
        )
    return found


def _effective(resource: Resource, text: str) -> Resource:
    """Return RESOURCE, which TEXT names. Raises ConfigError for a kind that no call asks for."""
    if resource.type == NAMESPACE:
        raise ConfigError(
            f"RESOURCE: {text[:80]!r} has no effect, because no call asks for a namespace. Use *, or Topic:, Group: or"
            " Cluster: with a name, prefix* or *",
            field="RESOURCE",
            value=text[:80],
        )
    return resource


@acl.command("create")
@_policy_options(show_defaults=True)
def create_acl(
    name: str, users_file: Path | None, config: Path | None, *, is_default: bool, **given: Any
) -> None:
    """Allow USER each ACTION (All, Pub, Sub, Create, Update, Delete, Get, List) on each RESOURCE.

    A resource is * or Topic:, Group: or Cluster: with a name, prefix* or *.
    """
    _change_acl(_file(users_file, config), name, is_default, given, is_new=True)


@acl.command("update")
@_policy_options(show_defaults=False)
def update_acl(
    name: str, users_file: Path | None, config: Path | None, *, is_default: bool, **given: Any
) -> None:
    """Change the policy of USER for each RESOURCE: its ACTIONs, and of --from and --deny or --allow what is given."""
    _change_acl(_file(users_file, config), name, is_default, given, is_new=False)


def _change_acl(
    file: UserFile, name: str, is_default: bool, given: dict[str, Any], *, is_new: bool
) -> None:
    key = "default_policies" if is_default else "policies"
    with file.change() as users:
        entry = _user_of(users, name)
        there: tuple[Policy, ...] = getattr(entry, key)
        policies = _policies(there, **given)
        known = {one.resource for one in there}
        wanted = {one.resource for one in policies}
        if is_new and (both := known & wanted):
            raise PolicyExists(
                f"user {name!r} has a policy for {_named(both)}: pocketmq acl update", user=name
            )
        if not is_new and (missing := wanted - known):
            raise PolicyNotFound(
                f"user {name!r} has no policy for {_named(missing)}: pocketmq acl create", user=name
            )
        users[name] = changed(entry, **{key: merged(there, policies)})
    for policy in policies:
        click.echo(f"{name}: {policy}")


def _named(resources: Iterable[Resource]) -> str:
    return ", ".join(sorted(map(str, resources)))


@acl.command("delete")
@click.argument("name", metavar="USER")
@click.argument("resources", metavar="[RESOURCE...]", nargs=-1)
@_file_options
def delete_acl(
    name: str, resources: tuple[str, ...], users_file: Path | None, config: Path | None
) -> None:
    """Delete the policies of USER for each RESOURCE, or all."""
    wanted = {_resource(one) for text in resources for one in text.split(",")}
    with _file(users_file, config).change() as users:
        entry = _user_of(users, name)
        there = {one.resource for one in (*entry.policies, *entry.default_policies)}
        if missing := wanted - there:
            raise PolicyNotFound(f"user {name!r} has no policy for {_named(missing)}", user=name)
        gone = wanted or there
        users[name] = changed(
            entry,
            policies=tuple(one for one in entry.policies if one.resource not in gone),
            default_policies=tuple(
                one for one in entry.default_policies if one.resource not in gone
            ),
        )
    print_pairs({"deleted": ", ".join(sorted(map(str, gone)))})


@acl.command("list")
@click.argument("names", metavar="[USER...]", nargs=-1)
@json_option("the policies")
@_file_options
def list_acls(
    names: tuple[str, ...], *, as_json: bool, users_file: Path | None, config: Path | None
) -> None:
    """List the policies of each USER, or of all, in the order in which they decide."""
    users = _file(users_file, config).read()
    found = [_user_of(users, name) for name in names] if names else list(users.values())
    if as_json:
        print_json([_told(one) for one in found])
        return
    print_table(
        ["USER", "RESOURCE", "ACTIONS", "FROM", "DECISION", "KIND"],
        [
            [
                one.name,
                policy.resource,
                ",".join(action_names(policy.actions)),
                ",".join(map(str, policy.sources)) or _EVERYWHERE,
                policy.decision,
                kind,
            ]
            for one in found
            for kind, policies in (("Custom", one.policies), ("Default", one.default_policies))
            for policy in sorted(policies, key=Policy.order)
        ],
    )


@acl.command("check")
@click.argument("name", metavar="USER")
@click.argument("action")
@click.argument("resource")
@click.option("--from", "host", metavar="IP", default="127.0.0.1", show_default=True)
@click.option(
    "--cluster",
    metavar="NAME",
    default=BrokerConfig().cluster,
    show_default=True,
    help="The server's cluster, which system topics ask for.",
)
@json_option("the answer")
@_file_options
@click.pass_context
def check_acl(  # noqa: PLR0913  (its options)
    context: click.Context,
    name: str,
    action: str,
    resource: str,
    *,
    host: str,
    cluster: str,
    as_json: bool,
    users_file: Path | None,
    config: Path | None,
) -> None:
    """Say whether USER may do ACTION on RESOURCE, which policy decides, and why. Exit code 1: it may not.

    Of several actions with commas between any one will do, as for a call that asks for one of them.
    """
    entry = _user_of(_file(users_file, config).read(), name)
    wanted = _effective(Resource.parse(resource, "RESOURCE"), resource)
    if wanted.pattern is Pattern.PREFIXED or resource.strip() == "*":
        raise ConfigError(
            f"RESOURCE: {resource!r} is no single resource: name one, as Topic:orders"
        )
    parse_source(host, "--from")
    need = Need(wanted.type, wanted.name or "*", parse_actions(action.split(","), "ACTION"))
    judged = (
        SUPER
        if entry.is_super
        else Policies(entry.policies, entry.default_policies).decide_all(need, host, cluster)
    )
    told = decision_document(judged, enabled=entry.enabled)
    if as_json:
        print_json(told)
    else:
        print_pairs({key: value for key, value in told.items() if value})
    if told["decision"] == "Deny":
        context.exit(_DENIED)


def decision_document(judged: Judgement, *, enabled: bool) -> dict[str, str]:
    """Return as JSON shows it what becomes of a need that is JUDGED so, of a user who may be disabled."""
    policy = "" if judged.policy is None else str(judged.policy)
    kind = "" if judged.policy is None else ("Default" if judged.is_default else "Custom")
    return {
        "decision": "Allow" if judged.allowed and enabled else "Deny",
        "reason": judged.reason if enabled else "the user is disabled",
        "policy": policy,
        "kind": kind,
    }


# ---------------------------------------------------------------- users as Apache RocketMQ writes them


#: Permissions of 4.x, as a decision and actions.
_PERMISSIONS: Final = {
    "DENY": ("Deny", "Pub,Sub"),
    "PUB": ("Allow", "Pub"),
    "SUB": ("Allow", "Sub"),
    "PUB|SUB": ("Allow", "Pub,Sub"),
    "SUB|PUB": ("Allow", "Pub,Sub"),
    "ANY": ("Allow", "All"),
}

#: The columns of mqadmin's tables, by what they are called in JSON.
_USER_COLUMNS: Final = {
    "#UserName": "username",
    "#Password": "password",
    "#UserType": "userType",
    "#UserStatus": "userStatus",
}
_ACL_COLUMNS: Final = {
    "#Subject": "subject",
    "#PolicyType": "policyType",
    "#Resource": "resource",
    "#Actions": "actions",
    "#SourceIp": "sourceIps",
    "#Decision": "decision",
}
_LISTS: Final = ("actions", "sourceIps")
#: Between two columns.
_GAP: Final = re.compile(r" {2,}")


def printed(text: str, name: str) -> list[dict[str, Any]] | None:
    """Return what stands in the tables of mqadmin's output TEXT, of the file NAME, as its JSON would have it.

    None: there is no such table. Raises ConfigError for a row that has not as many columns as its table.
    """
    found: list[dict[str, Any]] = []
    titles: list[str] | None = None
    is_there = False
    for number, line in enumerate(text.splitlines(), 1):
        cells = _GAP.split(line.rstrip())
        known = _USER_COLUMNS if cells[0] == "#UserName" else _ACL_COLUMNS
        if cells[0] in ("#UserName", "#Subject"):
            unknown = [cell for cell in cells if cell not in known]
            if unknown:
                raise ConfigError(
                    f"{name}:{number}: the column {unknown[0][:40]!r} is none of {', '.join(known)}",
                    file=name,
                )
            titles, is_there = [known[cell] for cell in cells], True
        elif titles is None or not line.strip() or line.endswith(" success."):
            titles = titles if line.strip() else None
        elif len(cells) == 1 and titles[0] == "subject":
            found.append({"subject": cells[0]})
        elif len(cells) != len(titles):
            raise ConfigError(
                f"{name}:{number}: {len(cells)} columns where the table has {len(titles)}: values with two spaces in"
                " them cannot be told apart, take the JSON instead",
                file=name,
            )
        else:
            row: dict[str, Any] = dict(zip(titles, cells, strict=True))
            found.append(_policy_of_row(row) if titles[0] == "subject" else row)
    return found if is_there else None


def _policy_of_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ACL with the one entry that ROW of a table has."""
    entry = {key: value for key, value in row.items() if key not in ("subject", "policyType")}
    for key in _LISTS:
        text = str(entry.get(key, "")).strip("[]")
        entry[key] = None if text in ("", "null") else [one.strip() for one in text.split(",")]
    policy = {"policyType": row.get("policyType"), "entries": [entry]}
    return {"subject": row["subject"], "policies": [policy]}


def take(
    document: Any, name: str, known: dict[str, UserEntry]
) -> tuple[dict[str, UserEntry], list[str]]:
    """Return the users in DOCUMENT, of the file NAME, and notes on what was left out. Raises ConfigError.

    KNOWN are the users that are there already: an ACL may be of one of them.
    """
    if isinstance(document, dict) and "accounts" in document:
        return _of_accounts(document, name)
    if not isinstance(document, list):
        document = [document]
    found: dict[str, UserEntry] = {}
    for at, one in enumerate(document):
        if isinstance(one, dict) and "username" in one:
            entry = _of_user(one, f"{name}[{at}]")
            found[entry.name] = entry
        elif not (isinstance(one, dict) and "subject" in one):
            raise ConfigError(
                f"{name}[{at}]: neither a user (username), nor an ACL (subject), nor accounts of a plain_acl.yml",
                file=name,
            )
    told: dict[str, tuple[str, list[Any]]] = {}
    for at, one in enumerate(document):
        if "subject" in one:
            # A table has a row for each entry of an ACL.
            _, policies = told.setdefault(str(one["subject"]), (f"{name}[{at}]", []))
            policies += one.get("policies") or []
    for subject, (where, policies) in told.items():
        entry = _of_acl({"subject": subject, "policies": policies}, where, known | found)
        found[entry.name] = entry
    return found, []


def _entry(name: str, where: str, **keys: Any) -> UserEntry:
    return read_users({"users": {name: keys}}, where)[name]


def _of_user(one: dict[str, Any], where: str) -> UserEntry:
    return _entry(
        str(one["username"]),
        where,
        secret=_inline(one.get("password")),
        type=one.get("userType") or "Normal",
        status=one.get("userStatus") or "enable",
    )


def _inline(secret: object) -> object:
    """Return SECRET as our file has it: it may begin as a reference would."""
    if isinstance(secret, str) and secret.startswith(("env:", "file:", "inline:")):
        return f"inline:{secret}"
    return str(secret) if isinstance(secret, int) else secret


def _of_acl(one: dict[str, Any], where: str, users: dict[str, UserEntry]) -> UserEntry:
    kind, _, name = str(one["subject"]).partition(":")
    if kind != "User" or name not in users:
        raise ConfigError(
            f"{where}: the subject {str(one['subject'])[:80]!r} is no user here: take its user first",
            field="subject",
        )
    by_kind: dict[str, list[Policy]] = {"Custom": [], "Default": []}
    for at, policy in enumerate(one.get("policies") or []):
        entries = by_kind.get(policy.get("policyType") or "Custom")
        if entries is None:
            raise ConfigError(
                f"{where}.policies[{at}]: policyType is {policy['policyType']!r}: Custom or Default",
                field="policyType",
            )
        for number, entry in enumerate(policy.get("entries") or []):
            place = f"{where}.policies[{at}].entries[{number}]"
            keys = {
                "resource": entry.get("resource"),
                "actions": entry.get("actions"),
                "sources": entry.get("sourceIps"),
                "decision": entry.get("decision") or "Allow",
            }
            read = read_policy(keys, place)
            if read not in entries:  # Each broker of a cluster tells of the same.
                entries.append(read)
    return replace(
        users[name],
        policies=tuple(by_kind["Custom"]),
        default_policies=tuple(by_kind["Default"]),
    )


def _of_accounts(document: dict[str, Any], name: str) -> tuple[dict[str, UserEntry], list[str]]:
    notes = []
    if document.get("globalWhiteRemoteAddresses"):
        notes.append("globalWhiteRemoteAddresses: left out, since here every caller signs")
    found: dict[str, UserEntry] = {}
    for at, account in enumerate(document["accounts"] or []):
        where = f"{name}: accounts[{at}]"
        if not isinstance(account, dict) or "accessKey" not in account:
            raise ConfigError(f"{where}: accessKey is missing", field="accessKey")
        user = str(account["accessKey"])
        if account.get("whiteRemoteAddress"):
            notes.append(f"{user}: whiteRemoteAddress left out, since here every caller signs")
        found[user] = _entry(
            user,
            where,
            secret=_inline(account.get("secretKey")),
            type="Super" if account.get("admin") else "Normal",
            policies=[
                *_permissions("Topic", account.get("topicPerms"), where),
                *_permissions("Group", account.get("groupPerms"), where),
            ],
            default_policies=[
                _permission(f"{kind}:*", str(account[key]), f"{where}.{key}")
                for kind, key in (("Topic", "defaultTopicPerm"), ("Group", "defaultGroupPerm"))
                if account.get(key)
            ],
        )
    return found, notes


def _permissions(kind: str, values: Any, where: str) -> Iterator[dict[str, str]]:
    for value in values or []:
        name, _, permission = str(value).partition("=")
        yield _permission(f"{kind}:{name.strip()}", permission, where)


def _permission(resource: str, text: str, where: str) -> dict[str, str]:
    found = _PERMISSIONS.get(text.strip().upper().replace(" ", ""))
    if found is None:
        raise ConfigError(
            f"{where}: {resource}: the permission {text[:40]!r} is none of {', '.join(_PERMISSIONS)}",
            field="permission",
            value=text[:40],
        )
    return {"resource": resource, "decision": found[0], "actions": found[1]}
