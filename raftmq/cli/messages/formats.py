"""The ways in which `consume` prints a message: as JSON, as a line of a table, or by a format.

A format is text with these fields, after kcat:

| | |
|---|---|
| `%v` | the body |
| `%k` | the key; nothing if there is none |
| `%g` | the tag; nothing if there is none |
| `%h` | the properties as JSON |
| `%t` | the topic |
| `%q` | the queue |
| `%o` | the offset |
| `%i` | the message id |
| `%T` | when it was stored, milliseconds since 1970 |
| `%d` | the same as local ISO time |
| `%%` | a percent sign |
| `\\n` `\\t` `\\r` `\\0` `\\\\` `\\xNN` | a control character, a backslash, any byte |
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.output import Lines, Result, print_result, time_text
from raftmq.cli.printable import printable, printable_json

if TYPE_CHECKING:
    from raftmq.client import Message
    from raftmq.pipeline.archive import Archived

Format = Callable[["Message"], bytes]

_FIELDS: dict[str, Format] = {
    "v": lambda message: message.body,
    "k": lambda message: (message.key or "").encode(),
    "g": lambda message: (message.tag or "").encode(),
    "h": lambda message: _json(_plain_props(message)),
    "t": lambda message: message.topic.encode(),
    "q": lambda message: b"%d" % message.queue,
    "o": lambda message: b"%d" % message.offset,
    "i": lambda message: message.id.encode(),
    "T": lambda message: b"%d" % message.timestamp,
    "d": lambda message: time_text(message.timestamp).encode(),
}

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

_TOKEN = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)


def compiled(text: str, more: Mapping[str, Format] | None = None) -> Format:
    """The function that a format describes; `more`: further fields of a command.

    Raises:
        click.BadParameter: the format has an unknown field or escape.
    """
    known = {**_FIELDS, **(more or {})}
    parts: list[bytes | Format] = [_part(match, known) for match in _TOKEN.finditer(text)]

    def render(message: "Message") -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return render


def _part(match: re.Match[str], known: Mapping[str, Format]) -> bytes | Format:
    field, escape, text = match["field"], match["escape"], match["text"]
    if text is not None:
        return text.encode()
    if escape is not None:
        if len(escape) == 3:
            return bytes([int(escape[1:], 16)])
        if escape in _ESCAPES:
            return _ESCAPES[escape]
        raise click.BadParameter(f"\\{escape} is none of {' '.join(_backslashed())} \\xNN")
    if field == "%":
        return b"%"
    if field in known:
        return known[field]
    raise click.BadParameter(f"%{field} is none of {' '.join('%' + name for name in known)} %%")


def _backslashed() -> list[str]:
    return ["\\" + name for name in _ESCAPES]


def as_json(message: "Message", more: Mapping[str, Any] | None = None) -> bytes:
    """One line; `more` comes first. See `plain_message`."""
    return _json({**(more or {}), **plain_message(message)}) + b"\n"


def plain_message(message: "Message | Archived") -> dict[str, Any]:
    """The message for JSON; a body that is not UTF-8 is in base64 as `body_base64`, and a producer
    is 16 hexadecimal digits."""
    plain: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "id": message.id,
        "timestamp": message.timestamp,
    }
    # An archive does not keep the number that the producer gave.
    if not isinstance(message, tuple):
        plain |= _number(message)
    plain |= {"key": message.key, "tag": message.tag, "props": _plain_props(message)}
    try:
        plain["body"] = message.body.decode()
    except UnicodeDecodeError:
        plain["body_base64"] = _base64(message.body)
    return plain


TABLE_HEADING = b"%-14s %-24s %5s %9s  %-16s %-10s %s\n" % (
    b"ID",
    b"TIME",
    b"QUEUE",
    b"OFFSET",
    b"KEY",
    b"TAG",
    b"BODY",
)


def as_row(message: "Message") -> bytes:
    """One line under `TABLE_HEADING`; characters that are not printable are escaped."""
    moment = time_text(message.timestamp)[:23]
    key, tag = printable(message.key or ""), printable(message.tag or "")
    row = (
        f"{message.id:14} {moment:24} {message.queue:5} {message.offset:9}  "
        f"{key:16} {tag:10} {body_text(message)}\n"
    )
    return row.encode()


def print_message(message: "Message | Archived", output: str) -> int:
    """Print a message as a list of its fields, as JSON, or its body alone; the exit code."""
    if output == "raw":
        # Bytes, which are neither a document nor lines for people.
        sys.stdout.buffer.write(message.body)
        sys.stdout.buffer.flush()
        return 0
    shown = [f"{name:8} {value}" for name, value in _shown(message)]
    return print_result(Result(Lines([plain_message(message)]), shown), output)


def _shown(message: "Message | Archived") -> list[tuple[str, str]]:
    place = f"{message.topic}, queue {message.queue}, offset {message.offset}"
    fields = [("id", message.id), ("topic", place), ("stored", time_text(message.timestamp))]
    if message.key is not None:
        fields.append(("key", message.key))
    if message.tag is not None:
        fields.append(("tag", message.tag))
    fields += [("property", f"{name} = {value!r}") for name, value in message.props.items()]
    return [*fields, ("body", body_text(message))]


def body_text(message: "Message | Archived") -> str:
    """The body on one line; bytes and characters that are not printable are escaped."""
    return printable(message.body.decode(errors="backslashreplace"))


def _number(message: "Message") -> dict[str, Any]:
    producer = None if message.producer is None else f"{message.producer:016x}"
    return {"producer": producer, "epoch": message.epoch, "sequence": message.sequence}


def _plain_props(message: "Message | Archived") -> dict[str, Any]:
    return {
        name: {"base64": _base64(value)} if isinstance(value, bytes) else value
        for name, value in message.props.items()
    }


def _base64(data: bytes) -> str:
    from base64 import b64encode

    return b64encode(data).decode()


def _json(value: Any) -> bytes:
    return printable_json(json.dumps(value, ensure_ascii=False)).encode()
