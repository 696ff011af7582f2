"""The meaning of a filter: a formula of all-of, any-of and atoms; each holds or does not.

SQL's conditions have three outcomes: true, false, unknown. A filter asks one thing only: is the
whole condition true? So the parser pushes every NOT down to the comparisons, by the laws that hold
for three outcomes as well (NOT of an AND is an OR of NOTs), where it turns one operator into its
opposite. The resulting formula has no NOT, and each atom asks "is this comparison true?", which has
two outcomes. `amount > 5` and its opposite `amount <= 5` are both not true of a message without an
amount: this is the only trace of the third outcome.

| text | formula |
|---|---|
| `a = 1 AND NOT (b > 2 OR c IS NULL)` | all of `a = 1`, `b <= 2`, `c IS NOT NULL` |
| `NOT (a BETWEEN 1 AND 5)` | any of `a < 1`, `a > 5` |
| `TRUE` | all of nothing |
| `FALSE`, `NULL`, `NOT NULL` | any of nothing |

When an atom holds, by the type of the property's value (a *family* is number, text or boolean):

| operator | constant | holds if the value is |
|---|---|---|
| `=` `<>` `<` `<=` `>` `>=` | number or text | of the constant's family, not NaN, and compares so |
| `IN` `NOT IN` | `Values` | of their family, not NaN, and one (none) of them |
| `CONTAINS` `STARTSWITH` `ENDSWITH`, with NOT | text | text that does so (does not) |
| `LIKE` `NOT LIKE` | `Pattern` | text that fits (does not fit) as a whole |
| `IS TRUE` `IS FALSE` | none | that boolean |
| `IS NULL` `IS NOT NULL` | none | absent (present, of any type) |
| `=` `<>` | `Other` | of the other property's family, and equal (different) |
| `<` `<=` `>` `>=` | `Other` | of the other property's family, number or text, and compares so |
| | `Other` with a minus | a number as the other one, and compares so with it negated |

Numbers compare exactly, integers with floats too; texts by their code points, in no locale.

Invariants:
- Equal formulas mean the same: 1 and 1.0 are one constant, and booleans are never constants.
- A group has at least two terms, or none: none is the constant true or false.
- A group's terms are distinct, and none is a group of the same kind.

Left out: minimisation beyond that. `a = 1 AND a = 2` stays as it is written.

Sources: SQL92 §8.12 (search condition); Kleene's strong logic of indeterminacy, whose truth set is
monotone in the outcomes of the atoms.
"""

import operator as operators
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple

Operator = Literal[
    "=", "<>", "<", "<=", ">", ">=", "IN", "NOT IN", "CONTAINS", "NOT CONTAINS", "STARTSWITH",
    "NOT STARTSWITH", "ENDSWITH", "NOT ENDSWITH", "LIKE", "NOT LIKE", "IS TRUE", "IS FALSE",
    "IS NULL", "IS NOT NULL",
]  # fmt: skip

_PAIRS: Final[tuple[tuple[Operator, Operator], ...]] = (
    ("=", "<>"), ("<", ">="), (">", "<="), ("IN", "NOT IN"), ("CONTAINS", "NOT CONTAINS"),
    ("STARTSWITH", "NOT STARTSWITH"), ("ENDSWITH", "NOT ENDSWITH"), ("LIKE", "NOT LIKE"),
    ("IS TRUE", "IS FALSE"), ("IS NULL", "IS NOT NULL"),
)  # fmt: skip
OPPOSITES: Final[dict[Operator, Operator]] = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
}
"""Operator → the operator that is true exactly where the first is false."""
MIRRORED: Final[dict[Operator, Operator]] = {
    "=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
"""Operator → the operator with the same outcome when the sides are exchanged."""
COMPARE: Final[dict[str, Callable[..., bool]]] = {
    "=": operators.eq,
    "<>": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}
"""Operator → its test of two values of one kind."""

Scalar = str | int | float
"""A text or a number."""

TAG: Final = "TAGS"
"""The name under which filters see a message's tag, which hides a property of that name."""


class Pattern(NamedTuple):
    """The constant of LIKE: between two `%` stands a segment of texts, and None for a `_`."""

    segments: tuple[tuple[str | None, ...], ...]


class Values(NamedTuple):
    """The constants of IN: numbers, or texts, each once."""

    values: tuple[Scalar, ...]


class Other(NamedTuple):
    """The property on the right side of a comparison of two."""

    other: str
    """The property's name."""
    minuses: int
    """1: this property has a minus before it. 2: both properties have one, and the atom's operator
    is the one without them: `-a < -b` is `>`. With 1 or 2 only numbers compare."""


Constant = Scalar | Values | Pattern | Other | None


class Atom(NamedTuple):
    """One comparison that holds or does not."""

    operator: Operator
    name: str
    """The property."""
    constant: Constant


class Group(NamedTuple):
    """All of its terms, or any of them. Make one with `group`."""

    is_all: bool
    terms: "tuple[Formula, ...]"


Formula = Atom | Group

TRUE: Final = Group(True, ())
FALSE: Final = Group(False, ())


def group(is_all: bool, terms: Iterable[Formula]) -> Formula:
    """All (or any) of the terms, without superfluous ones."""
    flat: list[Formula] = []
    for term in terms:
        if type(term) is Group:
            if term.is_all is is_all:
                flat += term.terms
                continue
            if not term.terms:
                return term
        flat.append(term)
    # Comparing two is faster than hashing them.
    if len(flat) == 2 and flat[0] != flat[1]:
        return Group(is_all, tuple(flat))
    kept = tuple(dict.fromkeys(flat))
    return kept[0] if len(kept) == 1 else Group(is_all, kept)


def atoms(formula: Formula) -> Iterator[Atom]:
    """All atoms, in the order of the text; one that stands twice comes twice."""
    if isinstance(formula, Atom):
        yield formula
    else:
        for term in formula.terms:
            yield from atoms(term)


def names(formula: Formula) -> list[str]:
    """The properties that a formula reads, each once, in the order of the text."""
    found: dict[str, None] = {}
    for atom in atoms(formula):
        found[atom.name] = None
        if isinstance(atom.constant, Other):
            found[atom.constant.other] = None
    return list(found)


def size(formula: Formula) -> int:
    """The number of a formula's atoms."""
    return 1 if isinstance(formula, Atom) else sum(map(size, formula.terms))
