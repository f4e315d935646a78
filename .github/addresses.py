"""Writes the addresses of a release into the sources that it is built from.

    python .github/addresses.py https://github.com/OWNER/NAME https://OWNER.github.io/NAME

The sources name no address, because a copy of the repository has others. The release workflow runs this on its own
checkout: errors then refer to the site of this version, the package index shows links, and the links and pictures of
README lead to the repository.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_SITE: Final = re.compile(r'^SITE: Final = ""$', re.MULTILINE)
_PICTURE: Final = re.compile(r"(!\[[^\]]*\]\()(?!\w+:|#)")
_LINK: Final = re.compile(r"((?<!!)\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\()(?!\w+:|#)")


def series(version: str) -> str:
    """Return the folder of the site for VERSION, "0.2" of "0.2.1"."""
    return ".".join(version.split(".")[:2])


def with_site(source: str, site: str, version: str) -> str:
    """Return proto/doc_urls.py with the address of the site for VERSION."""
    changed, count = _SITE.subn(f'SITE: Final = "{site}/{series(version)}/"', source)
    assert count == 1, "proto/doc_urls.py has no empty SITE"
    return changed


def with_urls(project: str, repository: str, site: str) -> str:
    """Return pyproject.toml with the links that a package index shows."""
    urls = {
        "Documentation": site,
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    before, heading, after = project.partition("[project.optional-dependencies]\n")
    assert heading, "pyproject.toml has no extras"
    return f"{before}[project.urls]\n{lines}\n{heading}{after}"


def with_links(readme: str, repository: str, version: str) -> str:
    """Return README with links and pictures that lead to the files of VERSION in the repository."""
    pictures = _PICTURE.sub(rf"\1{repository}/raw/v{version}/", readme)
    return _LINK.sub(rf"\1{repository}/blob/v{version}/", pictures)


def main(repository: str, site: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = tomllib.loads(project)["project"]["version"]
    texts = {
        "pyproject.toml": with_urls(project, repository, site),
        "proto/doc_urls.py": with_site(
            (ROOT / "proto/doc_urls.py").read_text("utf-8"), site, version
        ),
        "README.md": with_links((ROOT / "README.md").read_text("utf-8"), repository, version),
    }
    for name, text in texts.items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*(url.rstrip("/") for url in sys.argv[1:3]))
