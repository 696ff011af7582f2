"""The operands of a comparison, and the formula of the comparison.

Each function that makes a formula takes the *wanted* outcome: the comparison is true, or it is
false. The atom always has its property on the left, without a minus:

| text | atom |
|---|---|
| `5 < a` | `a > 5` |
| `-a < 5` | `a > -5` |
| `-a < -b` | `a > b`, of numbers only |
| `1 < 2` | `TRUE` |

Sources: RocketMQ's ComparisonExpression for the refusals.
"""

from functools import partial
from types import NoneType
from typing import NamedTuple

from .formula import (
    COMPARE,
    FALSE,
    MIRRORED,
    OPPOSITES,
    TRUE,
    Atom,
    Formula,
    Operator,
    Other,
    Scalar,
)
from .literals import INTEGER_MIN


class Property(NamedTuple):
    """An operand: the value of a property, perhaps with a minus before it."""

    name: str
    is_negated: bool


Literal = Scalar | bool | None
Operand = Property | Literal

# The call that a NamedTuple's own `__new__` makes, in half the time: filters are mostly these.
new_property = partial(tuple.__new__, Property)
_new_atom = partial(tuple.__new__, Atom)


def compare(left: Operand, operator: Operator, right: Operand, wanted: bool) -> Formula:
    """The formula of a comparison.

    Raises:
        ValueError: the operands do not compare; the message says why.
    """
    if not isinstance(left, Property):
        if not isinstance(right, Property):
            return compare_literals(left, operator, right, wanted)
        left, operator, right = right, MIRRORED[operator], left
    if left.is_negated:
        operator = MIRRORED[operator]
    if isinstance(right, Property):
        operator = operator if wanted else OPPOSITES[operator]
        return Atom(operator, left.name, Other(right.name, left.is_negated + right.is_negated))
    if left.is_negated:
        right = _negated(right)
    if right is None or isinstance(right, bool):
        _check(right, operator)
        is_true = ((right is True) is (operator == "=")) is wanted
        return Atom("IS TRUE" if is_true else "IS FALSE", left.name, None)
    return _new_atom((operator if wanted else OPPOSITES[operator], left.name, right))


def compare_literals(left: Literal, operator: Operator, right: Literal, wanted: bool) -> Formula:
    """`TRUE` or `FALSE`.

    Raises:
        ValueError: as `compare`.
    """
    for value in (left, right):
        _check(value, operator)
    if family(left) != family(right):
        raise ValueError(f"{family(left)} and {family(right)} do not compare")
    return TRUE if COMPARE[operator](left, right) is wanted else FALSE


def family(value: Literal) -> str:
    """The family of values that a literal compares with."""
    if value is None or isinstance(value, bool):
        return "a boolean"
    return "a text" if isinstance(value, str) else "a number"


def _negated(literal: Literal) -> Literal:
    if isinstance(literal, (bool, str, NoneType)):
        raise ValueError("a minus stands before numbers, and this is compared with none")
    # As a float 2^63 is exact.
    return -literal if literal != INTEGER_MIN else -float(literal)


def _check(value: Literal, operator: str) -> None:
    if value is None:
        problem = "nothing compares with NULL: write IS NULL or IS NOT NULL (== nil or != nil)"
        raise ValueError(problem)
    if isinstance(value, bool) and operator not in ("=", "<>"):
        raise ValueError("TRUE and FALSE have no order: write = or <>")
