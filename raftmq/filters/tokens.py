"""A filter's text as tokens.

| token | example |
|---|---|
| word | `city`, `AND`: ASCII letters, digits, `_` and `$`, not a digit first |
| name in backticks | `` `any text` ``, a backtick is doubled |
| text | `'it''s'`, `"it's"` |
| number | `5`, `5L`, `5.`, `.5E10` |
| operator | `= <> < <= > >= ( ) , + -`, `== != && || !` |
| wrong | `=~` and any other character; an open text, name or comment as a whole |

Blanks (space, tab, line feed, carriage return, form feed) and comments (`-- ...` to the end of the
line, `/* ... */`) separate tokens and mean nothing.

Invariants:
- Reading is linear in the text: no alternative is tried twice at one place.
- Letters and blanks do not depend on the version of Unicode.
- `has_signs` is false for each text that is SQL alone.
- Positions are computed only when an error needs one.

Sources: RocketMQ's SelectorParser.jj for comments, numbers and words; SQL92 §5.2 for doubled
quotes.
"""

import re
from collections.abc import Iterable
from typing import Final

_SIGNS: Final = frozenset(("==", "!=", "&&", "||", "!"))

_TOKEN = re.compile(
    r"""
    [ \t\r\n\f]*+ (?: (?: --[^\r\n]*+ | /\*(?s:.*?)\*/ ) [ \t\r\n\f]*+ )*+
    (
      [A-Za-z_$][A-Za-z0-9_$]*+
    | [(),] | =[=~]?+ | !=?+ | && | \|\|
    | '(?:[^']++|'')*+' | `(?:[^`]++|``)*+` | "(?:[^"]++|"")*+"
    | (?: [0-9]++ \.?+ [0-9]*+ | \.[0-9]++ ) (?:[eE][+-]?[0-9]++)?+ [lL]?+
    | <> | <= | >=
    | ['`"](?s:.*) | /\*(?s:.*)
    | (?s:.)
    | \Z
    )
    """,
    re.VERBOSE,
)


def tokens(text: str) -> list[str]:
    """All tokens in order; the last one is empty."""
    return _TOKEN.findall(text)


def has_signs(found: Iterable[str]) -> bool:
    """Does any of these tokens belong to expression languages, and not to SQL?"""
    return any(token in _SIGNS or token[:1] == '"' for token in found)


def token_position(text: str, number: int) -> int:
    """Where the token of this number starts."""
    for count, match in enumerate(_TOKEN.finditer(text)):
        if count == number:
            return match.start(1)
    return len(text)
