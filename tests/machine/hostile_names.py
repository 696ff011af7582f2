"""Names that no topic, group, instance, user, node or cluster may have: one table for all tests.

They would move a cursor, look like another name, leave a folder, end a text of C, or take a page.
"""

from typing import Final

HOSTILE: Final = (
    "x y",
    "a\nb",
    "a\r",
    "a\0b",
    "a\tb",
    "\x1b[31mred",
    "\x9b31mred",
    "\x07",
    "ü",
    "оrders",  # noqa: RUF001 - a Cyrillic letter that looks like a Latin one
    "\u202egnp.exe",
    "a\u200bb",
    "\ufeffa",
    "../../etc/passwd",
    "..",
    ".x",
    "-x",
    "a/b",
    "a\\b",
    "a@b",
    "a*",
    "<script>",
    "a'b",
    'a"b',
    "a%00",
    "a,b",
    "x" * 128,
    "x" * 5000,
)
"""Each is refused as a new name of any kind, at each place where such a name comes in."""
