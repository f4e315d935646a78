"""`pocketmq user` and `pocketmq acl`: show and change the file of users. Servers read a change within a second.

The file is given by --users or $POCKETMQ_USERS, or by the broker section of the file of --config. A secret that the
command generates for a new user is shown once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, Final

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
from ..proto.access.secret_files import own_path, read_secret
from ..proto.access.users import UserEntry, changed, check_secret
from ..proto.errors import ConfigError, PolicyExists, PolicyNotFound, UserExists, UserNotFound
from ..proto.yaml_file import read_yaml
from .apache_users import parse_tables, to_entries
from .options import Decorator, help_with_default, json_option, with_options
from .output import print_json, print_pairs, print_table
from .settings import load_settings

_SECRET_BYTES: Final = 24
_DENIED: Final = 1
#: Source of a policy without addresses, in --source and in output.
_EVERYWHERE: Final = "everywhere"
_TYPES: Final = click.Choice(["Normal", "Super"], case_sensitive=False)
_STATUSES: Final = click.Choice(["enable", "disable"])


#: Options that name the file.
_file_options = with_options(
    click.option(
        "--users",
        "users_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="POCKETMQ_USERS",
        show_envvar=True,
        help="File of users.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Configuration file of a server; its broker.users names the file of users.",
    ),
)


def _file(users_file: Path | None, config: Path | None) -> UserFile:
    if users_file is not None:
        return UserFile(users_file)
    if config is not None:
        settings = load_settings(config)
        path = settings.broker.users or settings.nameserver.users
        if path:
            return UserFile(path)
        raise ConfigError(f"{config}: broker.users is empty. Set it, or give --users")
    raise click.UsageError("Give the file of users: --users FILE, or --config FILE.")


def _user_of(users: MutableMapping[str, UserEntry], name: str) -> UserEntry:
    found = users.get(name)
    if found is None:
        raise UserNotFound(
            f"user {name!r} does not exist; create it: pocketmq user create {name}", user=name
        )
    return found


@click.group()
def user() -> None:
    """Create, update, list, delete and import users."""


#: Options of a user.
_user_options = with_options(
    _file_options,
    click.option(
        "--secret", metavar="SECRET", help="Secret: env:NAME, file:PATH, or the secret itself."
    ),
    click.option("--type", "kind", type=_TYPES, help="Type of user: Super may do everything."),
    click.option("--status", type=_STATUSES, help="Status: a disabled user may do nothing."),
    click.option(
        "--certificate",
        "certificates",
        metavar="NAME",
        multiple=True,
        help="Name in a client certificate that identifies this user. Repeatable.",
    ),
)


def _values(
    name: str,
    secret: str | None,
    kind: str | None,
    status: str | None,
    certificates: tuple[str, ...],
) -> dict[str, Any]:
    """Return the settings of user NAME in the options. Raises ConfigError for a secret that no server can use."""
    return {
        "secret": None if secret is None else _usable_secret(name, secret),
        "is_super": None if kind is None else kind.lower() == "super",
        "enabled": None if status is None else status == "enable",
        "certificates": certificates or None,
    }


def _usable_secret(name: str, text: str) -> str:
    """Return the secret TEXT of user NAME as the file has it: a path is absolute. Raises ConfigError.

    A server with one secret that it cannot read does not start. The environment of the server may have variables that
    the command does not have: for these the command only prints a note.
    """
    kind, _, rest = text.partition(":")
    if kind == "env" and rest and rest not in os.environ:
        click.echo(
            f"pocketmq: {rest} is not set here; set it for the servers, or they do not start",
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
    """Create user NAME, and the file if it does not exist.

    Without --secret the command generates a secret, and prints it once.

    \b
    Example: pocketmq user create alice --users users.yaml

    Exit code 5: the user exists already.
    """
    made = secret is None
    secret = secret or secrets.token_urlsafe(_SECRET_BYTES)
    wanted = _values(name, secret, **values)
    with _file(users_file, config).change(make=True) as users:
        if name in users:
            raise UserExists(
                f"user {name!r} exists; change it: pocketmq user update {name}", user=name
            )
        users[name] = changed(UserEntry(name, secret), **wanted)
    print_pairs({"created": name} | ({"secret": secret} if made else {}))


@user.command("update")
@click.argument("name")
@_user_options
def update_user(name: str, users_file: Path | None, config: Path | None, **values: Any) -> None:
    """Change the given settings of user NAME."""
    with _file(users_file, config).change() as users:
        users[name] = changed(_user_of(users, name), **_values(name, **values))
    print_pairs({"updated": name})


@user.command("delete")
@click.argument("name")
@_file_options
def delete_user(name: str, users_file: Path | None, config: Path | None) -> None:
    """Delete user NAME and its policies."""
    with _file(users_file, config).change() as users:
        _user_of(users, name)
        del users[name]
    print_pairs({"deleted": name})


@user.command("list")
@json_option("the users, without secrets")
@_file_options
def list_users(*, as_json: bool, users_file: Path | None, config: Path | None) -> None:
    """List users, without their secrets."""
    users = _file(users_file, config).read().values()
    if as_json:
        print_json([_document(one) for one in users])
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


def _document(entry: UserEntry) -> dict[str, Any]:
    document = entry.to_document()
    del document["secret"]
    return {"user": entry.name, **document}


@user.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--replace", "replaces", is_flag=True, help="Replace existing users.")
@_file_options
def import_users(
    files: tuple[Path, ...], *, replaces: bool, users_file: Path | None, config: Path | None
) -> None:
    """Import users and ACLs from FILES of Apache RocketMQ.

    FILES are the JSON of 5.x, the output of its mqadmin (users first), or plain_acl.yml of 4.x. Prints the imported
    users.

    Exit code 5: a user exists with other settings (see --replace).
    """

    taken: dict[str, None] = {}
    notes: list[str] = []
    with _file(users_file, config).change(make=True) as users:
        for path in files:
            lines = _lines(path)
            document = parse_tables("\n".join(lines), str(path))
            if document is None:
                # A list has no place at the top of a document: it is the value of a key.
                text = "\n".join(("document:", *(f"  {line}" for line in lines)))
                document = read_yaml(text, str(path))["document"]
            found, said = to_entries(document, str(path), dict(users))
            for name, entry in found.items():
                if name in users and name not in taken and not replaces and users[name] != entry:
                    same = changed(entry, policies=(), default_policies=())
                    if same != changed(users[name], policies=(), default_policies=()):
                        raise UserExists(
                            f"{path}: user {name!r} exists with other settings: give --replace, or leave it out",
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
        raise ConfigError(f"cannot read {path}: {error}", file=path) from None


@click.group()
def acl() -> None:
    """Create, update, list, delete and check policies of users."""


def _policy_options(*, show_defaults: bool) -> Decorator:
    text = partial(help_with_default, shown=show_defaults)
    return with_options(
        _file_options,
        click.argument("name", metavar="USER"),
        click.argument("actions", metavar="ACTION[,…]"),
        click.argument("resources", metavar="RESOURCE...", nargs=-1, required=True),
        click.option(
            "--source",
            "sources",
            multiple=True,
            metavar="ADDRESS",
            help=text("Address or network of clients, or everywhere.", "everywhere"),
        ),
        click.option("--deny/--allow", default=None, help=text("Decision.", "allow")),
        click.option(
            "--default",
            "is_default",
            is_flag=True,
            help="Store it as a default policy: it is used only if no other policy matches.",
        ),
    )


def _policies(
    there: Iterable[Policy],
    actions: str,
    resources: Iterable[str],
    sources: Iterable[str],
    deny: bool | None,
) -> list[Policy]:
    """Return the policies of the arguments. SOURCES and DENY that are not given are taken from those THERE."""
    known = {one.resource: one for one in there}
    wanted = parse_actions(actions.split(","), "ACTION")
    texts = [one.strip() for text in sources for one in text.split(",")]
    places = tuple(parse_source(one, "--source") for one in texts if one != _EVERYWHERE)
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
            f"RESOURCE: {text[:80]!r} has a * before its end, which would mean {found}: write that, or a complete"
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
    """Allow or deny USER actions on each RESOURCE.

    ACTION is All, Pub, Sub, Create, Update, Delete, Get or List. RESOURCE is * or Topic:, Group: or Cluster: with a
    name, prefix* or *.

    \b
    Example: pocketmq acl create alice Pub,Sub 'Topic:orders*' Group:billing --users users.yaml

    Exit code 5: USER has a policy for a RESOURCE already.
    """
    _change_acl(_file(users_file, config), name, is_default, given, is_new=True)


@acl.command("update")
@_policy_options(show_defaults=False)
def update_acl(
    name: str, users_file: Path | None, config: Path | None, *, is_default: bool, **given: Any
) -> None:
    """Change the policies of USER for each RESOURCE.

    Replaces the actions; sources and decision change only if you give them.

    Exit code 3: USER has no policy for a RESOURCE.
    """
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
                f"user {name!r} has a policy for {_named(both)}; change it: pocketmq acl update",
                user=name,
            )
        if not is_new and (missing := wanted - known):
            raise PolicyNotFound(
                f"user {name!r} has no policy for {_named(missing)}; create it: pocketmq acl create",
                user=name,
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
    """Delete policies of USER: those for each RESOURCE, or all."""
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
    """List policies of users, in the order of evaluation."""
    users = _file(users_file, config).read()
    found = [_user_of(users, name) for name in names] if names else list(users.values())
    if as_json:
        print_json([_document(one) for one in found])
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
@click.option(
    "--source",
    "host",
    metavar="IP",
    default="127.0.0.1",
    show_default=True,
    help="Address that USER connects from.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    default=BrokerConfig().cluster,
    show_default=True,
    help="Cluster of the server, which system topics require.",
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
    """Check whether USER may do ACTION on RESOURCE.

    Prints the decision, the policy that decides, and the reason. Of several actions, separated by commas, one is
    enough.

    \b
    Example: pocketmq acl check alice Pub Topic:orders --users users.yaml

    Exit code 1: the decision is Deny.
    """
    entry = _user_of(_file(users_file, config).read(), name)
    wanted = _effective(Resource.parse(resource, "RESOURCE"), resource)
    if wanted.pattern is Pattern.PREFIXED or resource.strip() == "*":
        raise ConfigError(
            f"RESOURCE: {resource!r} is not a single resource. Give one, such as Topic:orders"
        )
    parse_source(host, "--source")
    need = Need(wanted.type, wanted.name or "*", parse_actions(action.split(","), "ACTION"))
    judged = (
        SUPER
        if entry.is_super
        else Policies(entry.policies, entry.default_policies).decide_all(need, host, cluster)
    )
    decision = decision_document(judged, enabled=entry.enabled)
    if as_json:
        print_json(decision)
    else:
        print_pairs({key: value for key, value in decision.items() if value})
    if decision["decision"] == "Deny":
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
