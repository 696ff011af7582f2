"""The lines that `raftmq serve` writes to stderr, as text and as JSON."""

import io
import json
import re
from pathlib import Path

from raftmq.cli.node.log_lines import LogLines

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def written(*, is_json: bool, is_colored: bool = False) -> list[str]:
    out = io.StringIO()
    log = LogLines(3, is_json=is_json, is_colored=is_colored, out=out)
    log.info("starting", port=7400, host="127.0.0.1", data="/a b")
    log.warning("waits", what='for "node 2"\nand more')
    log.error("damaged", what="", groups=[0, 1])
    log.info("stopped")
    return out.getvalue().splitlines()


def test_text_line_has_its_facts_by_name_and_quotes_values_with_blanks() -> None:
    lines = written(is_json=False)
    assert all(re.match(rf"{STAMP} \[", line) for line in lines)
    assert [line.split(" ", 1)[1] for line in lines] == [
        "[info     ] starting             data='/a b' host=127.0.0.1 node=3 port=7400",
        "[warning  ] waits                node=3 what='for \"node 2\"\\nand more'",
        "[error    ] damaged              groups=[0, 1] node=3 what=",
        "[info     ] stopped              node=3",
    ]


def test_json_line_has_the_node_then_its_facts_then_event_level_and_time() -> None:
    lines = [json.loads(line) for line in written(is_json=True)]
    assert all(re.fullmatch(STAMP, line.pop("timestamp")) for line in lines)
    assert [list(line.items()) for line in lines[1:3]] == [
        [
            ("node", 3),
            ("what", 'for "node 2"\nand more'),
            ("event", "waits"),
            ("level", "warning"),
        ],
        [("node", 3), ("what", ""), ("groups", [0, 1]), ("event", "damaged"), ("level", "error")],
    ]


def test_colours_change_nothing_but_the_colours() -> None:
    plain, coloured = written(is_json=False), written(is_json=False, is_colored=True)
    assert all("\x1b[" in line for line in coloured)
    without = [re.sub(r"\x1b\[\d+m", "", line) for line in coloured]
    stampless = [[line.split(" ", 1)[1] for line in lines] for lines in (plain, without)]
    assert stampless[0] == stampless[1]


def test_any_value_is_written_and_none_reaches_a_terminal_raw() -> None:
    for is_json in (False, True):
        out = io.StringIO()
        LogLines(3, is_json=is_json, out=out).info("odd", path=Path("a"), raw=b"b", text="x\x1b[2J")
        (line,) = out.getvalue().splitlines()
        assert line.isprintable()
