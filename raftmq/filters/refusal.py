"""The one error of this folder is `FilterSyntaxError` of `raftmq.errors`; here are its hints."""

from collections.abc import Iterable

from raftmq.errors import FilterSyntaxError

__all__ = ["FilterSyntaxError", "did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to this one; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(word.upper(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
