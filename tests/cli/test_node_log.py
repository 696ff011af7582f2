"""A node's log: each event is one line, whatever its fields hold."""

import json
import re
from io import StringIO

from raftmq.cli.node.node_log import NodeLog


def lines_of(*, is_json: bool = False, is_colored: bool = False) -> list[str]:
    out = StringIO()
    log = NodeLog(2, out, is_json=is_json, is_colored=is_colored)
    log.info("serving", port=7400, host="127.0.0.1")
    log.error("damaged", what="two words\nand a line")
    return out.getvalue().splitlines()


def test_event_is_a_line_with_its_fields_by_name() -> None:
    serving, damaged = lines_of()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
    assert re.fullmatch(
        rf"{time} \[info     \] serving {{14}}host=127\.0\.0\.1 node=2 port=7400", serving
    )
    assert damaged.endswith(r"[error    ] damaged              node=2 what='two words\nand a line'")


def test_event_as_json_has_level_time_and_node() -> None:
    serving, damaged = map(json.loads, lines_of(is_json=True))
    assert serving.pop("timestamp").endswith("Z")
    assert serving == {
        "event": "serving", "host": "127.0.0.1", "level": "info", "node": 2, "port": 7400,
    }  # fmt: skip
    assert (damaged["level"], damaged["what"]) == ("error", "two words\nand a line")


def test_colours_surround_padded_words() -> None:
    serving, _ = lines_of(is_colored=True)
    assert "[\x1b[32minfo     \x1b[0m] \x1b[1mserving " in serving
