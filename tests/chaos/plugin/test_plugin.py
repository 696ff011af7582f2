"""The plugin as a user meets it: tests of tests, each in a session of its own."""

import ast
import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from raftmq.chaos import plugin

# A session in this process forgets what it imported; numpy cannot be loaded twice.
for name in ("nemesis", "verdicts"):
    import_module(f"raftmq.chaos.{name}")

pytest_plugins = ["pytester"]

GOOD_QUEUE = """
    import collections, pytest

    def work(history, *, loses=()):
        queue = collections.deque()
        for number in range(20):
            with history.call(0, "send", key="q", value=number) as call:
                if number not in loses:
                    queue.append(number)
        with history.call(1, "poll", key="q") as call:
            call.ok_many([("q", value, None) for value in queue])
"""


def test_each_seed_of_the_marker_is_a_test_with_the_seed_in_its_name(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.chaos(seeds=3)
        def test_counted(chaos_seed):
            assert chaos_seed in (0, 1, 2)

        @pytest.mark.chaos(seeds=[7, 11])
        def test_listed():
            pass

        @pytest.mark.chaos(seeds="1..3")
        def test_written(chaos_seed):
            assert chaos_seed in (1, 2, 3)
        """
    )
    done = pytester.runpytest("-v")
    done.assert_outcomes(passed=8)
    done.stdout.fnmatch_lines(["*test_counted?seed-2? PASSED*", "*test_listed?seed-11? PASSED*"])


@pytest.mark.parametrize(
    ("option", "names"),
    [("--chaos-seed=41", ["seed-41"]), ("--chaos-seeds=5..6", ["seed-5", "seed-6"])],
)
def test_options_replace_the_seeds_of_the_marker(
    pytester: pytest.Pytester, option: str, names: list[str]
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.chaos(seeds=3)
        def test_it(chaos_seed):
            pass
        """
    )
    done = pytester.runpytest("-v", option)
    assert re.findall(r"test_it\[(.*)\] PASSED", done.stdout.str()) == names


@pytest.mark.parametrize("option", ["--chaos-seeds=5..1", "--chaos-seeds=1..", "--chaos-seeds=x"])
def test_seeds_that_cannot_be_read_are_a_usage_error(
    pytester: pytest.Pytester, option: str
) -> None:
    pytester.makepyfile("def test_it(): pass")
    done = pytester.runpytest(option)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--chaos-seeds*"])


def test_marker_without_a_seed_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.chaos(seeds=0)
        def test_none(chaos_seed):
            pass
        """
    )
    done = pytester.runpytest()
    assert done.ret != pytest.ExitCode.OK
    assert "test_none: seeds=0 plays nothing: give 1 or more" in done.stdout.str()


@pytest.mark.parametrize(
    ("seeds", "why"),
    [
        ('"1.3"', "seeds='1.3' is none of 1..100, 1.. and 1,5,9"),
        ('"1.."', "seeds=1.. has no end"),
        ('["1"]', "seeds=['1'] has '1', which is no seed: seeds are numbers"),
        ("2.5", "seeds=2.5 is none of 20, [7, 11] and '1..50'"),
    ],
)
def test_seeds_of_a_marker_that_cannot_be_read_are_refused(
    pytester: pytest.Pytester, seeds: str, why: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.chaos(seeds={seeds})
        def test_none():
            pass
        """
    )
    done = pytester.runpytest()
    assert done.ret != pytest.ExitCode.OK
    assert f"test_none: {why}" in done.stdout.str()


