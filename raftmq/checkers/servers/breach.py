"""The results of the invariants' functions."""

from typing import NamedTuple

from .evidence import EntryAt


class Breach(NamedTuple):
    """One place where an invariant does not hold."""

    fact: str
    entries: tuple[EntryAt, ...] = ()


class Looked(NamedTuple):
    """The result of an invariant's function."""

    breaches: list[Breach]
    compared: int
    """Single comparisons that could have shown a breach."""


class Unseeable(Exception):
    """The evidence lacks the part that this invariant needs; the message names the part."""


def require_some(part: object, name: str) -> None:
    """Refuse to judge an empty part of the evidence."""
    if not part:
        raise Unseeable(f"there is no {name}")
