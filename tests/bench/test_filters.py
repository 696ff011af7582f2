"""The filter benchmark compares ways with equal answers, and states its targets."""

import json
from pathlib import Path
from random import Random

import pytest

from bench.cores import filters
from raftmq.filters import compile as compile_filter
from raftmq.filters.parser import parse


def test_generated_source_matches_what_the_filter_matches() -> None:
    given = filters.load(200, 100, 0.5)
    for text in given.texts:
        test, found = filters.generated(parse(text)), compile_filter(text)
        assert [test(props) for props in given.messages] == [
            found.matches(props) for props in given.messages
        ]


def test_share_of_filters_without_a_type_is_as_asked_for() -> None:
    texts = filters.load(1_000, 0, 0.1).texts
    assert sum("type" not in text for text in texts) == 100


def test_rows_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "filters.json"
    arguments = ["--expressions", "300", "--messages", "70", "--beside", "100", "--rounds", "1"]
    filters.main([*arguments, "--json", str(path)])
    content = json.loads(path.read_text())
    assert {"date", "command", "commit", "machine"} < content.keys()
    rows = content["rows"]
    assert [row["wanted"] for row in rows] == [5.0, 100.0, 100.0, 30.0, 30.0, 1.0]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[0] == "what"
    assert len(printed) == 1 + len(rows)
    assert all(row["ratio"] == pytest.approx(row["theirs"] / row["ours"], rel=0.05) for row in rows)


def test_messages_hit_some_filters() -> None:
    given = filters.load(3_000, 50, 0.02, seed=Random(1).randrange(10))
    found = [compile_filter(text) for text in given.texts]
    assert any(each.matches(props) for props in given.messages for each in found)
