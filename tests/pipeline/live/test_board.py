"""A board is read from TOML, and each error names its field."""

from pathlib import Path
from typing import Any

import pytest

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.live import Board, Named, load, parse
from raftmq.pipeline.live.board import plain


def test_board_of_a_file_has_all_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text("""
topics = ["trades", "refunds"]
window = "10s"
lateness = "500ms"
ahead = "1h"
event = "json.at"
json = "cents bigint, at timestamp"
where = "tag <> 'test'"
by = ["tag", "upper(json.shop) AS shop"]
sum = ["json.cents"]
distinct = ["key as buyers"]
top = 3
order = "cents"
""")
    assert parse(load(path)) == Board(
        topics=("trades", "refunds"), window_ms=10_000, lateness_ms=500, ahead_ms=3_600_000,
        event="json.at", json="cents bigint, at timestamp", where="tag <> 'test'",
        by=(Named("tag", "tag"), Named("shop", "upper(json.shop)")),
        sums=(Named("cents", "json.cents"),), distincts=(Named("buyers", "key"),),
        top=3, order="cents",
    )  # fmt: skip


def test_one_topic_may_be_a_text_and_all_else_is_left_to_defaults() -> None:
    assert parse({"topics": "trades"}) == Board(topics=("trades",))


@pytest.mark.parametrize(
    ("table", "message", "fix"),
    [
        ({}, "topics: it is missing", 'topics = ["orders"]'),
        ({"topics": []}, "topics: there is none", 'topics = ["orders"]'),
        ({"topics": ["t"], "windw": "1s"}, "windw: there is no such field", "did you mean window"),
        ({"topics": ["t"], "window": "soon"}, "window: 'soon' is no duration", "500ms, 1s"),
        ({"topics": ["t"], "window": "10ms"}, "window: 10ms is out of range", "100ms to 24h"),
        ({"topics": ["t"], "lateness": 3}, "lateness: 3 is no duration", 'lateness = "10s"'),
        ({"topics": ["t"], "sum": ["a + b"]}, "sum: 'a + b' has no name", '"a + b as NAME"'),
        ({"topics": ["t"], "by": ["tag", "key as TAG"]}, "the name tag is taken twice", "as NAME"),
        ({"topics": ["t"], "sum": ["x as count"]}, "the name count is taken twice", "as NAME"),
        ({"topics": ["t"], "order": "x"}, "order: there is no measure 'x'", "one of count"),
        ({"topics": ["t"], "top": -1}, "top: -1 is no number of groups", "top = 10"),
        ({"topics": ["t"], "top": True}, "top: True is no number of groups", "top = 10"),
        ({"topics": ["t"], "by": 4}, "by: 4 is no list of texts", 'by = ["...'),
        ({"topics": ["t"], "event": ""}, "event: '' is no text", 'event = "..."'),
    ],
)
def test_error_names_the_field_and_what_is_right(
    table: dict[str, Any], message: str, fix: str
) -> None:
    with pytest.raises(PipelineError) as raised:
        parse(table)
    assert message in raised.value.message
    assert fix in raised.value.fix


def test_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"cannot read .*nowhere\.toml"):
        load(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("topics = [")
    with pytest.raises(PipelineError, match=r"bad\.toml is not TOML"):
        load(tmp_path / "bad.toml")


def test_boards_are_equal_if_their_plain_forms_are() -> None:
    table = {"topics": ["t"], "sum": ["json.a as b"]}
    assert plain(parse(table)) == plain(parse(dict(table)))
    assert plain(parse(table)) != plain(parse({"topics": ["t"], "sum": ["json.b as b"]}))
