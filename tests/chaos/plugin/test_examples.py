"""The examples of the docs do what the docs say of them."""

from importlib import import_module
from pathlib import Path

import pytest

# A session in this process forgets what it imported; numpy cannot be loaded twice.
for name in ("nemesis", "verdicts"):
    import_module(f"raftmq.chaos.{name}")

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parent / "examples"


def test_plain_queue_that_overwrites_is_found_when_its_consumer_hangs(
    pytester: pytest.Pytester,
) -> None:
    (pytester.path / "test_ring.py").write_text((EXAMPLES / "ring.py").read_text())
    done = pytester.runpytest("--chaos-seed", "0", "--chaos-artifacts=kept")
    done.assert_outcomes(failed=1)
    assert "lost-middle" in done.stdout.str()
    pages = list((pytester.path / "kept").glob("*/report.html"))
    assert len(pages) == 1
    assert all("consumer-hangs" in page.read_text() for page in pages)


def test_plain_queue_that_says_when_it_is_full_passes(pytester: pytest.Pytester) -> None:
    text = (EXAMPLES / "ring.py").read_text()
    mended = text.replace("> len(self._cells)", ">= len(self._cells)")
    assert mended != text
    (pytester.path / "test_ring.py").write_text(mended)
    pytester.runpytest("--chaos-seed", "0").assert_outcomes(passed=1)


@pytest.mark.process
def test_plain_queue_whose_test_ends_early_lets_pytest_end(pytester: pytest.Pytester) -> None:
    (pytester.path / "test_ring.py").write_text((EXAMPLES / "ring.py").read_text())
    done = pytester.runpytest_subprocess("--chaos-faults", "no-such-fault", timeout=20)
    done.assert_outcomes(failed=3)


@pytest.mark.campaign
@pytest.mark.process
def test_service_on_a_real_cluster_books_each_payment_once_under_faults(
    pytester: pytest.Pytester,
) -> None:
    for name, copy in (("bookkeeper.py", "bookkeeper.py"), ("payments.py", "test_payments.py")):
        (pytester.path / copy).write_text((EXAMPLES / name).read_text())
    done = pytester.runpytest_subprocess("--chaos-seed", "1", "--chaos-artifacts=kept", "-v")
    done.assert_outcomes(passed=1)


def made_up(pytester: pytest.Pytester, before: str = "", after: str = "") -> None:
    """The example in the simulated world, perhaps with a part of it replaced."""
    text = (EXAMPLES / "made_up.py").read_text()
    assert before in text
    (pytester.path / "test_made_up.py").write_text(text.replace(before, after))


def test_service_in_the_simulated_world_books_each_payment(pytester: pytest.Pytester) -> None:
    made_up(pytester)
    done = pytester.runpytest_subprocess("--chaos-seeds", "0..1")
    done.assert_outcomes(passed=2)


@pytest.mark.campaign
def test_service_that_commits_before_it_books_is_found_and_found_again(
    pytester: pytest.Pytester,
) -> None:
    # The line that commits moves up, before the loop that books.
    made_up(
        pytester,
        "                for payment in payments:",
        "                await consumer.commit()\n                for payment in payments:",
    )
    arguments = ("--chaos-seeds", "9..10", "--chaos-artifacts=kept")
    first = pytester.runpytest_subprocess(*arguments)
    text = first.stdout.str()
    assert "lost-middle" in text
    seeds = {line.split()[1] for line in first.outlines if line.startswith("seed ")}
    pages = {
        page.parent.name: page.read_text() for page in pytester.path.glob("kept/*/report.html")
    }
    assert len(pages) == len(seeds) > 0
    assert all("client-crash" in page for page in pages.values())
    second = pytester.runpytest_subprocess(*arguments)
    again = {
        page.parent.name: page.read_text() for page in pytester.path.glob("kept/*/report.html")
    }
    assert {line.split()[1] for line in second.outlines if line.startswith("seed ")} == seeds
    assert again == pages, "the same seeds leave the same pages, byte for byte"


@pytest.mark.process
def test_failure_on_a_real_cluster_keeps_what_its_nodes_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import raftmq

        @pytest.fixture
        def raftmq_settings():
            return {"raft": {"tick_ms": 40}}

        @pytest.mark.chaos(nodes=1)
        def test_it(raftmq_cluster, history):
            history.expect()
            assert raftmq_cluster.nodes == [1]
            assert "tick_ms = 40" in raftmq_cluster.config(1).read_text()
            with raftmq.blocking.connect(raftmq_cluster.url) as mq:
                mq.admin.create_topic("t")
            assert False, "for its nodes' last words"
        """
    )
    done = pytester.runpytest_subprocess("--chaos-artifacts=kept")
    done.assert_outcomes(failed=1)
    assert "for its nodes' last words" in done.stdout.str()
    (log,) = pytester.path.glob("kept/*/node-1.log")
    assert "serv" in log.read_text()
