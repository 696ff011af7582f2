"""The pytest plugin: chaos tests of raftmq, of services on top of it, and of anything else.

    @pytest.mark.chaos(seeds=20, faults=["kill", "pause"], time=10)
    def test_no_order_is_lost(raftmq_cluster, nemesis, history):
        with nemesis:
            ...                                  # call the service, record each call in `history`

pytest finds the plugin wherever raftmq is installed; the rest of raftmq is imported only when a
test uses a fixture.

| fixture | is |
|---|---|
| `history` | a recorder; its history is judged at the test's end (`raftmq.checkers.journal`) |
| `nemesis` | plays faults in real time (`raftmq.chaos.nemesis`) |
| `raftmq_cluster` | real processes (`raftmq.testing.Cluster`) |
| `sim_cluster` | whole brokers in a simulated world (`raftmq.chaos.sim_cluster`) |
| `chaos_seed` | the seed of this test |

| marker `chaos` | is |
|---|---|
| `seeds` | a number n (seeds 0 to n-1), or a list: `[7, 11]`, `"1..50"`; test names: `seed-7` |
| `faults` | names of the catalogue or of the test's own faults; default: all that can be made |
| `time` | seconds of faults and calm, in the time of the world |
| `nodes` | number of nodes of the cluster |

| option | does |
|---|---|
| `--chaos-seed N` | one seed for every marked test |
| `--chaos-seeds 1..50` | these seeds instead of the marker's |
| `--chaos-faults a,b` | these faults instead of the marker's |
| `--chaos-artifacts DIR` | keeps history and page of each failure |

Invariants:
- A test with a history that is invalid, or that could not have shown anything, fails.
- The set of tests depends on marker and options alone, as pytest-xdist requires.
- Every pytest from 7.4 on can load the plugin: pytest loads it wherever raftmq is installed.

Sources: hypothesis and pytest-repeat for seeds as parameters; Jepsen's test map.
"""

import shlex
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.chaos.plugin_run import Run

if TYPE_CHECKING:
    from raftmq.chaos.nemesis import Nemesis
    from raftmq.chaos.sim_cluster import SimCluster
    from raftmq.checkers.journal import Journal
    from raftmq.testing import Cluster

SECONDS = 10.0
"""Time of a test whose marker names none, in seconds."""

NODES = 3
MARKER = (
    "chaos(seeds, faults, time, nodes): run the test once for each seed, with these faults "
    "for `time` seconds"
)
MARKER_WORDS = "faults of the marker `chaos`, or of --chaos-faults"
_KNOWN = {"seeds", "faults", "time", "nodes"}


_RUN = pytest.StashKey[Run]()


