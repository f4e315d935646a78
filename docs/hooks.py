"""What the site has besides docs/: the README as its first page, the files that pages link to, and llms.txt.

Markdown files of the repository's root are next to the documents, others below `repository/`. Programs that read
documentation get each page as Markdown, and `llms.txt`, a list of all pages with their first sentences. The search
ranks pages that answer questions of users above the reference of the API and the pages for developers.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[1]
#: Pages from the repository's root, by where they are in the site.
PAGES: Final = {
    "index.md": "README.md",
    **{
        name: name
        for name in (
            "CHANGELOG.md",
            "CODE_OF_CONDUCT.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "SUPPORT.md",
        )
    },
}
#: How much a page counts in the search, by the beginning of its name; other pages count 1. A title with all the words
#: of a query comes first. The API reference has hundreds of titles such as `messages_sent`.
SEARCH_BOOSTS: Final = {
    "api.md": 0.01,
    **dict.fromkeys(("architecture.md", "http2.md", "performance.md"), 0.1),
    **dict.fromkeys(("decisions/", "repository/", "CHANGELOG.md", "CONTRIBUTING.md"), 0.1),
    **dict.fromkeys(("client-objects.md", "client-settings.md", "cli.md", "http-api.md"), 0.5),
    **dict.fromkeys(("alert-runbook.md", "error-messages.md", "errors.md", "glossary.md"), 0.5),
    **dict.fromkeys(("how-it-is-tested.md", "json-output.md", "releases.md", "roadmap.md"), 0.5),
}
_HEADING: Final = re.compile(r"^#{1,6} .*$", re.MULTILINE)
_BLOCK: Final = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)\s*$", re.MULTILINE | re.DOTALL)
_SENTENCE: Final = re.compile(r"[A-Z`*\[].*?[.:](?=\s|$)", re.DOTALL)
_LINKED_TEXT: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_LINK: Final = re.compile(r"\]\((?!\w+:|#)(?P<path>[^)#\s]+)")


def place_of(path: str) -> str:
    """Return where the file at PATH, from the repository's root, is in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    in_site = {file: place for place, file in PAGES.items()}
    return in_site.get(path, f"repository/{path}")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from the repository's root, and what is linked to beside docs/."""
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PAGES.values())]
    linked = {path for page in sources for path in _linked(page) if (ROOT / path).is_file()}
    for path in sorted(linked | set(PAGES.values())):
        if not path.startswith("docs/"):
            files.append(File.generated(config, place_of(path), abs_src_path=str(ROOT / path)))
    return files


def _linked(page: Path) -> set[str]:
    """Return what PAGE links to, from the repository's root."""
    folder = page.parent.relative_to(ROOT).as_posix()
    found = _LINK.finditer(page.read_text("utf-8"))
    return {posixpath.normpath(posixpath.join(folder, one["path"])) for one in found}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have links lead to where their files are in the site, and set the rank of the page in the search."""
    uri = page.file.src_uri
    boosts = (boost for start, boost in SEARCH_BOOSTS.items() if uri.startswith(start))
    page.meta.setdefault("search", {"boost": next(boosts, 1)})
    source = PAGES.get(uri) or (
        uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"
    )
    folder, here = posixpath.dirname(source), posixpath.dirname(uri)

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link["path"]))
        if not (ROOT / path).exists():
            return link[0]
        return f"]({posixpath.relpath(place_of(path), here or '.')}"

    return _LINK.sub(moved, markdown)


def first_sentence(markdown: str) -> str:
    """Return the first sentence of the prose of a page, without links; "" if the page has none."""
    prose = _LINKED_TEXT.sub(r"\1", _BLOCK.sub("", _HEADING.sub("", markdown)))
    for paragraph in re.split(r"\n\s*\n", prose):
        lines = paragraph.strip()
        if not lines.startswith(("|", "-", "!", ":::")) and (found := _SENTENCE.match(lines)):
            return " ".join(found[0].rstrip(":").split())
    return ""


def on_env(env: Any, config: Any, files: Files, **_: Any) -> Any:
    """Write llms.txt and the Markdown of each page into the site."""
    site, lines = (
        Path(config.site_dir),
        [f"# {config.site_name}", "", f"> {config.site_description}", ""],
    )
    for file in files.documentation_pages():
        page, target = file.page, f"{posixpath.splitext(file.dest_uri)[0]}.md"
        if page is None or page.markdown is None:
            continue
        (site / target).parent.mkdir(parents=True, exist_ok=True)
        (site / target).write_text(page.markdown, encoding="utf-8")
        said = first_sentence(page.markdown)
        lines.append(f"- [{page.title}]({target})" + (f": {said}" if said else ""))
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return env