def test_marker_with_an_unknown_word_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.chaos(seed=3)
        def test_it():
            pass
        """
    )
    done = pytester.runpytest()
    assert done.ret != pytest.ExitCode.OK
    shown = done.stdout.str()
    assert "the marker has no seed; the marker is chaos(seeds, faults, time, nodes)" in shown
    assert "Traceback" not in shown + done.stderr.str()


def test_history_that_keeps_its_promises_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    def test_queue(history):
        work(history)
    """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_lost_message_fails_the_test_explains_itself_and_fails_again_by_the_line_it_prints(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    @pytest.mark.chaos(seeds=10)
    def test_queue(history, chaos_seed):
        work(history, loses=[12] if chaos_seed == 4 else [])
    """
    )
    done = pytester.runpytest()
    done.assert_outcomes(passed=9, failed=1)
    text = done.stdout.str()
    assert "the history is invalid" in text
    assert "lost-middle: 12 of process 0 was acknowledged, never delivered" in text
    assert "the operations that show it" in text
    (line,) = re.findall(r"^again: (pytest .*)$", text, re.MULTILINE)
    assert "seed-4" in line
    again = pytester.runpytest(*shlex.split(line)[1:])
    again.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*seeds that failed*", "seed 4  *test_queue?seed-4?*"])


def test_failure_keeps_history_and_page_where_they_are_asked_for(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    def test_queue(history):
        work(history, loses=[3])

    def test_other(history):
        work(history)
        assert False, "for another reason"
    """
    )
    done = pytester.runpytest("--chaos-artifacts=kept")
    done.assert_outcomes(failed=2)
    folders = sorted(path.name for path in (pytester.path / "kept").iterdir())
    assert [name.split("test_")[-1] for name in folders] == ["other", "queue"]
    for name in folders:
        folder = pytester.path / "kept" / name
        assert {file.name for file in folder.iterdir()} == {"history.parquet", "report.html"}
    pages = [(pytester.path / "kept" / name / "report.html").read_text() for name in folders]
    assert ["INVALID" in page for page in pages] == [False, True]
    assert "lost-middle" in pages[1]
    assert "pytest" in pages[1]


def test_history_that_shows_nothing_fails_unless_the_test_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        def test_forgotten(history):
            pass

        def test_nothing_acknowledged(history):
            with history.call(0, "send", value=1, failed=(ValueError,)):
                raise ValueError
            with history.call(0, "poll") as call:
                call.ok_many([])

        def test_meant(history):
            history.expect()
        """
    )
    done = pytester.runpytest()
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(["*the history is empty*", "*no send was acknowledged*"])


def test_test_chooses_what_judges_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    from functools import partial
    from raftmq.checkers import check_total_queue

    @pytest.mark.parametrize("is_exactly_once", [False, True])
    def test_queue(history, is_exactly_once):
        history.expect(partial(check_total_queue, is_exactly_once=is_exactly_once))
        work(history)
        with history.call(1, "poll", key="q") as call:
            call.ok_many([("q", 5, None)])
    """
    )
    done = pytester.runpytest("-v")
    done.stdout.fnmatch_lines(["*False? PASSED*", "*True? FAILED*", "*duplicated*"])


def test_exceptions_say_how_a_call_ended(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_it(history):
            history.expect()
            for value, error in enumerate([None, KeyError, TimeoutError]):
                with history.call(0, "send", value=value, failed=(KeyError,),
                                  unknown=(TimeoutError,)):
                    if error:
                        raise error
            with pytest.raises(ZeroDivisionError):
                with history.call(0, "send", value=9, failed=(KeyError,)):
                    1 / 0
            assert history.history().outcomes().tolist() == [1, 2, 3, 3]
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_asynchronous_test_is_judged_when_it_is_over(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    import anyio

    @pytest.mark.anyio
    @pytest.mark.chaos(seeds=2)
    async def test_queue(history, chaos_seed):
        await anyio.sleep(0)
        work(history, loses=[5] if chaos_seed else [])
    """
    )
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "trio"
        """
    )
    done = pytester.runpytest()
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*lost-middle: 5 of process 0*"])


# The nemesis

WITH_FAULTS = """
    import time
    import pytest

    @pytest.mark.chaos(faults=["drop", "dark"], time=1.2)
    def test_it(nemesis, history):
        history.expect()
        seen = []
        nemesis.can("drop", lambda event: seen.append("drop"), what="something is dropped")
        nemesis.can("dark", lambda event: seen.append("dark"), lambda event: seen.append("light"))
        nemesis.heals(lambda: seen.append("healed"))
        with nemesis:
            assert nemesis.wait(10)
        assert seen[-1] == "healed"
        assert seen.count("dark") == seen.count("light")
        assert len(seen) > 1
        assert [one.what for one in nemesis.timeline][-1] == "everything is healed"
        schedule = nemesis.schedule
        assert [e.fault for e in schedule.events] and schedule == nemesis.played
"""


def test_nemesis_plays_faults_of_ones_own_and_heals(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WITH_FAULTS)
    pytester.runpytest().assert_outcomes(passed=1)


def test_fault_that_cannot_be_made_fails_and_names_those_that_can(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(WITH_FAULTS)
    done = pytester.runpytest("--chaos-faults", "kill", "--chaos-seed", "1")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["faults of the marker*cannot make kill", "known: dark, drop*"])
    assert "Error" not in done.stdout.str(), "a traceback tells nothing of a wrong name"


def test_fault_that_is_misspelt_is_told_the_nearest_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WITH_FAULTS)
    done = pytester.runpytest("--chaos-faults", "drap", "--chaos-seed", "1")
    done.stdout.fnmatch_lines(["*cannot make drap; did you mean drop?"])


