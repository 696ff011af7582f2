"""Options for the whole suite, and the kinds of faults that never struck in it."""

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from raftmq.chaos.tally import VARIABLE, summary

# A busy machine is no finding.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what golden scripts print into them"
    )


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background ignores Ctrl-C, and so would the processes that tests end by Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Workers of pytest-xdist, campaigns and nodes inherit the variable.
    if not hasattr(config, "workerinput"):
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="raftmq-tally-")


def pytest_collection_finish() -> None:
    # Hundreds of thousands of objects of the collected tests live to the end: no collection of
    # garbage needs to look at them again.
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = summary(Path(os.environ[VARIABLE]))
    if "not campaign" in terminalreporter.config.option.markexpr:
        # Most kinds are the campaigns' affair.
        lines = [line for line in lines if not line.startswith(" ")]
    if lines:
        terminalreporter.section("faults that struck")
        for line in lines:
            terminalreporter.line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(VARIABLE), ignore_errors=True)
