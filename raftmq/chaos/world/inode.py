"""A file's content and a folder's names, and the part of each that a power loss would leave."""

from dataclasses import dataclass, field
from random import Random

from raftmq.chaos.sectors import sectors

"""Bytes that a disk writes as a whole."""


@dataclass(slots=True)
class Inode:
    """A file's content: as the system shows it, and as the disk holds it for sure."""

    data: bytearray = field(default_factory=bytearray)
    low: int = 0
    """Bytes of `data` that are durable: the shortest length of the file since the last sync."""
    durable: bytes | None = None
    """The durable content before an unsynced truncation; None: there was no truncation."""
    synced: list[int] = field(default_factory=list[int])
    """Sizes after the last few syncs, for travel in time."""
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Ranges that the disk dropped and the system shows; a power loss takes them."""
    unreadable: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Ranges of bad sectors: reads answer `EIO` until the file is cut before them, or replaced."""

    @classmethod
    def of(cls, data: bytes) -> "Inode":
        """A file that holds these bytes durably."""
        return cls(bytearray(data), len(data))

    def sync(self) -> None:
        """Make the whole content durable."""
        self.low, self.durable = len(self.data), None
        self.synced = [*self.synced[-31:], self.low]

    def cut(self, size: int) -> None:
        """Truncate; not durable before a sync."""
        if size < self.low:
            if self.durable is None:
                self.durable = bytes(memoryview(self.data)[: self.low])
            self.low = size
        del self.data[size:]
        self.unreadable = [(a, min(b, size)) for a, b in self.unreadable if a < size]

    def spoil(self, start: int, stop: int) -> None:
        """Lose these bytes. Bytes that are appended later are written, so they can be read."""
        self.unreadable.append((start, min(stop, len(self.data))))

    def is_readable(self, start: int, stop: int) -> bool:
        """Whether no bad sector lies in [start, stop)."""
        return not any(a < stop and start < b for a, b in self.unreadable)

    def lose_power(self, random: Random) -> None:
        """Become one of the contents that a power loss may leave."""
        for start, stop in self.lost:
            self.data[start:stop] = bytes(max(min(stop, len(self.data)) - start, 0))
        self.lost = []
        if self.low == len(self.data) and self.durable is None:
            return
        if self.durable is not None and random.random() < 0.3:
            self.data = bytearray(self.durable)  # neither the truncation nor what followed it
        else:
            size = random.choice([len(self.data), random.randint(self.low, len(self.data))])
            del self.data[size:]
            for start, stop in sectors(self.low, size):
                if (fate := random.random()) < 0.5:
                    size = stop - start
                    self.data[start:stop] = bytes(size) if fate < 0.3 else random.randbytes(size)
        self.low, self.durable = len(self.data), None


@dataclass(slots=True)
class Folder:
    """Names: those on the disk for sure, and changes since the last sync, each done as a whole."""

    durable: dict[str, Inode] = field(default_factory=dict[str, Inode])
    names: dict[str, Inode] = field(default_factory=dict[str, Inode])
    pending: list[dict[str, Inode | None]] = field(default_factory=list[dict[str, Inode | None]])
