"""Secrets: given as text, in an environment variable, or in a private file.

A secret is written as it is, or as `env:NAME`, `file:PATH` (the first line of the file), or `inline:TEXT` for a text
that starts with one of these words. A file with a secret must be readable by its owner only (mode 0600 or less).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from ..errors import ConfigError

_SECRET_BYTES_MAX: Final = 64 * 1024


def read_secret(user: str, text: str) -> str:
    """Return the secret of USER that TEXT contains or refers to; raise ConfigError if it does not exist."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in ("env", "file", "inline"):
        return text
    if kind == "inline":
        return rest
    if kind == "env":
        found = os.environ.get(rest)
        if found is None:
            raise ConfigError(
                f"users.{user}.secret: the environment variable {rest} is not set. Set it for the server, or write the"
                " secret another way (a secret that begins with env: is written inline:env:…)",
                field="secret",
            )
        return found
    return read_secret_file(rest, f"users.{user}.secret")


def read_secret_file(path: str, where: str) -> str:
    """Return the first line of the file at PATH; raise ConfigError, which contains WHERE."""
    try:
        content = read_private(own_path(path), _SECRET_BYTES_MAX)
        return content.partition("\n")[0].strip("\r")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", **error.details) from None


def own_path(text: str | Path) -> Path:
    """Return the path TEXT of an operator; `~` is the home folder. Raises ConfigError."""
    shown = ascii(str(text))[:80]
    refusal = ConfigError(
        f"{shown} is not a valid path: unknown home folder, or characters that a path cannot have",
        file=shown,
    )
    try:
        found = Path(text).expanduser()
        has_nul = b"\0" in os.fsencode(found)
    except (RuntimeError, ValueError):  # No such home folder; characters that a path cannot have.
        raise refusal from None
    if has_nul:
        raise refusal
    return found


def read_private(path: Path, bytes_max: int) -> str:
    """Return the text of the file at PATH, which only its owner may read; raise ConfigError."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise ConfigError(
                    f"{path}: others may read it, its mode is {mode:04o}: chmod 600 {path}",
                    file=path,
                    limit="0600",
                    value=f"{mode:04o}",
                )
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", file=path) from None
    if len(content) > bytes_max:
        raise ConfigError(f"{path}: is larger than {bytes_max} bytes", file=path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8", file=path) from None
