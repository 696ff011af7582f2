"""One compiled filter: matching a message, or a batch at once."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from .formula import Formula, names
from .parser import parse
from .scalar import RowTest, plain_row, row_test
from .tags import is_tags
from .text import formula_text
from .tokens import has_signs, tokens

if TYPE_CHECKING:
    import numpy as np

    from raftmq.batch import Batch


class Filter:
    """A filter that was read and checked. Make one with `compile`; it never changes.

    Equal filters mean the same; some that mean the same are not equal.
    """

    text: str
    """The filter as it was written."""
    formula: Formula
    """The filter's meaning."""

    def __init__(self, text: str, formula: Formula) -> None:
        self.text = text
        self.formula = formula

    def matches(self, props: Mapping[str, object], *, tag: str | None = None) -> bool:
        """Does a message with these properties and this tag match? Never raises.

        None as a value is the same as leaving the name out. A value of a type that no property
        can have is present and equals nothing.
        """
        return self._test(plain_row(props, self.names, tag))

    def mask(self, batch: "Batch") -> "np.ndarray":
        """One bool a message of the batch. Never raises: see `masks` for damaged columns."""
        from .masks import BatchView

        return BatchView(batch).mask(self.formula)

    @property
    def sql(self) -> str:
        """The filter as a cluster keeps it: its text, or `str(filter)` if the text has signs.

        Raises:
            FilterSyntaxError: as SQL the filter is over a limit.
        """
        return self.text if is_sql(self.text) else compile(str(self)).text

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The properties that it reads; `TAGS` stands for the tag."""
        return tuple(names(self.formula))

    @cached_property
    def _test(self) -> RowTest:
        return row_test(self.formula)

    def __str__(self) -> str:
        """The filter as SQL without superfluous parts; it compiles to an equal filter."""
        return formula_text(self.formula)

    def __repr__(self) -> str:
        return f"compile({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.formula == other.formula

    def __hash__(self) -> int:
        return hash(self.formula)


def is_sql(text: str) -> bool:
    """Is a filter written as tags or SQL alone? False if it has signs: `==`, `&&`, `!`, `"x"`."""
    return is_tags(text) or not has_signs(tokens(text))


def compile(text: str) -> Filter:  # noqa: A001  # as `re.compile`: always raftmq.filters.compile
    """Read a filter: tags (`paid || shipped`, `*`) or SQL (`amount > 5 AND city = 'Paris'`).

    The signs of expression languages may stand in SQL: `amount > 5 && !(city == "Paris")`.

    >>> compile("amount BETWEEN 1 AND 5 AND city IN ('Paris', 'Rome')").matches({"amount": 3})
    False
    >>> compile("paid || shipped").matches({}, tag="paid")
    True

    Raises:
        FilterSyntaxError: the text is wrong; the message shows the place and the remedy.
    """
    return Filter(text, parse(text))
