"""The workflows of a public CI fit the project, as far as can be told without it."""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from types import ModuleType
from typing import Any, Final

import pytest
import yaml

from .source_tree import ROOT

WORKFLOWS: Final = ROOT / ".github" / "workflows"
REPOSITORY: Final = "https://git.example/owner/mq"
SITE: Final = "https://owner.example/mq"


def workflow(name: str) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text("utf-8"))
    return document


def commands(job: dict[str, Any]) -> str:
    """Return all that the steps of JOB run."""
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


def actions(job: dict[str, Any]) -> list[str]:
    return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]


def addresses() -> ModuleType:
    """Return the program that writes addresses into the sources of a release."""
    spec = importlib.util.spec_from_file_location("addresses", ROOT / ".github" / "addresses.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_are_known_here() -> None:
    assert {path.stem for path in WORKFLOWS.iterdir()} == {"ci", "package", "release"}


@pytest.mark.parametrize("name", ["ci", "package", "release"])
def test_none_may_write_but_in_the_jobs_that_publish(name: str) -> None:
    found = workflow(name)

    assert found["permissions"] == {"contents": "read"}
    writers = {
        job: [what for what, right in parts["permissions"].items() if right == "write"]
        for job, parts in found["jobs"].items()
        if "permissions" in parts
    }
    published = {"index": ["id-token"], "image": ["packages"], "docs": ["contents"]}
    assert writers == (published if name == "release" else {})


@pytest.mark.parametrize("name", ["ci", "package", "release"])
def test_every_job_needs_jobs_that_are_there_and_every_action_has_a_version(name: str) -> None:
    jobs = workflow(name)["jobs"]

    for job in jobs.values():
        needs = job.get("needs", [])
        assert {needs} if isinstance(needs, str) else set(needs) <= jobs.keys()
        for step in job.get("steps", []):
            assert re.search(r"@(v\d+|release/v\d+)$", step.get("uses", "a/b@v1")), step
        if reused := job.get("uses"):
            assert (ROOT / reused).is_file()


def test_ci_runs_the_gate_and_all_of_a_release_but_publishing() -> None:
    jobs = workflow("ci")["jobs"]

    *_, gate, kept = jobs["gate"]["steps"]
    assert gate == {"run": ".ci/run"}
    assert (kept["if"], kept["with"]["path"]) == ("always()", ".dev/screenshots")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert jobs["package"] == {"uses": "./.github/workflows/package.yml"}


def test_the_package_is_built_with_its_addresses_and_checked() -> None:
    build = workflow("package")["jobs"]["build"]

    lines = commands(build).splitlines()
    assert lines.index('python .github/addresses.py "$REPOSITORY_URL" "$SITE_URL"') < lines.index(
        "python -m build"
    )
    assert "python -m twine check --strict dist/*" in lines
    assert "actions/upload-artifact" in actions(build)
    (step,) = (step for step in build["steps"] if step.get("run") == "python -m build")
    assert step["env"] == {"POCKETMQ_PURE": "1"}, "an index refuses wheels of this machine alone"


def test_wheels_with_the_core_are_built_and_published_with_the_others() -> None:
    wheels = workflow("package")["jobs"]["wheels"]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["cibuildwheel"]

    lines = commands(wheels).splitlines()
    assert lines.index('python .github/addresses.py "$REPOSITORY_URL" "$SITE_URL"') < lines.index(
        "python -m cibuildwheel --output-dir dist"
    )
    assert settings["environment"] == {"POCKETMQ_CORE": "1"}, "a wheel without it is none of these"
    assert "assert speedups.core" in settings["test-command"]
    names = [
        step["with"]["name"]
        for job in workflow("package")["jobs"].values()
        for step in job.get("steps", ())
        if step.get("uses", "").startswith("actions/upload-artifact")
        and "dist" in step["with"]["path"]
    ]
    assert names == ["dist", "dist-${{ matrix.machine }}"]
    for job in (workflow("package")["jobs"]["try"], workflow("release")["jobs"]["index"]):
        (step,) = (one for one in job["steps"] if "download-artifact" in one.get("uses", ""))
        assert step["with"] == {"pattern": "dist*", "path": "dist/", "merge-multiple": True}


def test_the_wheel_is_tried_on_each_python_that_the_project_names() -> None:
    job = workflow("package")["jobs"]["try"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [
        line.rpartition(" ")[2]
        for line in project["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]

    assert job["strategy"]["matrix"]["python"] == named
    assert "pip install dist/*manylinux*x86_64.whl" in commands(job)
    assert "--no-deps dist/*-none-any.whl" in commands(job)
    assert ".github/try-installed core" in commands(job)
    assert ".github/try-installed pure" in commands(job)
    assert "CC=/nowhere/cc python -m pip install" in commands(job), "no compiler is needed"
    assert os.access(ROOT / ".github" / "try-installed", os.X_OK)


def test_image_and_documents_are_built_before_anything_is_published() -> None:
    jobs = workflow("package")["jobs"]

    assert "docker build -f docker/Dockerfile" in commands(jobs["image"])
    assert "pocketmq health" in commands(jobs["image"])
    assert "make site" in commands(jobs["docs"]).splitlines()
    release = workflow("release")["jobs"]
    assert release["package"]["uses"] == "./.github/workflows/package.yml"
    for name in ("index", "image", "docs"):
        assert "package" in release[name]["needs"], name


def test_a_release_is_a_tag_and_publishes_without_a_secret() -> None:
    text = (WORKFLOWS / "release.yml").read_text("utf-8")
    release = workflow("release")

    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true.
    index = release["jobs"]["index"]
    assert index["environment"] == "pypi"
    assert actions(index) == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert "secrets." not in text
    assert "docker buildx build --push" in commands(release["jobs"]["image"])
    assert "make site-version VERSION=" in commands(release["jobs"]["docs"])
    assert "\nsite-version: " in (ROOT / "Makefile").read_text("utf-8")


def test_the_tag_is_compared_with_a_version_that_the_sources_have() -> None:
    (command,) = (
        line
        for line in commands(workflow("release")["jobs"]["version"]).splitlines()
        if line.startswith("version=$(sed")
    )
    pattern = re.search(r"s/(.+)/\\1/p", command)
    assert pattern is not None
    # sed's groups are written \( \).
    expression = pattern[1].replace(r"\(", "(").replace(r"\)", ")")
    project = (ROOT / "pyproject.toml").read_text("utf-8")

    assert re.findall(expression, project, re.MULTILINE) == [
        tomllib.loads(project)["project"]["version"]
    ]


def test_a_release_has_the_address_of_its_site() -> None:
    source = (ROOT / "proto/doc_urls.py").read_text("utf-8")

    assert f'SITE: Final = "{SITE}/0.2/"\n' in addresses().with_site(source, SITE, "0.2.1")


def test_the_package_index_shows_links() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert "urls" not in tomllib.loads(project)["project"], "the sources know no address"

    written = tomllib.loads(addresses().with_urls(project, REPOSITORY, SITE))
    urls = written["project"].pop("urls")

    assert urls["Documentation"] == SITE
    assert urls["Changelog"] == f"{REPOSITORY}/blob/main/CHANGELOG.md"
    assert written == tomllib.loads(project)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md#b)", f"[a]({REPOSITORY}/blob/v1.2.3/docs/a.md#b)"),
        ("![demo](docs/img/demo.svg)", f"![demo]({REPOSITORY}/raw/v1.2.3/docs/img/demo.svg)"),
        ("[a](https://x.example)", "[a](https://x.example)"),
        ("[a](#limits)", "[a](#limits)"),
        (
            "[![plot](a.svg)](docs/b.md)",
            f"[![plot]({REPOSITORY}/raw/v1.2.3/a.svg)]({REPOSITORY}/blob/v1.2.3/docs/b.md)",
        ),
        ('Producer(broker, ["orders"])', 'Producer(broker, ["orders"])'),
    ],
)
def test_links_of_readme_lead_to_the_repository(text: str, expected: str) -> None:
    assert addresses().with_links(text, REPOSITORY, "1.2.3") == expected


def test_no_link_of_readme_is_left_relative() -> None:
    readme = addresses().with_links((ROOT / "README.md").read_text("utf-8"), REPOSITORY, "1.2.3")

    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 20
    assert [link for link in links if not re.match(r"https?:|#", link)] == []


def test_redirects_lead_from_pages_that_are_gone_to_pages_that_are_there() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    block = text.partition("redirect_maps:")[2].partition("  - mkdocstrings")[0]
    found = dict(re.findall(r"^ +([\w-]+\.md): ([\w-]+\.md)$", block, re.MULTILINE))

    assert len(found) >= 20
    assert [name for name in found if (ROOT / "docs" / name).exists()] == []
    assert [name for name in found.values() if not (ROOT / "docs" / name).is_file()] == []


def test_the_site_has_the_addresses_of_its_surroundings_alone() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")

    assert 'site_url: !ENV [SITE_URL, ""]' in text
    assert 'repo_url: !ENV [REPOSITORY_URL, ""]' in text
    assert "://" not in text
    for name in ("package", "release"):
        assert "SITE_URL: " in (WORKFLOWS / f"{name}.yml").read_text("utf-8")
