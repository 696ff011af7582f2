"""The pages keep pace with the code: generated parts, links, names of tests and files, examples."""

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from raftmq import broker
from raftmq.broker.settings import Peer, Settings
from raftmq.broker.system_world import CannotListen
from raftmq.checkers import INVARIANTS
from raftmq.errors import Reason
from raftmq.log.faults import Dropped, LogFault
from raftmq.results import UnsupportedVersion
from raftmq.wire import (
    access,
    assignment,
    consumer_groups,
    directory,
    messages,
    popping,
    producing,
    settings,
    traces,
)

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PARTS = sorted((DOCS / "pipeline").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "bench/README.md", *DOCS.rglob("*.md")])

# A path in code, perhaps with a test of that file behind it.
PATH = re.compile(r"`((?:raftmq|tests|bench|docs|deploy)/[\w./-]+)(?:::(\w+))?`")
FURTHER_TEST = re.compile(r"`::(\w+)`")
"""Another test of the file that the line named last."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A module of the package, or a name in one; not a path, a host or an address.
DOTTED = re.compile(r"(?<![\w./@-])raftmq(?:\.[A-Za-z_]\w*)+")
MADE_LATER = {"docs/benchmarks.md", "docs/benchmarks.json", "docs/demo.svg"}
"""Written by `make bench` and `make demo`."""

GUARANTEE_TERMS = {
    "ack", "acked", "available", "dead-lettered", "deadline", "delayed message", "hand-off", "key",
    "lease", "leased", "linearizable", "message", "minority", "node", "outcome unknown", "pull",
    "retention", "retry", "waiting",
}  # fmt: skip


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """The page without its fenced code and its comments."""
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", path.read_text()), flags=re.DOTALL)


def anchor(heading: str) -> str:
    """As GitHub and the site make it of a heading."""
    plain = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"\s", "-", plain)


def first_column(text: str) -> list[str]:
    """The first cells of all tables of a page."""
    cells = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    return [cell for cell in cells if cell.strip("- ")]


def test_there_are_pages_to_check() -> None:
    assert len(PAGES) > 30


def test_generated_pages_are_what_the_code_says() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"`make docs` rewrites\n{done.stdout}{done.stderr}"


def test_every_setting_has_its_line_and_its_meaning() -> None:
    text = (DOCS / "reference/settings.md").read_text()
    structs = [Peer, *(type_ for type_ in Settings.__annotations__.values())]
    for struct in structs:
        assert isinstance(struct, type)
        for field in msgspec.structs.fields(struct):
            assert re.search(rf"^\| `{field.name}` \| .+ \| .+ \| \w.+ \|$", text, re.MULTILINE), (
                f"{struct.__name__}.{field.name} needs a docstring"
            )


def test_every_message_and_reason_has_its_heading_or_line() -> None:
    text = (DOCS / "reference/messages.md").read_text()
    for frame_kind in messages.FrameKind:
        assert f"| `{frame_kind.name}` | {frame_kind.value} |" in text
    public = [
        value.__name__
        for page in (
            messages,
            popping,
            producing,
            consumer_groups,
            assignment,
            directory,
            settings,
            traces,
            access,
        )
        for value in vars(page).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == page.__name__
        and not value.__name__.startswith("_")
    ]
    assert len(public) > 30
    for struct in public:
        assert f"## `{struct}`" in text
    errors = (DOCS / "reference/errors.md").read_text()
    for reason in Reason:
        assert f"| `{reason.name}` | `{reason.value}` |" in errors


def test_every_dependency_has_its_line_and_no_line_is_left_over() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    extras = project["project"]["optional-dependencies"].values()
    for group in (*extras, *project["dependency-groups"].values()):
        wanted += group
    names = {re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in wanted}
    # The Makefile installs it to read the lock file.
    names.add("uv")
    found = first_column((DOCS / "decisions/dependencies.md").read_text())
    assert sorted(set(found) - {"dependency"}) == sorted(names)


def test_terms_of_the_guarantees_are_in_the_glossary() -> None:
    quotes = "\n".join(re.findall(r"^> .*", (DOCS / "guarantees.md").read_text(), re.MULTILINE))
    used = set(re.findall(r"\*([\w -]+)\*", quotes))
    entries = {
        term.strip()
        for cell in first_column((DOCS / "glossary.md").read_text())
        for term in cell.split(",")
    }
    singular = {"keys": "key", "pulls": "pull", "nodes": "node", "retention ran out": "retention"}
    used = {singular.get(term, term) for term in used}
    assert used == GUARANTEE_TERMS
    assert used <= entries


def test_glossary_names_each_term_once_with_chinese() -> None:
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (DOCS / "glossary.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| term")
    ]
    rows = [cells for cells in lines if cells[0].strip("-")]
    assert len({cells[0] for cells in rows}) == len(rows) > 80
    for term, chinese, meaning in rows:
        assert meaning, term
        assert re.search(r"[\u4e00-\u9fff]", chinese), term


def test_guarantees_of_the_readme_are_those_of_the_page() -> None:
    quotes = re.findall(r"^> (.*)", (DOCS / "guarantees.md").read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text().split("| guarantee |")[1].split("\n\n")[0]
    told = re.findall(r"^\| (\w.*) \| yes \|$", readme, re.MULTILINE)
    assert told == [quote.replace("*", "") for quote in quotes]


def test_first_steps_of_the_site_are_those_of_the_readme() -> None:
    readme, site = ((ROOT / file).read_text() for file in ("README.md", "docs/index.md"))
    steps = readme.split("## In 30 seconds")[1].split("```")[1].splitlines()
    typed = [line for line in steps if line.startswith("raftmq ")]
    assert len(typed) == 5
    # `make setup` would bring 1.1 GB of tools for developers.
    assert "pip install ." in steps[1]
    assert not any(line.startswith("make ") for line in steps)
    assert "\n".join(typed) in site


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(prose(path)):
        if re.match(r"https?://", link):
            continue
        file, _, fragment = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if path.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{link} would not work in the site"
        if fragment:
            headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), link


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_files_and_tests_that_a_page_names_exist(path: Path) -> None:
    for file, test in PATH.findall(prose(path)):
        if file in MADE_LATER or "*" in file:
            continue
        target = ROOT / file
        assert target.exists(), file
        if test:
            assert has_test(target, test), f"{file}::{test}"


def has_test(file: Path, test: str) -> bool:
    return bool(re.search(rf"^(async )?def {test}\(", file.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_further_tests_that_a_page_names_exist(path: Path) -> None:
    for line in prose(path).splitlines():
        for further in FURTHER_TEST.finditer(line):
            file = PATH.findall(line[: further.start()])[-1][0]
            assert has_test(ROOT / file, further[1]), f"{file}::{further[1]}"


@pytest.mark.parametrize("path", [DOCS / "pipeline.md", *PARTS], ids=name)
def test_page_of_the_pipeline_ends_with_its_tests(path: Path) -> None:
    last = path.read_text().splitlines()[-1]
    assert last.startswith("Tests: ")
    assert any(file.startswith("tests/pipeline/") for file, _ in PATH.findall(last))


def test_pages_that_state_behaviour_name_a_test_that_shows_it() -> None:
    pages = ("filters", "operations", "popping", "embedded", "members", "transactions", "order")
    guides = [ROOT / "README.md", *(DOCS / f"{page}.md" for page in pages)]
    chaos = [DOCS / "chaos" / f"{page}.md" for page in ("index", "a-bug", "your-service")]
    for path in [*guides, *chaos, *(DOCS / "tour").glob("[0-9]*.md")]:
        named = [file for file, _ in PATH.findall(prose(path))]
        assert any(re.search(r"/test_\w+\.py$", file) for file in named), name(path)


def test_each_threat_names_a_test_that_shows_what_stops_it() -> None:
    text = (DOCS / "security.md").read_text()
    table = text.partition("## Threats")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    for row in rows:
        threat, stopped, shown = (cell.strip() for cell in row.strip("|").split(" | "))
        assert threat, row
        assert stopped, row
        assert any(file.startswith("tests/") for file, _ in PATH.findall(shown)), row


def is_there(dotted: str) -> bool:
    """Whether a dotted name leads to a module, or to a name or a field in one."""
    try:
        pkgutil.resolve_name(dotted)
    except AttributeError:
        owner, _, last = dotted.rpartition(".")
        return last in getattr(pkgutil.resolve_name(owner), "__annotations__", {})
    except ModuleNotFoundError:
        return False
    return True


def test_dotted_names_in_pages_docstrings_and_help_exist() -> None:
    # The changelog names what was there at a release.
    pages = [path for path in PAGES if path.name != "CHANGELOG.md"]
    missing = []
    for path in [*pages, *(ROOT / "raftmq").rglob("*.py")]:
        text = path.read_text()
        if path.suffix == ".py":
            # Imports of the code are mypy's to check, those of a page's examples are not.
            text = re.sub(r"^\s*(from|import) .*", "", text, flags=re.MULTILINE)
        names = sorted(set(DOTTED.findall(text)))
        missing += [f"{name(path)}: {dotted}" for dotted in names if not is_there(dotted)]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_lists_and_tables_stand_after_a_blank_line(path: Path) -> None:
    lines = prose(path).splitlines()
    for before, line in pairwise(lines):
        for start in ("- ", "| "):
            if line.startswith(start) and not before.startswith((start, "  ", "|")):
                assert not before.strip(), f"the site shows no list or table here: {line}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_examples_in_python_compile_or_run(path: Path) -> None:
    examples = [body for language, body in FENCE.findall(path.read_text()) if language == "python"]
    session = ""
    for body in examples:
        if body.startswith(">>>"):
            session += body + "\n"
        elif not path.is_relative_to(DOCS / "reference"):
            compile(body, name(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if session and path.is_relative_to(DOCS / "tour"):
        run = doctest.DocTestParser().get_doctest(session, {}, name(path), name(path), 0)
        assert doctest.DocTestRunner().run(run).failed == 0


def test_tour_leads_from_its_first_chapter_to_its_last() -> None:
    chapters = sorted((DOCS / "tour").glob("[0-9]*.md"))
    assert len(chapters) == 16
    titles = [path.read_text().split("\n", 1)[0].removeprefix("# ") for path in chapters]
    for number, path in enumerate(chapters):
        last = path.read_text().strip().splitlines()[-1]
        before = (
            ("The tour", "index.md")
            if not number
            else (titles[number - 1], chapters[number - 1].name)
        )
        assert last.startswith(f"Previous: [{before[0]}]({before[1]}) · ")
        if path is not chapters[-1]:
            assert last.endswith(f"Next: [{titles[number + 1]}]({chapters[number + 1].name})")
    index = (DOCS / "tour/index.md").read_text()
    for title, path in zip(titles, chapters, strict=True):
        assert f"[{title}]({path.name})" in index


def test_sections_of_raft_name_code_tests_and_invariants_that_there_are() -> None:
    page = DOCS / "tour/raft.md"
    tests = {
        test
        for path in (ROOT / "tests").rglob("test_*.py")
        for test in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    assert len(rows[2:]) > 20
    for section, _, code, test, invariants in rows[2:]:
        assert test.strip("`") in tests, section
        for one in filter(None, invariants.strip(" |").split(", ")):
            assert one in INVARIANTS, section
        source = Path()
        for named in re.findall(r"`([^`]+)`", code):
            if named.endswith(".py"):
                source = ROOT / (named if "/" in named else f"raftmq/consensus/{named}")
                continue
            body = ast.parse(source.read_text()).body
            for part in named.split("."):
                found = [each for each in body if getattr(each, "name", "") == part]
                assert found, f"{source} has no {named}"
                body = getattr(found[0], "body", [])


def test_every_page_is_in_the_site_once_and_every_decision_in_its_index() -> None:
    site = (ROOT / "zensical.toml").read_text()
    for path in DOCS.rglob("*.md"):
        if name(path) not in MADE_LATER:
            assert site.count(f'"{path.relative_to(DOCS)}"') == 1, path
    for page in re.findall(r'"([\w/-]+\.md)"', site):
        assert (DOCS / page).exists() or f"docs/{page}" in MADE_LATER, page
    index = (DOCS / "decisions/index.md").read_text()
    for path in (DOCS / "decisions").glob("*.md"):
        assert path.name == "index.md" or f"({path.name})" in index
        if path.name[0].isdigit():
            headings = re.findall(r"^## (.*)", path.read_text(), re.MULTILINE)
            assert headings == ["Context", "Choice", "Cost"], path.name


def test_site_needs_nothing_from_elsewhere() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert site["theme"]["font"] is False
    for path in PAGES:
        assert "```mermaid" not in path.read_text(), "its script would be fetched from elsewhere"


def test_architecture_stays_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) < 300


def test_files_and_names_of_the_code_map_exist() -> None:
    """A file stands in the folder that its section is about; `Class.name` is in the code."""
    code = "\n".join(path.read_text() for path in (ROOT / "raftmq").rglob("*.py"))
    missing = []
    section = re.split(r"^#+ ", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    for text in section:
        heading, _, body = text.partition("\n")
        folders = [ROOT / name for name in re.findall(r"`(raftmq/\w+)`", heading)] or [ROOT]
        for name in set(re.findall(r"`([a-z_/]+\.py)`", body)):
            is_there = any((top / name).exists() for top in (ROOT, ROOT / "raftmq", *folders))
            if not is_there and not any(list(top.rglob(name)) for top in folders):
                missing.append(f"{name}, of {heading}")
        for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", body):
            if f"class {owner}" not in code or not re.search(rf"\b{name}\b", code):
                missing.append(f"{owner}.{name}, of {heading}")
    assert not missing


def source_words() -> set[str]:
    """All words of the code, and of the names of its files and folders."""
    files = [ROOT / "Makefile", ROOT / "pyproject.toml", DOCS / "wire.cddl", *DOCS.glob("*.py")]
    for folder in ("raftmq", "tests", "bench", "deploy"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".toml")]
    texts = [text for path in files for text in (name(path), path.read_text())]
    return {word for text in texts for word in re.findall(r"\b[A-Za-z_]\w+", text)}


def test_words_in_backticks_of_architecture_and_tour_are_in_the_code() -> None:
    code = source_words()
    for path in (ROOT / "ARCHITECTURE.md", *(DOCS / "tour").glob("*.md")):
        for quoted in re.findall(r"`([^`\n]+)`", prose(path)):
            missing = set(re.findall(r"\b[A-Za-z_]\w+", quoted)) - code
            assert not missing, f"{name(path)}: `{quoted}`: {missing}"


def faults_below(fault: type[Exception]) -> set[type[Exception]]:
    """The class and all its subclasses in raftmq."""
    classes = {fault}.union(*(faults_below(each) for each in fault.__subclasses__()))
    return {each for each in classes if each.__module__.startswith("raftmq.")}


def test_faults_that_end_a_node_are_the_rows_of_the_table_of_operations() -> None:
    for module in pkgutil.walk_packages(broker.__path__, f"{broker.__name__}."):
        importlib.import_module(module.name)
    # Records that retention took are refused to their readers; the base is never raised.
    ending = faults_below(LogFault) - {LogFault, Dropped} | {CannotListen, UnsupportedVersion}
    page = (DOCS / "operations.md").read_text()
    table = page.split("### A node will not start or has stopped")[1].split("\n### ")[0]
    named = re.findall(r"`([A-Z]\w+)`", " ".join(first_column(table)))
    assert sorted(named) == sorted(fault.__name__ for fault in ending)


def test_exceptions_are_caught_where_the_page_for_contributors_says() -> None:
    sources = [
        path
        for path in (ROOT / "raftmq").rglob("*.py")
        if "chaos" not in path.relative_to(ROOT).parts
    ]
    catching = {name(path) for path in sources if "except Exception" in path.read_text()}
    line = re.search(
        r"^- \*\*`except Exception`\*\*.*", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert line
    assert catching == set(re.findall(r"`(raftmq/[\w/]+\.py)`", line[0]))


def test_make_targets_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(), re.MULTILINE):
            is_there = re.search(rf"^{target}:", makefile, re.MULTILINE)
            assert is_there, f"{name(path)}: make {target}"
