"""What an invariant's function gives back."""

from typing import NamedTuple

from .evidence import EntryAt


class Breach(NamedTuple):
    """One place where an invariant does not hold."""

    fact: str
    entries: tuple[EntryAt, ...] = ()


class Looked(NamedTuple):
    """What an invariant's function found."""

    breaches: list[Breach]
    compared: int
    """Single comparisons that could have shown a breach."""


class Unseeable(Exception):
    """The evidence lacks what this invariant is about; the message names the part."""


def require_some(part: object, name: str) -> None:
    """Refuse to judge an empty part of the evidence."""
    if not part:
        raise Unseeable(f"there is no {name}")
