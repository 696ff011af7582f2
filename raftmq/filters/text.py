"""A formula as text again: SQL that `compile` reads as the same formula.

>>> from raftmq.filters import compile
>>> str(compile("NOT (a BETWEEN 1 AND 5 OR city LIKE 'P_r%')"))
"(a < 1 OR a > 5) AND city NOT LIKE 'P_r%'"
"""

import re
from typing import Final

from .formula import MIRRORED, Atom, Formula, Group, Other, Pattern, Scalar, Values

KEYWORDS: Final = frozenset(
    (
        *("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "LIKE", "ESCAPE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH", "TRUE", "FALSE"),
    )
)
NIL: Final = "nil"
"""NULL in a text with signs such as `==`; elsewhere a property of this name."""
ESCAPE: Final = "!"
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def formula_text(formula: Formula) -> str:
    """The formula as SQL."""
    if isinstance(formula, Atom):
        return atom_text(formula)
    if not formula.terms:
        return "TRUE" if formula.is_all else "FALSE"
    word = " AND " if formula.is_all else " OR "
    return word.join(f"({formula_text(t)})" if type(t) is Group else formula_text(t)
                     for t in formula.terms)  # fmt: skip


def atom_text(atom: Atom) -> str:
    """One comparison as SQL."""
    name = name_text(atom.name)
    match atom.constant:
        case None if atom.operator in ("IS TRUE", "IS FALSE"):
            return f"{name} = {atom.operator.removeprefix('IS ')}"
        case None:
            return f"{name} {atom.operator}"
        case Pattern():
            return f"{name} {atom.operator} {pattern_text(atom.constant)}"
        case Other(other, 2):
            return f"-{name} {MIRRORED[atom.operator]} -{name_text(other)}"
        case Other(other, minuses):
            return f"{name} {atom.operator} {'-' * minuses}{name_text(other)}"
        case Values(values):
            return f"{name} {atom.operator} ({', '.join(map(scalar_text, values))})"
        case _:
            return f"{name} {atom.operator} {scalar_text(atom.constant)}"


def name_text(name: str) -> str:
    """A property's name, in backticks where it must be, or would mean NULL beside signs."""
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in KEYWORDS and name != NIL:
        return name
    doubled = name.replace("`", "``")
    return f"`{doubled}`"


def scalar_text(value: Scalar) -> str:
    """A number or a text as a literal."""
    if isinstance(value, str):
        doubled = value.replace("'", "''")
        return f"'{doubled}'"
    return repr(value)


def pattern_text(pattern: Pattern) -> str:
    """The pattern of a LIKE, with ESCAPE where it needs one."""
    written = "%".join(
        "".join("_" if run is None else re.sub("[%_!]", r"!\g<0>", run) for run in segment)
        for segment in pattern.segments
    )
    needs_escape = any(
        run is not None and re.search("[%_]", run)
        for segment in pattern.segments
        for run in segment
    )
    if needs_escape:
        return f"{scalar_text(written)} ESCAPE '{ESCAPE}'"
    return scalar_text(written.replace("!!", "!"))
