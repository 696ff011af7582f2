"""The cover of a formula: equalities of which at least one holds wherever the formula holds.

| formula | covers |
|---|---|
| `a = 1`, `a IN (1, 2)`, `a IS NULL` | `a = 1`; `a = 1` and `a = 2`; `a` absent |
| all of terms | that of any one term: the cheapest |
| any of terms | those of all terms together; none if one term has none |
| anything else | none |

For each equality of the cover, the *residual* is the rest of the formula where the equality holds:
every comparison of that property with a constant is decided there.

`type = 'x' AND (amount > 5 OR type = 'y')` is covered by `type = 'x'` with the residual
`amount > 5`. There is no residual for "different" or "absent": by the cover the formula is false
there. A formula that can hold there has no cover, or one with more equalities.

Invariants:
- A row for which the formula holds has the value of one pair of the cover, and the residual of that
  pair holds for it. A residual that holds for a row of its pair means that the formula holds.

Sources: access predicates (Fabret et al., SIGMOD 2001, §3); the terms that Lucene's monitor
extracts to pre-select queries; partial evaluation under equal and different constants, as ONS did
it with one property of two-valued expressions.
"""

from collections.abc import Callable
from typing import Final

from .formula import Atom, Formula, Values, size

Key = str | int | float | None
"""The value of a property; None: absent."""
Pair = tuple[str, Key]
"""A property and the value that it has."""
Weight = Callable[[str], float]
"""The share of messages that has any one value of this property, as a guess."""

WORK_MAX: Final = 2_000
"""Pairs times atoms of a formula that is covered: bounds the time that adding one may take."""


def cover(formula: Formula, weight: Weight, *, pairs_max: int = WORK_MAX) -> list[Pair] | None:
    """The cheapest cover, each pair once; None if there is none within the limits."""
    found = _cover(formula, weight)
    if found is None:
        return None
    pairs = list(dict.fromkeys(found[1]))
    if len(pairs) > pairs_max or len(pairs) * size(formula) > WORK_MAX:
        return None
    return pairs


def _cover(formula: Formula, weight: Weight) -> tuple[float, list[Pair]] | None:
    """A cover and its cost: the share of messages that has one of its pairs."""
    if isinstance(formula, Atom):
        return _cover_atom(formula, weight)
    found = [_cover(term, weight) for term in formula.terms]
    if formula.is_all:
        # `min` takes the first of equals, so that all replicas choose alike.
        return min(filter(None, found), key=lambda each: each[0], default=None)
    cost = 0.0
    pairs: list[Pair] = []
    for each in found:
        if each is None:
            return None
        cost += each[0]
        pairs += each[1]
    return cost, pairs


def _cover_atom(atom: Atom, weight: Weight) -> tuple[float, list[Pair]] | None:
    constant = atom.constant
    if atom.operator == "IS NULL":
        return 1.0, [(atom.name, None)]
    if atom.operator == "=" and isinstance(constant, str | int | float):
        return weight(atom.name), [(atom.name, constant)]
    if atom.operator == "IN":
        assert isinstance(constant, Values), atom
        values = constant.values
        return len(values) * weight(atom.name), [(atom.name, value) for value in values]
    return None


def keys(formula: Formula) -> list[Pair]:
    """All equalities that stand anywhere in it."""
    if isinstance(formula, Atom):
        found = _cover_atom(formula, lambda name: 1.0)
        return found[1] if found else []
    return [pair for term in formula.terms for pair in keys(term)]
