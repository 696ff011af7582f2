"""Reads the files of datadriven tests: commands, their input, and the output they must have.

    # a comment
    command arg key=value key=(a,b)
    more input
    ----
    expected output, up to a blank line

An output that itself holds blank lines stands between two pairs of `----` lines.

Source: the format of github.com/cockroachdb/datadriven, which etcd-io/raft's test data uses.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Argument(NamedTuple):
    """`key`, `key=value` or `key=(a,b)`."""

    key: str
    values: tuple[str, ...] = ()


class Directive(NamedTuple):
    """One command with its expected output."""

    line: int
    command: str
    arguments: tuple[Argument, ...]
    input: str
    expected: str


_ARGUMENT = re.compile(r"""([^\s=]+)(?:=(\([^)]*\)|[^\s(]\S*|))?""")


def parse_command(text: str) -> tuple[str, tuple[Argument, ...]]:
    """Split a command line into the command and its arguments."""
    command, _, rest = text.strip().partition(" ")
    arguments = []
    for match in _ARGUMENT.finditer(rest):
        key, value = match.groups()
        if value is None:
            arguments.append(Argument(key))
        elif value.startswith("("):
            items = [item.strip() for item in value[1:-1].split(",")]
            arguments.append(Argument(key, tuple(item for item in items if item)))
        else:
            arguments.append(Argument(key, (value,)))
    return command, tuple(arguments)


def parse(text: str) -> Iterator[Directive]:
    """All directives of a file, in order."""
    lines = text.split("\n")
    place = 0
    while place < len(lines):
        line = lines[place].strip()
        if not line or line.startswith("#"):
            place += 1
            continue
        start = place
        while line.endswith("\\"):
            place += 1
            line = line[:-1].rstrip() + " " + lines[place].strip()
        place += 1
        command, arguments = parse_command(line)
        given = []
        while lines[place] != "----":
            given.append(lines[place])
            place += 1
        place, expected = _expected(lines, place + 1)
        yield Directive(start + 1, command, arguments, "\n".join(given), expected)


def _expected(lines: list[str], place: int) -> tuple[int, str]:
    taken = []
    if place < len(lines) and lines[place] == "----":
        place += 1
        while lines[place : place + 2] != ["----", "----"]:
            taken.append(lines[place])
            place += 1
        place += 2
    else:
        while place < len(lines) and lines[place].strip():
            taken.append(lines[place])
            place += 1
    return place, "".join(line + "\n" for line in taken)
