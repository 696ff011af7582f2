"""The house rules that a machine can check: sizes, headings, links, and imports of the cores."""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from raftmq.version import VERSION

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
FOLDER_FILES_MAX = 17
FULLER_FOLDERS = {
    # Read together, beside the paper.
    "raftmq/consensus": 27,
    "raftmq/log": 21,
    "raftmq/chaos/workloads": 19,
}
"""Folders with more modules than an eye takes in, and how many: none may grow."""
LINKS = ["chaos", "consensus", "filters", "log", "pop"]
CORES = [
    f"raftmq.{core}"
    for core in ("batch", "consensus", "filters", "machine", "pop", "log", "results")
]

SOURCES = sorted(
    path
    for folder in ("raftmq", "tests", "bench")
    for path in (ROOT / folder).rglob("*.py")
    if not path.is_symlink()
)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 10


def test_no_file_is_too_long() -> None:
    lines = {name(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert not {path: count for path, count in lines.items() if count > FILE_LINES_MAX}


def test_no_file_holds_the_marks_of_a_merge() -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"]
    for path in [*SOURCES, *pages, *(ROOT / "docs").rglob("*.md")]:
        assert "\n>>>>>>> " not in path.read_text(), f"{name(path)}: a conflict was not resolved"


def test_folder_holds_as_many_modules_as_an_eye_takes_in() -> None:
    count = Counter(name(path.parent) for path in SOURCES if path.is_relative_to(ROOT / "raftmq"))
    full = {folder: held for folder, held in count.items() if held > FOLDER_FILES_MAX}
    assert full == FULLER_FOLDERS


def test_no_function_is_too_long() -> None:
    lines: dict[str, int] = {}
    for path in SOURCES:
        for function in functions(ast.parse(path.read_text())):
            assert function.end_lineno is not None
            lines[f"{name(path)}: {function.name}"] = function.end_lineno - function.lineno + 1
    assert len(lines) > len(SOURCES)
    assert not {where: count for where, count in lines.items() if count > FUNCTION_LINES_MAX}


def test_each_file_says_in_its_first_line_what_it_is() -> None:
    texts = {name(path): path.read_text() for path in SOURCES}
    silent = [
        path
        for path, text in texts.items()
        if text.strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert not silent


def test_each_file_name_says_what_the_file_is() -> None:
    vague = {"utils", "helpers", "misc", "common", "manager"}
    assert not [name(path) for path in SOURCES if path.stem in vague]


@pytest.mark.parametrize("folder", LINKS)
def test_root_link_leads_into_the_package(folder: str) -> None:
    link = ROOT / folder
    assert link.is_symlink()
    assert link.readlink() == Path("raftmq") / folder


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    folders = [path for top in ("tests", "raftmq") for path in (ROOT / top).rglob("*/")]
    names = {path.name for path in folders if path.is_dir() and path.name != "__pycache__"}
    assert {"log", "consensus", "pop"} <= names
    assert not [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


@pytest.mark.parametrize("core", CORES)
def test_core_imports_without_the_outside_world(core: str) -> None:
    forbidden = ["trio", "anyio", "asyncio", "socket", "threading", "random", "logging"]
    # Modules that the standard library and numpy load themselves do not count.
    program = (
        "import sys, numpy, msgspec, cbor2, google_crc32c, importlib\n"
        "before = set(sys.modules)\n"
        f"importlib.import_module({core!r})\n"
        f"print(sorted((set(sys.modules) - before) & set({forbidden!r})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: set[str]) -> set[str]:
    """The modules that a file imports, also for type checkers, also in the body of a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            folder = ".".join(path.relative_to(ROOT).parts[: -node.level]) if node.level else ""
            base = ".".join(filter(None, (folder, node.module)))
            # A module of a package is imported from the package, and nothing else of it is used.
            names = {f"{base}.{each.name}" for each in node.names}
            found |= names if names <= modules else {base, *names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & modules


def test_no_import_leads_back() -> None:
    # Imports for type checkers and lazy ones count: modules in a circle are one part in many files.
    paths = {module_name(path): path for path in (ROOT / "raftmq").rglob("*.py")}
    graph = {name: imported(path, set(paths)) for name, path in paths.items()}
    assert sum(map(len, graph.values())) > 3000
    TopologicalSorter(graph).prepare()


def test_version_of_the_package_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


def test_package_import_loads_neither_trio_nor_numpy() -> None:
    program = "import sys, raftmq; print(sorted({'trio', 'anyio', 'numpy'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_client_loads_neither_trio_nor_numpy_before_it_runs() -> None:
    heavy = "{'trio', 'asyncio', 'numpy', 'pyarrow'}"
    program = f"import sys, raftmq; raftmq.connect; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    import zipfile

    folder = tmp_path_factory.mktemp("wheel")
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pytest.skip("uv is not in this environment: run the tests with `make test`")
    subprocess.run(
        [str(uv), "build", "--wheel", "--quiet", "--out-dir", str(folder)], check=True, cwd=ROOT
    )
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_wheel_holds_every_module_and_nothing_beside_the_package(wheel_names: list[str]) -> None:
    modules = {name(path) for path in SOURCES if path.is_relative_to(ROOT / "raftmq")}
    assert modules <= set(wheel_names)
    tops = {entry.split("/")[0] for entry in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "pyspark_raftmq.py",
        "raftmq",
    }
