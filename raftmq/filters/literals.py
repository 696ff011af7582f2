"""Numbers, texts and names as a filter's tokens spell them.

| spelling | value |
|---|---|
| `5`, `5L` | an integer, at most 2^63 (which only a minus makes fit) |
| `5.`, `.5`, `5E10` | a float; neither infinite nor rounded to zero |
| `'it''s'`, `"it's"` | a text |
| `` `a ``b` `` | a name |

Sources: RocketMQ's ConstantExpression for the refusals.
"""

from typing import Final

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19


def read_number(token: str) -> int | float:
    """The value of a number; `INTEGER_MAX + 1` may come out too.

    Raises:
        ValueError: the number is too large or too small, or is none of SQL; the message says so.
    """
    if token.isdigit() and len(token) < _DIGITS_MAX and token[0] != "0":
        return int(token)
    digits = token[:-1] if token[-1] in "lL" else token
    if digits.isdigit():
        return _integer(digits)
    if digits is not token:
        raise ValueError("an L stands behind integers only")
    value = float(digits)
    if value == float("inf"):
        raise ValueError("the number is too large: 1.7976931348623157E308 is the largest")
    mantissa = digits.upper().partition("E")[0]
    if value == 0 and mantissa.strip("0."):
        raise ValueError("the number is too small: 5E-324 is the smallest")
    return value


def _integer(digits: str) -> int:
    if digits[0] == "0" and len(digits) > 1:
        raise ValueError(f"an integer does not begin with 0; as a text it is '{digits}'")
    # The limit of digits comes first: Python refuses to read thousands of them.
    if len(digits) > _DIGITS_MAX or int(digits) > INTEGER_MAX + 1:
        raise ValueError(f"the number is too large: {INTEGER_MAX} is the largest integer")
    return int(digits)


def read_quoted(token: str) -> str:
    """The text between the quotes or backticks.

    Raises:
        ValueError: the token is not closed, is a name without a character, or has a backslash in
            double quotes.
    """
    quote = token[0]
    # Languages with double quotes read `\n` as a line feed, and SQL reads two plain characters.
    if quote == '"' and "\\" in token:
        raise ValueError("a backslash stands in single quotes only, as a plain character")
    if token == "``":
        raise ValueError("a name has at least one character")
    if token.find(quote, 1) == len(token) - 1 > 0:
        return token[1:-1]
    # In a closed token each quote inside is doubled.
    if token.count(quote) % 2:
        what = "name" if quote == "`" else "text"
        raise ValueError(f"the {what} is not closed: a {quote} is missing")
    return token[1:-1].replace(quote * 2, quote)
