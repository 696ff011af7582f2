"""Numbers of things as a person reads them."""


def counted(count: int, what: str, plural: str = "") -> str:
    """A number of things, in English; `plural` if it is not the word with an s.

    >>> counted(1, "message"), counted(1234, "letter"), counted(0, "batch", "batches")
    ('1 message', '1,234 letters', '0 batches')
    """
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"
