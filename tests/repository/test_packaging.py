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

    data = set(settings["tool"]["setuptools"]["package-data"])
    assert {one for one in listed if one not in data} | {"pocketmq", "pocketmq.proto"} == (
        {"pocketmq"} | {f"pocketmq.{folder}" for folder in folders}
    )
    assert len(listed) == len(set(listed))


def test_every_file_of_data_is_in_a_folder_that_is_listed() -> None:
    """setuptools takes each folder for a package, and warns at length of one that is not listed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    listed = settings["setuptools"]["packages"]
    patterns = settings["setuptools"]["package-data"]

    assert set(patterns) <= set(listed)
    assert [one for names in patterns.values() for one in names if "/" in one] == []
    for name, names in patterns.items():
        folder = ROOT.joinpath(*name.split(".")[1:])
        for pattern in names:
            assert [path for path in folder.glob(pattern) if path.is_file()], f"{name}: {pattern}"


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


def test_only_systems_on_which_the_tests_run_are_named() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "classifiers"
    ]

    assert [one for one in classifiers if one.startswith("Operating System")] == [
        "Operating System :: POSIX :: Linux"
    ]
