"""The examples of the docs do what the docs say of them."""

from importlib import import_module
from pathlib import Path

import pytest

# A session in this process forgets what it imported; numpy cannot be loaded twice.
for name in ("player", "verdicts"):
    import_module(f"raftmq.chaos.{name}")

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parent / "examples"


def test_plain_queue_that_overwrites_is_found_when_its_consumer_hangs(
    pytester: pytest.Pytester,
) -> None:
    (pytester.path / "test_ring.py").write_text((EXAMPLES / "ring.py").read_text())
    done = pytester.runpytest("--chaos-seeds", "0..1", "--chaos-artifacts=kept")
    done.assert_outcomes(failed=2)
    assert "lost-middle" in done.stdout.str()
    pages = list((pytester.path / "kept").glob("*/report.html"))
    assert len(pages) == 2
    assert all("consumer-hangs" in page.read_text() for page in pages)


def test_plain_queue_that_says_when_it_is_full_passes(pytester: pytest.Pytester) -> None:
    text = (EXAMPLES / "ring.py").read_text()
    mended = text.replace("> len(self._cells)", ">= len(self._cells)")
    assert mended != text
    (pytester.path / "test_ring.py").write_text(mended)
    pytester.runpytest("--chaos-seed", "0").assert_outcomes(passed=1)


@pytest.mark.process
def test_service_on_a_real_cluster_books_each_payment_once_under_faults(
    pytester: pytest.Pytester,
) -> None:
    for name, copy in (("bookkeeper.py", "bookkeeper.py"), ("payments.py", "test_payments.py")):
        (pytester.path / copy).write_text((EXAMPLES / name).read_text())
    done = pytester.runpytest_subprocess("--chaos-seed", "1", "--chaos-artifacts=kept", "-v")
    done.assert_outcomes(passed=1)
