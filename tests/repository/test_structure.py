"""The figures of structure.py stay within structure.toml, and are measured as they should be."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from pocketmq.broker import broker
from pocketmq.proto import errors
from pocketmq.store import disk

from . import call_paths, package_drawing, persistence, private_words, structure
from .source_tree import ROOT, name_of
from .test_links import ARCHITECTURE, paths_named

#: A limit that is higher than this above its figure must be lowered.
LOOSE = 1.05
FEW = 3
#: A timer that was due during a run, on a slow machine, adds functions: measure again.
TRIES = 5
RUN_FIGURES = ("functions on the path", "ways to persist")
SOURCE_FIGURES = [name for name in structure.limits() if not name.startswith(RUN_FIGURES)]
#: Where structure.py finds what a figure counts.
PLACES = {
    "import cycles": structure.import_cycles,
    "attributes set on other objects": structure.attributes_set_on_others,
    "public class names defined twice": structure.repeated_class_names,
    "pairs of packages that import each other": structure.mutual_imports,
    "hooks appended after construction": structure.appended_hooks,
}


@pytest.mark.parametrize("name", SOURCE_FIGURES)
def test_a_figure_of_the_sources_stays_within_its_limit(name: str) -> None:
    value, limit = structure.source_figures()[name], structure.limits()[name].limit

    places = PLACES[name]() if name in PLACES else "run `make structure`"
    assert value <= limit, f"{name}: {value} exceeds the limit of {limit}: {places}"


@pytest.mark.parametrize("name", call_paths.NAMES)
def test_a_call_path_stays_within_its_limit(name: str) -> None:
    limit = structure.limits()[f"functions on the path of {name}"].limit

    count = limit + 1
    for _ in range(TRIES):
        count = len(call_paths.measured()[name].functions)
        if count <= limit:
            return
        call_paths.measured.cache_clear()
    pytest.fail(f"{name} runs {count} functions, the limit is {limit}: which of them only forward?")


def test_no_limit_is_left_above_a_figure_that_fell() -> None:
    figures = structure.source_figures() | structure.run_figures()

    assert list(structure.limits()) == list(figures)
    loose = {
        name: figures[name]
        for name, (limit, _) in structure.limits().items()
        if limit > figures[name] * LOOSE + FEW
    }
    assert loose == {}, "lower these limits in structure.toml to the figures shown"


def test_state_is_persisted_in_the_declared_ways() -> None:
    found = persistence.measured()

    assert found.ways == persistence.DECLARED, "update DECLARED in persistence.py"
    assert found.other <= persistence.OTHER_FILES.keys()


def test_all_files_below_pocketmq_are_declared() -> None:
    assert persistence.names_in_code() == persistence.declared_names()


@pytest.mark.parametrize("name", ["SendMessage", "ReceiveMessage", "AckMessage"])
def test_the_architecture_explains_files_that_are_on_the_path(name: str) -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    section = text.split("## Call path of an official client")[1]
    _, common, *_ = section.split("```")
    _, explained, *_ = section.split(f"`{name}`")[1].split("```")

    files = call_paths.measured()[name].files
    named = [path for block in (common, explained) for path in paths_named(_first_words(block))]
    assert len(named) >= 9
    assert [name_of(path) for path in named if path not in files] == []


def _first_words(block: str) -> str:
    """Return the first word of each line of BLOCK."""
    return " ".join(line.split()[0] for line in block.splitlines() if line.strip())


#: A timer may run in all runs of one process and in none of another's.
CHANCE = 2


@pytest.mark.parametrize("name", call_paths.NAMES)
def test_the_architecture_lists_the_files_of_each_path(name: str) -> None:
    block = call_paths.block_of(name, ARCHITECTURE.read_text(encoding="utf-8"))
    listed = call_paths.files_in(block)
    files = call_paths.measured()[name].files

    assert len(listed) > 10
    assert [name_of(path) for path in listed if path not in files][CHANCE:] == [], "make call-paths"
    assert [name_of(path) for path in files if path not in listed][CHANCE:] == [], "make call-paths"


def test_a_path_is_listed_by_folder_in_its_order() -> None:
    files = [ROOT / "store/disk.py", ROOT / "broker/pop/table.py", ROOT / "store/reader.py"]

    block = call_paths.rendered(files)
    assert block == "```\nstore/      disk, reader\nbroker/pop/ table\n```\n"
    assert call_paths.files_in(block) == [files[0], files[2], files[1]]


def test_the_drawing_shows_all_packages_and_imports() -> None:
    drawing = package_drawing.DRAWING.read_text(encoding="utf-8")
    arrows = set(re.findall(r'data-from="(\w+)" data-to="(\w+)"', drawing))

    assert arrows == set(structure.package_imports()), "make call-paths"
    for package, folders in structure.package_sizes().items():
        assert f">{package}/" in drawing, "make call-paths"
        missing = [name for name in folders if name and f">{name}/" not in drawing]
        assert missing == [], "make call-paths"


def test_a_path_has_the_functions_that_all_runs_have_in_common() -> None:
    first, common, last = (part.__file__ for part in (broker, disk, errors))
    tracer = call_paths.Tracer()
    for files in ((first, common), (common, last)):
        with tracer.tracing():
            for file in files:
                exec(compile("(lambda: [0 for _ in ()])()", str(file), "exec"), {})

    path = tracer.path()
    assert [str(file) for file in path.files] == [common]
    assert [function.name for function in path.functions] == ["<module>", "<lambda>"]


def test_a_file_that_was_imported_through_a_link_is_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "pocketmq").symlink_to(ROOT)
    tracer = call_paths.Tracer()
    with tracer.tracing():
        exec(compile("(lambda: 0)()", str(tmp_path / "pocketmq" / "store" / "disk.py"), "exec"), {})

    assert tracer.path().files == [ROOT / "store" / "disk.py"]


CODE = '''
    """Keeps messages.

    Two words.

        a format of many words
    | a | table |
    """

    # ------- a banner

    class Public:
        """A docstring."""

        # It stands there,
        # and goes
        # on anew.
        def method(self, other):
            self.field = other.field.name = 1
            other.on_end.append(self.method)
            other.items.append(self.field)
            other.rows.append(lambda: 0)
            text = "whoever # lies here"  # the end: `anew` nobody

            return "anew"
'''


def test_a_file_is_measured() -> None:
    source = structure.measure(ROOT / "store" / "new.py", textwrap.dedent(CODE))

    assert (source.code_lines, source.banners, source.docstring_words) == (8, 1, 4)
    assert source.classes == ["Public"]
    assert list(source.functions.values()) == [8]
    assert [(each.attribute, each.through_other) for each in source.sets] == [("name", True)]
    appended = [each.attribute for each in source.hooks if each.value is not None]
    assert appended == ["on_end", "items", "rows"]
    assert source.words == {
        "stands?|stood|standing": 1,
        "(?:go|goes|going|went|gone) on": 1,
        "anew": 1,
        "whoever": 1,
        "lies|lie in|lay in|lying in": 1,
        "(?:some|no)body": 1,
    }


def test_private_words_are_found_in_prose_only() -> None:
    text = "Whoever stands\nbehind it; is behind it. `ours`\n\n```\nnobody\n```\nHand over the lot."

    assert [text for text in private_words.private_words(text) if "behind" not in text] == [
        "whoever",
        "stands?|stood|standing",
        "hand(?:s|ed|ing)? over",
    ]
    assert len([word for word in private_words.private_words(text) if "behind" in word]) == 1


def test_each_private_word_is_a_pattern_with_a_replacement() -> None:
    for word, replacement in private_words.replacements().items():
        assert re.compile(word).groups == 0, "write (?:…)"
        assert word == word.lower(), "words are compared in lower case"
        assert replacement


def test_cycles_are_found() -> None:
    a, b, c, d = (Path(name) for name in "abcd")

    groups = structure.strong_components({a: [b], b: [c], c: [a], d: [a]})
    assert sorted(sorted(group) for group in groups) == [[a, b, c], [d]]


def test_the_95th_percentile_is_not_exceeded_by_95_percent() -> None:
    assert structure.percentile_95(range(1, 101)) == 95
    assert structure.percentile_95([7]) == 7


def test_private_words_of_given_files_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("Nobody reads it anew.", encoding="utf-8")

    structure.main([str(page)])

    assert re.findall(r"^(\S+) +1  ", capsys.readouterr().out, re.MULTILINE) == [
        "(?:some|no)body",
        "anew",
    ]
