"""Filters for people: the tree, where the index puts it, and why a message matches or does not.

>>> from .parser import parse
>>> formula = parse("type = 'x' AND (amount > 5 OR vip = TRUE)")
>>> print(*tree_lines(formula), sep="\\n")
all of
  type = 'x'
  any of
    amount > 5
    vip = TRUE
>>> buckets(formula)
[Bucket(name='type', key='x', residual='amount > 5 OR vip = TRUE')]
>>> print(*verdict_lines(formula, {"type": "x", "amount": 3}), sep="\\n")
unknown  all of
true       type = 'x'              type is 'x'
unknown    any of
false        amount > 5            amount is 3
unknown      vip = TRUE            vip is absent
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .cover import Key, cover
from .formula import FALSE, OPPOSITES, TRUE, Atom, Formula, Group, Other
from .ranges import guard
from .scalar import Plain, Row, assume, row_test
from .text import atom_text, formula_text, name_text, scalar_text

_INDENT = "  "
_TEXT_COLUMNS = 24


class Bucket(NamedTuple):
    """One place in the index: messages that have this value meet this residual."""

    name: str
    """The property."""
    key: Key
    """The property's value; None: absent."""
    residual: str
    """The residual to evaluate, as SQL; `TRUE`: none."""


def placing(formula: Formula) -> str:
    """A sentence that says where an index places the formula."""
    if formula == TRUE:
        return "every message matches: nothing is evaluated"
    if formula == FALSE:
        return "no message can match: it is not in the index"
    if buckets(formula) is not None:
        return "only messages with one of these values are looked at"
    if guard(formula) is not None:
        return (
            "no equality must hold for it to match, but a range: it stands in the order of bounds"
        )
    return "no equality must hold for it to match: it is evaluated for every batch"


def buckets(formula: Formula) -> list[Bucket] | None:
    """The places in an index of this formula alone; None: the index would evaluate it always."""
    pairs = cover(formula, lambda name: 0.5)
    if pairs is None:
        return None
    return [Bucket(n, key, formula_text(assume(formula, n, key))) for n, key in pairs]


def tree_lines(formula: Formula, depth: int = 0) -> Iterator[str]:
    """The formula as an indented tree."""
    yield _INDENT * depth + _own_text(formula)
    if isinstance(formula, Group):
        for term in formula.terms:
            yield from tree_lines(term, depth + 1)


def _own_text(formula: Formula) -> str:
    if isinstance(formula, Atom):
        return atom_text(formula)
    if not formula.terms:
        return formula_text(formula)
    return "all of" if formula.is_all else "any of"


def outcome(formula: Formula, row: Row) -> str:
    """`true`, `false` or `unknown`, as SQL's logic has it."""
    if row_test(formula)(row):
        return "true"
    return "false" if row_test(_opposite(formula))(row) else "unknown"


def _opposite(formula: Formula) -> Formula:
    if isinstance(formula, Atom):
        return Atom(OPPOSITES[formula.operator], formula.name, formula.constant)
    return Group(not formula.is_all, tuple(map(_opposite, formula.terms)))


def verdict_lines(formula: Formula, row: Row, depth: int = 0) -> Iterator[str]:
    """The tree with the outcome of each part for one message, and the values that made it so."""
    text = _INDENT * depth + _own_text(formula)
    facts = ""
    if isinstance(formula, Atom):
        facts = ", ".join(_fact(name, row.get(name)) for name in _names(formula))
    yield f"{outcome(formula, row):<7}  {text:<{_TEXT_COLUMNS}}  {facts}".rstrip()
    if isinstance(formula, Group):
        for term in formula.terms:
            yield from verdict_lines(term, row, depth + 1)


def _names(atom: Atom) -> list[str]:
    return [atom.name, atom.constant.other] if isinstance(atom.constant, Other) else [atom.name]


def _fact(name: str, value: Plain | None) -> str:
    return f"{name_text(name)} is {value_text(value)}"


def sample(formula: Formula) -> Row:
    """A message that the index would look at: it has the first equality, and nothing else."""
    for name, key, _ in buckets(formula) or ():
        if key is not None:
            return {name: key}
    return {}


def row_text(row: Row) -> str:
    """A message in one line."""
    return ", ".join(f"{name_text(name)} = {value_text(row[name])}" for name in row) or "empty"


def value_text(value: Plain | None) -> str:
    """A property's value as it would stand in a filter."""
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return f"{len(value)} bytes" if isinstance(value, bytes) else scalar_text(value)


def index_lines(
    subscriptions: int, distinct: int, spread: Mapping[str | None, tuple[int, int]]
) -> Iterator[str]:
    """The lines of `Index.explain`; `spread` is that of the root node."""
    yield f"{subscriptions} subscriptions, {distinct} distinct"
    for name, (values, entries) in spread.items():
        if name is not None:
            yield f"indexed by {name_text(name)}: {values} values, {entries} residuals"
    formulas, _ = spread[None]
    yield f"not indexed: {formulas}, evaluated for each batch, for a message if in its range"
