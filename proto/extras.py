"""How to install PocketMQ's optional libraries, with the same method that installed PocketMQ itself.

pip_install("spark")     pip install -e '/opt/pocketmq[spark]'     editable, or a checkout that was not installed
                         pip install '/opt/pocketmq[spark]'        from a folder that is still there
                         pip install 'pocketmq[spark] @ git+https://…' from a repository, or a file
                         pip install 'pocketmq[spark]'                 from a package index
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

#: The folder of the package; in a checkout, that of the whole project.
_ROOT: Final = Path(__file__).resolve().parents[1]


def pip_install(*extras: str) -> str:
    """Return the command that installs EXTRAS in addition to what is installed."""
    return f"pip install {_wanted(','.join(extras), _origin(), _ROOT)}"


def _origin() -> dict[str, Any] | None:
    """Return where pip installed PocketMQ from (PEP 610), {} for an index; None: it was not installed."""
    from importlib import metadata  # Only needed here, and slow to import.

    try:
        text = metadata.distribution("pocketmq").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    return json.loads(text) if text else {}


def _wanted(extras: str, origin: dict[str, Any] | None, root: Path) -> str:
    if origin is None:
        return f"-e '{root}[{extras}]'" if _is_project(root) else f"'pocketmq[{extras}]'"
    url = urlsplit(origin.get("url", ""))
    if "dir_info" in origin:
        folder = Path(unquote(url.path))
        if not _is_project(folder):
            return f"'pocketmq[{extras}]'"
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"{editable}'{folder}[{extras}]'"
    if not origin:
        return f"'pocketmq[{extras}]'"
    version_control = origin.get("vcs_info", {}).get("vcs")
    scheme = f"{version_control}+" if version_control else ""
    return f"'pocketmq[{extras}] @ {scheme}{url.geturl()}'"


def _is_project(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file()
