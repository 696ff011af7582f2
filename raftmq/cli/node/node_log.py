"""A node's log: events with their fields on stderr, one line each, as text or JSON.

    2026-11-27T12:14:13.389924Z [info     ] serving              host=127.0.0.1 node=1 port=7400
    {"event": "serving", "host": "127.0.0.1", "level": "info", "node": 1, ...}

In text a value that is not one word is quoted as Python writes it, so a line stays one line.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

import click

_COLORS: Final = {"info": "green", "warning": "yellow", "error": "red"}
"""Level -> colour of its name on a terminal."""


@dataclass(frozen=True, slots=True)
class NodeLog:
    """Writes the events of one node."""

    node: int
    """The node's number, a field of each event."""
    out: TextIO
    is_json: bool = False
    is_colored: bool = False

    def info(self, event: str, **fields: object) -> None:
        """An event of normal operation."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """An event that an operator should know."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """An event that an operator has to act on."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        time = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        fields = {**fields, "node": self.node}
        if self.is_json:
            line = json.dumps(
                {**fields, "event": event, "level": level, "timestamp": time},
                sort_keys=True,
                default=repr,
            )
        else:
            shown = f"{level:9}", f"{event:20}"
            if self.is_colored:
                shown = click.style(shown[0], fg=_COLORS[level]), click.style(shown[1], bold=True)
            values = " ".join(f"{name}={_text(value)}" for name, value in sorted(fields.items()))
            line = f"{time} [{shown[0]}] {shown[1]} {values}"
        print(line, file=self.out, flush=True)


def _text(value: object) -> str:
    """A value without spaces around it.

    >>> _text(7), _text("127.0.0.1"), _text("the disk is full")
    ('7', '127.0.0.1', "'the disk is full'")
    """
    text = str(value)
    is_word = text.isprintable() and not set(text) & set(" ='\"")
    return text if is_word or not isinstance(value, str) else repr(value)
