"""The README and the chapter on chaos, played line by line as printed.

Other tests play the other chapters: `test_chapter.py` and `docs/chapters.py` the bug,
`tests/chaos/plugin/test_examples.py` the service, `test_soak_finds.py` the soak's page.
"""

from pathlib import Path

import pytest

from raftmq.chaos.real.network.namespaces import why_no_namespaces
from raftmq.cli.exits import ExitCode
from tests.pages import Reader

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.mark.campaign
def test_chaos_of_the_readme_plays(reader: Reader) -> None:
    start, end = "## Breaking it on purpose", "## Into Spark"
    shown = reader.play("README.md", start=start, end=end)
    assert reader.typed == 3
    assert "20 seeds: 20 valid" in shown
    assert "2 seeds: 2 valid" in shown
    assert "1 seed: 1 valid" in shown


@pytest.mark.campaign
def test_chapter_on_chaos_plays(reader: Reader) -> None:
    if why_no_namespaces():
        reader.codes["--network namespaces"] = ExitCode.USAGE
    shown = reader.play("docs/chaos/index.md")
    assert reader.typed > 7
    assert "isolate-node" in shown
    assert (reader.folder / "page.html").exists()
    assert (reader.folder / "found" / "campaign.json").exists()
