"""The error of a broken promise, which ends a run of the core simulator."""


class Broken(AssertionError):
    """`name` is an invariant's number; the text says which node did what."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text
