"""The one error of this folder is `FilterSyntaxError` of `raftmq.errors`; here are its hints."""

from collections.abc import Iterable

from raftmq import words
from raftmq.errors import FilterSyntaxError

__all__ = ["FilterSyntaxError", "did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to this one; empty if none is close."""
    return words.did_you_mean(word.upper(), known)
