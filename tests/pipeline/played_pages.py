"""The README's block on Spark and the pages of the pipeline, played as `tests.pages` says.

`test_pages.py` runs this file in a process of its own, so that Spark starts once, in the folder and
beside the cluster that all pages share, as the reader's Spark does. Jobs run in this process, but
an endless `archive run`: Ctrl-C breaks the call of Java that the command waits in. The page on
reports waits for the end of a minute; here the report believes that it is two minutes later. The
page's record of a run that was killed is parsed only, but for the headings of its tables. The
synopsis of `cdc` is parsed, and the example below the synopsis is played.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pyarrow.dataset as ds
import pytest
from msgspec import structs

import raftmq
from raftmq import pipeline
from raftmq.cli.exits import ExitCode
from raftmq.client.message import QUEUE_BITS, format_id
from raftmq.pipeline.archive import manifest
from raftmq.pipeline.report import cluster_poll, rounds
from tests.pages import FENCE, ROOT, Reader, steps_of
from tests.pipeline.nodes import QUICK, Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

LATER_MS = 120_000


@dataclass
class Ends:
    """Whether a block of Python ended its session, which a reader then no longer has."""

    is_over: bool = False

    def __call__(self, *_: object) -> None:
        self.is_over = True


class SparkReader(Reader):
    """Has the Spark of all tests, and no session after a block that ended it."""

    def __init__(self, folder: Path, url: str, ends: Ends) -> None:
        super().__init__(folder, url)
        self._ends = ends

    def execute(self, body: str) -> str:
        self._ends.is_over = False
        shown = super().execute(body)
        if self._ends.is_over:
            del self.names["spark"]
        return shown


@pytest.fixture(scope="module")
def spark(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One Spark for all pages. Java and Spark's workers stay in the folder that they start in."""
    os.chdir(tmp_path_factory.mktemp("reader"))
    with pipeline.session("tests", memory="1g", settings=QUICK) as spark:
        yield spark


