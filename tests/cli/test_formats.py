"""How `consume` prints a message."""

import json
from typing import Any, cast

import click
import pytest

from raftmq.cli.exits import Failure
from raftmq.cli.messages.formats import as_json, as_row, compiled
from raftmq.cli.output import Result, Table, note, print_result, print_table
from raftmq.client import Message
from tests.machine.hostile_names import HOSTILE


class Fake:
    """The attributes of a message that formats read."""

    topic = "orders"
    queue = 3
    offset = 42
    id = "10003-2a"
    timestamp = 1_795_177_371_204
    producer: int | None = 0xABC
    epoch = 1
    sequence: int | None = 17
    key: str | None = "order-1"
    tag: str | None = None
    body = b"hello\x00\xff"

    def __init__(self, **fields: Any) -> None:
        self.props: dict[str, Any] = {"buyerId": 7, "raw": b"\x01"}
        for name, value in fields.items():
            setattr(self, name, value)


def message(**fields: Any) -> Message:
    return cast("Message", Fake(**fields))


def test_format_puts_fields_and_escapes_in_place() -> None:
    render = compiled(r"%k\t%v|%g|%t %q %o %i %T%%\x41\n")
    expected = b"order-1\thello\x00\xff||orders 3 42 10003-2a 1795177371204%A\n"
    assert render(message()) == expected


def test_format_writes_properties_as_json() -> None:
    assert json.loads(compiled("%h")(message())) == {"buyerId": 7, "raw": {"base64": "AQ=="}}


@pytest.mark.parametrize("text", ["%z", "%", "\\q", "\\", "\\x4"])
def test_unknown_field_or_escape_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is none of"):
        compiled(text)


def test_json_holds_a_text_body_as_text_and_another_in_base64() -> None:
    assert json.loads(as_json(message(body="消息".encode())))["body"] == "消息"
    plain = json.loads(as_json(message()))
    assert plain["body_base64"] == "aGVsbG8A/w=="
    assert "body" not in plain
    assert plain["key"] == "order-1"
    assert plain["tag"] is None


def test_json_names_the_producer_and_its_number() -> None:
    plain = json.loads(as_json(message()))
    assert (plain["producer"], plain["epoch"], plain["sequence"]) == ("0000000000000abc", 1, 17)
    released = json.loads(as_json(message(producer=None, epoch=0, sequence=None)))
    assert (released["producer"], released["sequence"]) == (None, None)


def test_json_is_one_line_whatever_the_body() -> None:
    assert as_json(message(body=b"a\nb\r\n")).count(b"\n") == 1


def test_row_escapes_what_would_break_the_table() -> None:
    row = as_row(message(body=b"a\nb\x1b[31m"))
    assert row.count(b"\n") == 1
    assert b"\x1b" not in row
    assert rb"a\nb\x1b[31m" in row


def test_names_in_tables_and_notes_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(["GROUP", "MODE"], [["a\nb", "pop"], ["\x1b[31mred", "pull"]]))
    note("deleted \x1b[2Ja\nand more")
    Failure("there is no 'x'\x07", fix="look").show()
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1:] == [r"a\nb         pop", r"\x1b[31mred  pull"]
    assert shown.err.startswith("deleted \\x1b[2Ja\nand more\n")
    assert r"'x'\x07" in shown.err


@pytest.mark.parametrize("name", [name for name in HOSTILE if not name.isprintable()])
def test_hostile_names_reach_a_terminal_by_no_way(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {name: [name]}
    result = Result(document, [f"line {name}", Table(["NAME"], [[name]], title=name)], [name])
    for output in ("table", "json"):
        print_result(result, output)
        shown = capsys.readouterr()
        assert (shown.out + shown.err).replace("\n", "").isprintable()
        if output == "json":
            assert json.loads(shown.out) == document
    line = as_json(message(key=name, tag=name, props={name: name})).decode()
    assert line[:-1].isprintable()
    assert json.loads(line)["key"] == name
