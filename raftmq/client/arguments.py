"""What users mistype, said in words: each check is made once a call, and none once a message."""

import math
from typing import TYPE_CHECKING

from .starting import require


def require_text(value: object, name: str) -> None:
    """Refuse what is no `str`.

    Raises:
        Rejected: `BAD_ARGUMENT`.
    """
    require(isinstance(value, str), f"{name} is a text (str), not {value!r:.80}")


def require_seconds(value: object, name: str) -> None:
    """Refuse what is no number of seconds, from 0.

    Raises:
        Rejected: `BAD_ARGUMENT`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number:
        assert isinstance(value, int | float)
        is_number = value >= 0 and not math.isnan(value)
    require(is_number, f"{name} is a number of seconds, from 0, not {value!r:.80}")


class Unentered:
    """The base of what `connect` and `open` give: it is no client before it is entered."""

    _ENTER = "async with"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            message = f"write `{self._ENTER} ... as mq:` and `mq.{name}`: this is no client yet"
            raise AttributeError(message)