@pytest.fixture
def reader(
    spark: "SparkSession", nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """Reads on a cluster without topics and groups, in a folder without files."""
    ends = Ends()
    monkeypatch.setattr(type(spark), "__exit__", ends)
    with raftmq.blocking.connect(nodes.url) as mq:
        for topic in mq.admin.list_topics():
            mq.admin.delete_topic(topic.name)
        for group in mq.admin.consumer_groups():
            mq.admin.delete_consumer_group(group.name)
    reader = SparkReader(Path.cwd(), nodes.url, ends)
    reader.apart = {"archive run orders --to", "archive run orders payments --to lake  "}
    yield reader
    for path in Path.cwd().iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def has_files(pattern: str) -> Callable[[str], bool]:
    """Ctrl-C when there is such a file."""
    folder = Path.cwd()
    return lambda _: any(folder.glob(pattern))


def shows_windows(screen: str) -> bool:
    """Ctrl-C when the page of `live` has counted messages."""
    found = re.search(r"the page: (http\S+)", screen)
    if found is None:
        return False
    with urlopen(f"{found[1].rstrip('/')}/data.json") as answer:
        # Before the first batch the page has no data.
        return bool((json.load(answer) or {}).get("windows"))


def number_of(topic: str) -> int:
    """The number of a topic in the archive of the page."""
    return manifest.load(Path("lake")).topics[topic]


def stored(reader: Reader, topic: str) -> int:
    """How many messages the topic has."""
    with raftmq.blocking.connect(reader.url) as mq:
        return sum(queue.end for queue in mq.admin.describe_topic(topic).queues)


def test_page_on_traces_plays(reader: Reader) -> None:
    # The first page: a log tells of all that ever was, topics that other pages deleted too.
    reader.endless["--every"] = lambda screen: " built" in screen
    shown = reader.play("docs/pipeline/trace.md")
    assert re.search(r"\|billing\| +acked\| +4000\|", shown)


def test_spark_of_the_readme_plays(reader: Reader) -> None:
    reader.play("README.md", start="## In Python", end="Without `async`")
    reader.endless["pipeline live"] = shows_windows
    reader.endless["archive run"] = has_files("lake/data/**/*.parquet")
    reader.play("README.md", start="## Into Spark", end="## Guarantees")
    assert reader.typed == 4


def test_page_on_the_pipeline_plays(reader: Reader) -> None:
    reader.execute("import raftmq\nwith raftmq.blocking.connect('raftmq://127.0.0.1:7400') as mq:\n"
                   "    mq.admin.create_topic('orders')\n")  # fmt: skip
    assert "count" in reader.play("docs/pipeline.md")


def test_page_on_archives_plays(reader: Reader) -> None:
    reader.endless["--to lake  "] = has_files("lake/data/**/*.parquet")
    # Topics of other pages took the first numbers.
    reader.other["10000-2a"] = lambda: format_id(number_of("orders") << QUEUE_BITS, 0x2A)
    shown = reader.play("docs/pipeline/archive.md")
    assert "the archive is whole" in shown
    assert sum(file.rows for file in manifest.load(Path("lake")).files) == 1000


def test_page_on_changes_of_databases_plays_to_the_digit(reader: Reader) -> None:
    shown = reader.play("docs/pipeline/cdc.md", start="## An example", end="## The topic")
    digest = "1:fc34cc5a64b963b:61e3b8f438c78d5"
    assert digest in (ROOT / "docs/pipeline/cdc.md").read_text()
    assert shown.count(digest) == 2


def test_page_on_checks_plays(reader: Reader) -> None:
    reader.codes = {"--dry-run": ExitCode.OK, "pipeline check": ExitCode.VIOLATION}
    shown = reader.play("docs/pipeline/check.md")
    assert "lost-middle 1, duplicated 1" in shown
    assert Path("checked/verdict.json").exists()


def test_page_on_live_windows_plays(reader: Reader) -> None:
    reader.endless["--page"] = shows_windows
    reader.play("docs/pipeline/live.md")
    cents = Counter[str]()
    for row in ds.dataset("trades-live/windows", format="parquet").to_table().to_pylist():
        cents[row["tag"]] += row["cents"]
    assert cents == {"cup": 250, "tea": 1000}
    # The window of the cup is open until `--once` closes all.
    assert stored(reader, "trade-windows") > 0


def test_page_on_reconciling_plays(reader: Reader) -> None:
    reader.codes["parquet:orders"] = ExitCode.VIOLATION
    shown = reader.play("docs/pipeline/reconcile.md")
    assert shown.count("the sides differ") == 2


def test_page_on_reports_plays(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_later(*arguments: object, **options: bool) -> object:
        look = cluster_poll.look_at(*arguments, **options)  # type: ignore[arg-type]
        return structs.replace(look, time=look.time + LATER_MS)

    monkeypatch.setattr(rounds, "look_at", look_later)
    reader.endless["--follow"] = lambda screen: "published" in screen
    shown = reader.play("docs/pipeline/report.md", end="## A run")
    assert "billing" in shown
    assert "<svg" in Path("report.html").read_text()
    page = (ROOT / "docs/pipeline/report.md").read_text().partition("## A run")[2]
    tables = [step for step in steps_of(FENCE.findall(page)[0][1]) if " show " in step.line]
    for step in tables:
        reader.type(step._replace(printed=step.printed[:1]))
    assert len(tables) == 2


def test_page_on_the_sink_plays(reader: Reader) -> None:
    reader.play("docs/pipeline/sink.md")
    # Two rows as a batch, and the same again under a name.
    assert stored(reader, "orders") == 4


def test_page_on_the_source_plays(reader: Reader) -> None:
    shown = reader.play("docs/pipeline/source.md")
    page = (ROOT / "docs/pipeline/source.md").read_text()
    rows = [re.findall(r"^\|orders.*\{n -> \d+\}", text, re.MULTILINE) for text in (shown, page)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3
