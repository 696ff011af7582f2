"""The log of `raftmq serve`: one line an event on stderr, as text or as JSON.

    2026-11-27T18:56:39.292622Z [info     ] leads                groups=[0, 1] node=1
    {"node": 1, "groups": [0, 1], "event": "leads", "level": "info", "timestamp": "2026-..."}

As text, facts are sorted by name, and a value with blanks or quotes stands as a Python literal; on
a terminal names and values have colours. As JSON, facts stand in the order of the call.
"""

import json
import os
import sys
from datetime import UTC, datetime
from typing import TextIO

LEVEL_WIDTH, EVENT_WIDTH = 9, 20
"""Columns of text in which the level and the event stand at the left."""

_QUOTED = frozenset(" =\"'")
"""Printable characters that would hide where a value of a text line ends."""

_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_NAME, _VALUE = "\x1b[36m", "\x1b[35m"
_LEVELS = {"info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}


class LogLines:
    """Writes the events of one node."""

    def __init__(
        self,
        node: int | None,
        *,
        is_json: bool,
        is_colored: bool = False,
        out: TextIO | None = None,
    ) -> None:
        """`node` is a fact of each line; None: the lines are of no node, but of the process that
        runs several. `out` is stderr if not given."""
        self._node = node
        self._is_json = is_json
        self._is_colored = is_colored
        self._out = out or sys.stderr

    def info(self, event: str, **facts: object) -> None:
        """Something that an operator may want to know."""
        self._write("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Something that an operator may have to act on."""
        self._write("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        """Damage, or the reason why the node ends."""
        self._write("error", event, facts)

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        if self._node is not None:
            facts = {"node": self._node, **facts}
        if self._is_json:
            line = json.dumps(
                {**facts, "event": event, "level": level, "timestamp": stamp}, default=repr
            )
        else:
            line = self._text(stamp, level, event, facts)
        # In one call and flushed: a node that is killed next has written whole lines.
        self._out.write(line + "\n")
        self._out.flush()

    def _text(self, stamp: str, level: str, event: str, facts: dict[str, object]) -> str:
        pairs = [
            f"{self._styled(_NAME, name)}={self._styled(_VALUE, _shown(facts[name]))}"
            for name in sorted(facts)
        ]
        shown_level = self._styled(_LEVELS[level] + _BOLD, level.ljust(LEVEL_WIDTH))
        shown_event = self._styled(_BOLD, event.ljust(EVENT_WIDTH))
        return f"{self._styled(_DIM, stamp)} [{shown_level}] {shown_event} {' '.join(pairs)}"

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self._is_colored else text


def log_of(log_format: str, node: int | None) -> LogLines:
    """The log on stderr, as `--log` names its form."""
    is_colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return LogLines(node, is_json=log_format == "json", is_colored=is_colored)


def _shown(value: object) -> str:
    """A value as text.

    >>> _shown("127.0.0.1"), _shown("two words"), _shown([0, 1]), _shown(None)
    ('127.0.0.1', "'two words'", '[0, 1]', 'None')
    """
    is_plain = isinstance(value, str) and value.isprintable() and not _QUOTED & set(value)
    return str(value) if is_plain else repr(value)
