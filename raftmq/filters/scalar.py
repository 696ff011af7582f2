"""Evaluating formulas on one message, given as a dict of plain values.

A *row* maps names to plain values: `str`, `int`, `float`, `bool` or `bytes` and no subclass of
them; a name that is missing is an absent property. Formulas become closures, which are cheap to
make: an index holds many thousands, most of which are never called.

Invariants:
- A closure never raises, whatever the row holds.
- No text of a filter is ever executed as code.
"""

import operator as operators
from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

from .formula import (
    COMPARE,
    FALSE,
    TAG,
    TRUE,
    Atom,
    Constant,
    Formula,
    Operator,
    Other,
    Pattern,
    Values,
    group,
)
from .like import matcher

Plain = str | int | float | bool | bytes
Row = Mapping[str, Plain]
ValueTest = Callable[[object], bool]
RowTest = Callable[[Row], bool]

_PLAIN: Final = frozenset({str, int, float, bool, bytes})
_NUMBERS: Final = frozenset({int, float})
_TEXT_TESTS: Final[dict[Operator, Callable[[str, str], bool]]] = {
    "CONTAINS": operators.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def plain_row(props: Mapping[str, object], wanted: Iterable[str], tag: str | None) -> Row:
    """The properties that a filter reads, as plain values."""
    row: dict[str, Plain] = {}
    for name in wanted:
        value = tag if name == TAG else props.get(name)
        if value is not None:
            row[name] = cast("Plain", value) if type(value) in _PLAIN else _as_plain(value)
    return row


def _as_plain(value: object) -> Plain:
    """The plain value that a batch would hold of a subclass's (an IntEnum, numpy's float64)."""
    for type_ in (str, int, float):
        if isinstance(value, type_):
            return type_(value)
    # Bytes are present, and compare with no constant.
    return b""


def row_test(formula: Formula) -> RowTest:
    """A function that says whether the formula holds for a row."""
    if isinstance(formula, Atom):
        return _atom_test(formula)
    tests = [row_test(term) for term in formula.terms]
    if len(tests) == 2:
        first, second = tests
        if formula.is_all:
            return lambda row: first(row) and second(row)
        return lambda row: first(row) or second(row)
    return _all_of(tests) if formula.is_all else _any_of(tests)


def _all_of(tests: list[RowTest]) -> RowTest:
    def test(row: Row) -> bool:
        for each in tests:  # noqa: SIM110  # a generator would cost twice as much
            if not each(row):
                return False
        return True

    return test


def _any_of(tests: list[RowTest]) -> RowTest:
    def test(row: Row) -> bool:
        for each in tests:  # noqa: SIM110
            if each(row):
                return True
        return False

    return test


def _atom_test(atom: Atom) -> RowTest:
    name, constant = atom.name, atom.constant
    if isinstance(constant, Other):
        return _pair_test(name, atom.operator, constant)
    if atom.operator == "=" and constant not in (0, 1):
        # Nothing of another family equals it: booleans equal 0 and 1 only.
        return lambda row: row.get(name) == constant
    test = value_test(atom)
    return lambda row: test(row.get(name))


def value_test(atom: Atom) -> ValueTest:
    """A function that says whether the atom holds for a value of its property; None: absent."""
    constant = atom.constant
    match atom.operator:
        case "IS NULL":
            return lambda value: value is None
        case "IS NOT NULL":
            return lambda value: value is not None
        case "IS TRUE":
            return lambda value: value is True
        case "IS FALSE":
            return lambda value: value is False
        case "=" | "<>" | "<" | "<=" | ">" | ">=":
            assert isinstance(constant, str | int | float), atom
            return _comparison(atom.operator, constant)
        case "IN" | "NOT IN":
            assert isinstance(constant, Values), atom
            return _membership(constant.values, atom.operator == "IN")
        case _:
            return _text_test(atom.operator, constant)


def _comparison(operator: Operator, constant: str | int | float) -> ValueTest:
    compare = COMPARE[operator]
    if isinstance(constant, str):
        return lambda value: type(value) is str and compare(value, constant)
    if operator == "<>":
        # NaN is not different either.
        return lambda value: type(value) in _NUMBERS and value == value and value != constant
    return lambda value: type(value) in _NUMBERS and compare(value, constant)


def _membership(constants: tuple[str | int | float, ...], is_in: bool) -> ValueTest:
    values = frozenset(constants)
    if isinstance(constants[0], str):
        return lambda value: type(value) is str and (value in values) is is_in
    return lambda value: type(value) in _NUMBERS and value == value and (value in values) is is_in


def _text_test(operator: Operator, constant: Constant) -> ValueTest:
    is_wanted = not operator.startswith("NOT ")
    if isinstance(constant, Pattern):
        fits = matcher(constant)
        return lambda value: type(value) is str and fits(value) is is_wanted
    assert isinstance(constant, str), operator
    test = _TEXT_TESTS[cast("Operator", operator.removeprefix("NOT "))]
    return lambda value: type(value) is str and test(value, constant) is is_wanted


def _pair_test(name: str, operator: Operator, right: Other) -> RowTest:
    compare = COMPARE[operator]
    other, minuses = right
    has_order = operator not in ("=", "<>")

    def test(row: Row) -> bool:
        a, b = row.get(name), row.get(other)
        if type(a) in _NUMBERS and type(b) in _NUMBERS:
            # Of the comparisons, only `<>` holds for a NaN.
            assert isinstance(a, int | float)
            assert isinstance(b, int | float)
            return a == a and b == b and compare(a, -b if minuses == 1 else b)
        is_comparable = type(a) is str or (type(a) is bool and not has_order)
        return is_comparable and type(a) is type(b) and not minuses and compare(a, b)

    return test


def assume(formula: Formula, name: str, value: Plain | None) -> Formula:
    """The rest of the formula where the property is known to have this value.

    None: the property is absent. Comparisons of two properties stay.
    """
    residual = assuming(formula, name)
    return formula if residual is None else residual(value)


def assuming(formula: Formula, name: str) -> Callable[[Plain | None], Formula] | None:
    """`assume` for many values of one property; None: the formula never changes."""
    if isinstance(formula, Atom):
        if formula.name != name or isinstance(formula.constant, Other):
            return None
        test = value_test(formula)
        return lambda value: TRUE if test(value) else FALSE
    is_all = formula.is_all
    terms = [(term, assuming(term, name)) for term in formula.terms]
    if all(residual is None for _, residual in terms):
        return None
    return lambda value: group(is_all, [r(value) if r else term for term, r in terms])
