"""Numbers of things as a person reads them, and the word that a person meant."""

from collections.abc import Iterable


def counted(count: int, what: str, plural: str = "") -> str:
    """A number of things, in English; `plural` if it is not the word with an s.

    >>> counted(1, "message"), counted(1234, "letter"), counted(0, "batch", "batches")
    ('1 message', '1,234 letters', '0 batches')
    """
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def did_you_mean(word: str, known: Iterable[str], *, count: int = 1) -> str:
    """The question for the known words that are like this one, up to `count`; empty: none is.

    >>> did_you_mean("billling", ["alice", "billing"]), did_you_mean("zzz", ["alice"])
    ('; did you mean billing?', '')
    """
    # Loaded for errors alone.
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=count)
    return f"; did you mean {' or '.join(close)}?" if close else ""
