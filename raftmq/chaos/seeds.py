"""Seeds to run, as people write them.

>>> list(parse("3..6")[0]), parse("1,5,9"), parse("7..")[1]
([3, 4, 5, 6], ([1, 5, 9], 3), None)
"""

import re
from collections.abc import Iterable
from itertools import count


def parse(text: str) -> tuple[Iterable[int], int | None]:
    """The seeds of `1..100`, `1..` or `1,5,9`, and their number; None: without end.

    Raises:
        ValueError: the text has another form, or a range goes backwards.
    """
    if re.fullmatch(r"\d+(,\d+)*", text):
        listed = [int(one) for one in text.split(",")]
        return listed, len(listed)
    match = re.fullmatch(r"(\d+)\.\.(\d*)", text)
    if match is None:
        raise ValueError(f"{text!r} is none of 1..100, 1.. and 1,5,9")
    first = int(match[1])
    if not match[2]:
        return count(first), None
    last = int(match[2])
    if last < first:
        raise ValueError(f"{text} goes backwards")
    return range(first, last + 1), last - first + 1
