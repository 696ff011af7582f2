"""Formulas that need a value above or below a constant, in the order of these constants.

`amount > 9000 AND weight < 20` has no equality for a table, but holds only where `amount > 9000`
holds: its *guard*. All formulas of a node whose guards have the same property and direction stand
in one sorted list, and a bisection finds those whose guards hold.

Invariants:
- `passing` gives at least those formulas that hold; they are evaluated as a whole afterwards.
- Constants in one list are all numbers or all texts.

Left out: guards inside of an OR, and choosing the guard that holds least often: the first is taken.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from .formula import Atom, Formula, Operator, Scalar

T = TypeVar("T")

Guard = tuple[str, Operator, type]
"""The property, the direction, and `str` or `float` for texts or numbers."""

_DIRECTIONS = frozenset({"<", "<=", ">", ">="})


def guard(formula: Formula) -> tuple[Guard, Scalar] | None:
    """A comparison with a constant that holds wherever the formula does; None: it has none."""
    terms = (formula,) if isinstance(formula, Atom) else formula.terms if formula.is_all else ()
    for term in terms:
        if isinstance(term, Atom) and term.operator in _DIRECTIONS:
            constant = term.constant
            if isinstance(constant, str | int | float):
                family = str if isinstance(constant, str) else float
                return (term.name, term.operator, family), constant
    return None


class Thresholds(Generic[T]):
    """The formulas behind one guard: constant -> formula -> a value of the caller's."""

    __slots__ = ("_behind", "_constants", "_operator")

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        # Any: all are of one family, which the types cannot say.
        self._constants: list[Any] = []
        self._behind: dict[Scalar, dict[Formula, T]] = {}

    def __bool__(self) -> bool:
        return bool(self._constants)

    def put(self, constant: Scalar) -> dict[Formula, T]:
        """The formulas behind this constant, for the caller to change."""
        behind = self._behind.get(constant)
        if behind is None:
            behind = self._behind[constant] = {}
            insort(self._constants, constant)
        return behind

    def tidy(self, constant: Scalar) -> None:
        """Forget the constant if no formula stands behind it."""
        if not self._behind[constant]:
            del self._behind[constant]
            del self._constants[bisect_left(self._constants, constant)]

    def passing(self, value: Scalar) -> Iterator[T]:
        """The values whose guard holds for `value`, which is of the constants' family."""
        constants = self._constants
        match self._operator:
            case ">":
                constants = constants[: bisect_left(constants, value)]
            case ">=":
                constants = constants[: bisect_right(constants, value)]
            case "<":
                constants = constants[bisect_right(constants, value) :]
            case _:
                constants = constants[bisect_left(constants, value) :]
        for constant in constants:
            yield from self._behind[constant].values()

    def values(self) -> Iterator[T]:
        """The values behind all constants."""
        for behind in self._behind.values():
            yield from behind.values()