# -- options, markers, seeds ---------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("raftmq chaos")
    group.addoption("--chaos-seed", type=int, metavar="N", help="run chaos tests with this seed")
    group.addoption("--chaos-seeds", metavar="A..B", help="run chaos tests with these seeds")
    group.addoption("--chaos-faults", metavar="NAMES", help="use these faults, with commas")
    group.addoption("--chaos-artifacts", metavar="DIR", help="keep histories and pages of failures")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse options that cannot be parsed."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("--chaos-seeds") is not None:
        _seeds(config, {})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each seed of a marked test."""
    marker = metafunc.definition.get_closest_marker("chaos")
    if marker is None:
        return
    unknown = [*map(repr, marker.args), *sorted(set(marker.kwargs) - _KNOWN)]
    if unknown:
        where, what = metafunc.definition.nodeid, ", ".join(unknown)
        # pytest would show a UsageError raised here as a crash of pytest.
        pytest.fail(f"{where}: the marker has no {what}; the marker is {MARKER}", pytrace=False)
    if "chaos_seed" not in metafunc.fixturenames:
        metafunc.fixturenames.append("chaos_seed")
    try:
        seeds = _seeds(metafunc.config, marker.kwargs)
    except ValueError as error:
        pytest.fail(f"{metafunc.definition.nodeid}: seeds={error}", pytrace=False)
    names = [f"seed-{seed}" for seed in seeds]
    metafunc.parametrize("chaos_seed", seeds, ids=names, indirect=True)


def _seeds(config: pytest.Config, marked: Mapping[str, Any]) -> Sequence[int]:
    one, some = config.getoption("--chaos-seed"), config.getoption("--chaos-seeds")
    if one is not None:
        return [one]
    if some is None:
        return _marked_seeds(marked.get("seeds", 1))
    try:
        return _written_seeds(some)
    except ValueError as error:
        raise pytest.UsageError(f"--chaos-seeds {error}") from None


def _marked_seeds(wanted: object) -> list[int]:
    """The seeds of a marker. Raises ValueError if there are none, or some are no integers."""
    if isinstance(wanted, str):
        return _written_seeds(wanted)
    given = range(wanted) if isinstance(wanted, int) else wanted
    if not isinstance(given, Iterable):
        raise ValueError(f"{wanted!r} is none of 20, [7, 11] and '1..50'")
    seeds: list[int] = []
    for seed in given:
        if not isinstance(seed, int):
            raise ValueError(f"{wanted!r} has {seed!r}, which is no seed: seeds are numbers")
        seeds.append(seed)
    # pytest would skip a test without seeds: a typing error would look like a clean run.
    if not seeds:
        raise ValueError(f"{wanted!r} plays nothing: give 1 or more")
    return seeds


def _written_seeds(text: str) -> list[int]:
    from raftmq.chaos.seeds import parse

    seeds, total = parse(text)
    if total is None:
        raise ValueError(f"{text} has no end")
    return list(seeds)


def _faults(config: pytest.Config, marked: Mapping[str, Any]) -> tuple[str, ...]:
    wanted = config.getoption("--chaos-faults") or marked.get("faults", ())
    names = wanted.split(",") if isinstance(wanted, str) else wanted
    return tuple(name.strip() for name in names if name.strip())


# -- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def chaos_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test; without the marker: `--chaos-seed`, or 0."""
    seed = getattr(request, "param", None)
    return seed if seed is not None else request.config.getoption("--chaos-seed") or 0


@pytest.fixture
def _chaos_run(request: pytest.FixtureRequest, chaos_seed: int) -> Run:
    marker = request.node.get_closest_marker("chaos")
    marked = marker.kwargs if marker is not None else {}
    run = Run(
        chaos_seed,
        _faults(request.config, marked),
        float(marked.get("time", SECONDS)),
        int(marked.get("nodes", NODES)),
    )
    request.node.stash[_RUN] = run
    return run


@pytest.fixture
def history(_chaos_run: Run) -> "Journal":
    """A recorder of calls; the test fails if its history breaks a promise, or shows nothing."""
    from raftmq.checkers.journal import Journal

    _chaos_run.journal = Journal()
    return _chaos_run.journal


@pytest.fixture
def nemesis(request: pytest.FixtureRequest, _chaos_run: Run) -> "Nemesis":
    """Plays faults inside `with nemesis:`; breaks a `raftmq_cluster` if the test uses one."""
    from raftmq.chaos.nemesis import Nemesis

    journal = request.getfixturevalue("history") if "history" in request.fixturenames else None
    clock = {} if journal is None else {"clock": journal.clock}
    made = Nemesis(
        seed=_chaos_run.seed, wanted=_chaos_run.faults, seconds=_chaos_run.seconds, **clock
    )
    made.nodes = _chaos_run.nodes
    if "raftmq_cluster" in request.fixturenames:
        from raftmq.chaos.process_faults import Processes

        Processes(request.getfixturevalue("raftmq_cluster"), made)
    _chaos_run.played = made
    return made


@pytest.fixture
def raftmq_settings() -> dict[str, dict[str, int | str]]:
    """Settings of `raftmq_cluster`, as tables; override this fixture to change them."""
    return {}


