"""A promise was broken: what a run of the core simulator ends with when it finds something."""


class Broken(AssertionError):
    """`name` is an invariant's number; the text says who did what."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text