def test_block_that_is_left_early_is_healed_and_an_error_of_a_fault_fails_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.chaos(time=60)
        def test_left(nemesis):
            healed = []
            nemesis.can("dark", lambda event: None, lambda event: None)
            nemesis.heals(lambda: healed.append(1))
            with pytest.raises(KeyError):
                with nemesis:
                    raise KeyError
            assert healed == [1]

        @pytest.mark.chaos(time=1)
        def test_broken(nemesis):
            healed = []
            def begin(event):
                raise RuntimeError("no such knob")
            nemesis.can("dark", begin)
            nemesis.heals(lambda: healed.append(1))
            with nemesis:
                nemesis.wait(10)
                assert healed == [1]
        """
    )
    done = pytester.runpytest()
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*RuntimeError: no such knob*"])


def test_failure_under_faults_shows_them_in_report_and_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    @pytest.mark.chaos(seeds=[3], time=1.2)
    def test_queue(history, nemesis):
        nemesis.can("drop-backlog", lambda event: None, what="the backlog is dropped")
        with nemesis:
            nemesis.wait(5)
        work(history, loses=[8])
    """
    )
    done = pytester.runpytest("--chaos-artifacts=kept")
    done.assert_outcomes(failed=1)
    assert re.search(r"^\d+\.\d+s drop-backlog$", done.stdout.str(), re.MULTILINE)
    (report,) = (pytester.path / "kept").glob("*/report.html")
    drawn = re.search(r'id="data">(.*?)</script>', report.read_text(), re.DOTALL)
    assert drawn is not None
    bands = json.loads(drawn[1])["bands"]
    assert {band[0] for band in bands} == {"drop-backlog"}


# Beside other plugins


def test_seeds_are_spread_over_workers_of_xdist_and_the_failed_ones_are_listed(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    @pytest.mark.chaos(seeds=6)
    def test_queue(history, chaos_seed):
        work(history, loses=[12] if chaos_seed in (1, 4) else [])
    """
    )
    done = pytester.runpytest_subprocess(
        "-n2", "-p", "no:hypothesispytest", "--chaos-artifacts=kept"
    )
    done.assert_outcomes(passed=4, failed=2)
    lines = [line for line in done.outlines if re.match(r"seed \d+  ", line)]
    assert sorted(line.split()[1] for line in lines) == ["1", "4"]
    assert len(list((pytester.path / "kept").glob("*/report.html"))) == 2


def test_test_that_times_out_leaves_its_history(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GOOD_QUEUE
        + """
    import time

    @pytest.mark.timeout(1, method="signal", func_only=True)
    def test_queue(history):
        work(history)
        time.sleep(30)
    """
    )
    done = pytester.runpytest_subprocess("--chaos-artifacts=kept")
    done.assert_outcomes(failed=1)
    assert "Timeout" in done.stdout.str()
    assert len(list((pytester.path / "kept").glob("*/history.parquet"))) == 1


def test_names_of_pytest_that_it_needs_when_loaded_are_in_old_ones_too() -> None:
    # It is loaded wherever raftmq is installed: a name that pytest lacks would end every run.
    since_7 = {
        *("Config", "FixtureRequest", "Function", "Metafunc", "Parser", "StashKey", "UsageError"),
        *("fail", "fixture", "hookimpl", "skip"),
    }
    tree = ast.parse(Path(plugin.__file__).read_text())
    needed = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "pytest"
    }
    assert "fixture" in needed
    assert needed <= since_7


def test_pytest_that_uses_nothing_of_it_loads_nothing_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it():\n"
        "    assert 'raftmq.chaos.plugin' in sys.modules\n"
        "    unwanted = {'numpy', 'trio', 'msgspec', 'raftmq.checkers.history'}\n"
        "    assert not unwanted & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:anyio", "-p", "no:hypothesispytest"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
