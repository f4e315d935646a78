"""The wheel holds what the repository holds: the list of packages is explicit, so it is compared."""

from __future__ import annotations

import tomllib

from .source_tree import CODE_FOLDERS, ROOT


def test_every_folder_of_code_is_in_the_list_of_packages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = settings["tool"]["setuptools"]["packages"]

    folders = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for folder in CODE_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }

    assert set(listed) == {"pocketmq"} | {f"pocketmq.{folder}" for folder in folders}
    assert len(listed) == len(set(listed))


def test_every_package_has_an_init_that_says_what_it_is() -> None:
    for folder in CODE_FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            assert init.read_text(encoding="utf-8").startswith('"""') or "gen" in init.parts, init
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module


def test_the_version_stands_in_one_sense_only() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    namespace: dict[str, str] = {}
    exec((ROOT / "__init__.py").read_text(encoding="utf-8"), namespace)

    assert namespace["__version__"] == settings["project"]["version"]
