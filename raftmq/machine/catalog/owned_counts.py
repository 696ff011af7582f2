"""How many things each user owns."""


class OwnedCounts:
    """Counts by owner, without zeros; the owner "" is not counted."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, owner: str) -> int:
        """How many are the owner's."""
        return self._counts.get(owner, 0)

    def add(self, owner: str, more: int) -> None:
        """Add to an owner's count; negative for a deletion."""
        if not owner or not more:
            return
        count = self.of(owner) + more
        assert count >= 0, f"{owner!r} owns {count}"
        if count:
            self._counts[owner] = count
        else:
            del self._counts[owner]
