"""Sectors of a disk: a power loss keeps or loses each on its own.

Nothing of raftmq is imported here: the process of a real disk that can fail starts with it.
"""

SECTOR_BYTES = 512


def sectors(start: int, stop: int) -> list[tuple[int, int]]:
    """The pieces of [start, stop) between multiples of the sector size.

    >>> sectors(500, 1030)
    [(500, 512), (512, 1024), (1024, 1030)]
    """
    pieces = []
    while start < stop:
        end = min(stop, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        pieces.append((start, end))
        start = end
    return pieces