@pytest.fixture
def raftmq_cluster(
    _chaos_run: Run, tmp_path: Path, raftmq_settings: dict[str, dict[str, int | str]]
) -> "Iterator[Cluster]":
    """A cluster of real processes that is ready; the processes are killed when the test ends."""
    from anyio.from_thread import start_blocking_portal

    from raftmq.testing import cluster

    made = cluster(_chaos_run.nodes, folder=tmp_path / "raftmq", settings=raftmq_settings)
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(made) as nodes:
        _chaos_run.logs.append(lambda: {f"node-{n}.log": nodes.log(n) for n in nodes.nodes})
        yield nodes


@pytest.fixture
def sim_cluster(request: pytest.FixtureRequest, _chaos_run: Run) -> "SimCluster":
    """A cluster in a simulated world: add processes, then call `run`. Needs trio's event loop."""
    from raftmq.chaos.sim_cluster import SimCluster

    run = _chaos_run
    made = SimCluster(seed=run.seed, wanted=run.faults, seconds=run.seconds, nodes=run.nodes)
    if "history" in request.fixturenames:
        journal = request.getfixturevalue("history")
        made.on_clock.append(lambda clock: setattr(journal, "clock", clock))
    run.played = made
    return made


# -- what a test's history says ------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Judge the history after the test function has returned or raised."""
    try:
        result = yield
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        if _is_misnamed(pyfuncitem, error):
            # The marker or an option is wrong, not a line of the test: a traceback does not help.
            raise pytest.fail.Exception(f"{MARKER_WORDS}: {error}", pytrace=False) from None
        _tell(pyfuncitem, is_failed=True)
        raise
    complaint = _tell(pyfuncitem, is_failed=False)
    if complaint:
        pytest.fail(complaint, pytrace=False)
    return result


def _is_misnamed(item: pytest.Function, error: BaseException) -> bool:
    """Did the test end because the marker or an option names a fault that it cannot make?"""
    run = item.stash.get(_RUN, None)
    if run is None or run.played is None:
        return False
    from raftmq.chaos.nemesis import CannotBreak

    return isinstance(error, CannotBreak)


def _tell(item: pytest.Function, *, is_failed: bool) -> str:
    """Judge and keep a test's history; returns why the test fails, or an empty string."""
    run = item.stash.get(_RUN, None)
    if run is None:
        return ""
    from raftmq.chaos.verdicts import judged

    verdict = judged(run, title=item.nodeid, again=_again(item, run))
    if not is_failed and not verdict.complaint:
        return ""
    item.user_properties.append(("chaos_seed", run.seed))
    folder = item.config.getoption("--chaos-artifacts")
    lines = [f"again: {_again(item, run)}"]
    if folder is not None:
        kept = verdict.keep(Path(folder) / _file_name(item.nodeid))
        item.user_properties.append(("chaos_artifacts", str(kept)))
        lines.append(f"kept in {kept}")
    else:
        lines.append("--chaos-artifacts DIR keeps the history and its page")
    # A test that failed by itself stays the failure; the history's verdict is a remark.
    remark = [verdict.complaint] if is_failed and verdict.complaint else []
    item.add_report_section("call", "chaos", "\n".join([*verdict.lines, *remark, *lines]))
    return verdict.complaint


def _again(item: pytest.Function, run: Run) -> str:
    """The command that runs this test with this seed."""
    words = ["pytest", item.nodeid, "--chaos-seed", str(run.seed)]
    faults = item.config.getoption("--chaos-faults")
    return shlex.join([*words, *(["--chaos-faults", faults] if faults else [])])


def _file_name(node_id: str) -> str:
    """A test's name as the name of a folder."""
    kept = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in node_id)
    return kept.strip("-")


# pytest exports this type since 8.4 only; the quotes let older versions load the plugin.
def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """List the seeds that failed."""
    found = []
    for report in terminalreporter.getreports("failed"):
        properties = dict(report.user_properties)
        if "chaos_seed" in properties:
            found.append((report.nodeid, properties))
    if not found:
        return
    terminalreporter.section("raftmq chaos: seeds that failed")
    for node_id, properties in found:
        kept = properties.get("chaos_artifacts")
        where = f"  {kept}/report.html" if kept else ""
        terminalreporter.line(f"seed {properties['chaos_seed']}  {node_id}{where}")
