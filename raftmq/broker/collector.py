"""Python's garbage collector in a node's process: few full collections, at moments that suit.

Reference counts free an object at once; the collector is for cycles. A *full* collection visits
each object that could be part of a cycle, 600,000 of them with 10,000 filters and 20,000 queues,
and the event loop stands still meanwhile. Python makes one whenever a quarter as many objects have
grown old as there were old ones, those counted that are gone again. So a busy node pays for one now
and then, and the collection finds nothing: the node's traffic makes no cycles.

Here Python collects the young objects only, some thousands at a time. The node makes the full
collections itself, by the memory blocks in use and those that were left after the last one:

| blocks in use | a full collection |
|---|---|
| less than a quarter more | never |
| a quarter more | after the first quiet second: nothing written, little computed, loop on time |
| twice as many, and `SPARE_BLOCKS` more | at once |

Modules and all else that is there at the start are frozen: no collection visits them.

Invariants:
- Old garbage in cycles takes at most `SPARE_BLOCKS`, or as many blocks as were left after the last
  full collection if they are more, and what one second brings.
- A node whose blocks in use do not grow makes no full collection.

Left out: the bytes behind a block. A cycle that holds a large buffer counts as a few blocks, so no
object with a buffer may become part of a cycle; connections, which had such cycles, have none.
Python 3.14 ignores the third threshold and collects old objects in small steps, here as well.
"""

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

import trio

LOOK_SECONDS: Final = 1.0
"""Time from one look at the blocks to the next one."""
QUIET_SHARE: Final = 0.25
"""Share of a processor from which on a second is not quiet: the node reads or matches."""
LATE_SECONDS: Final = 0.05
"""Lateness of a look from which on a second is not quiet: others may have the processor, and then a
busy node uses little of it."""
GROWN_TIMES: Final = 1.25
"""Growth after which a full collection waits for a quiet second."""
DOUBLED_TIMES: Final = 2.0
"""Growth after which a full collection waits for nothing, if it is also `SPARE_BLOCKS`."""
SPARE_BLOCKS: Final = 2_000_000
"""Blocks of garbage that a node may hold rather than pause while it is busy: 90 to 250 MB, at 46 to
124 bytes each, as measured with small objects and with trio's."""
_NEVER: Final = 1 << 30


class Collector:
    """The full collections of this process."""

    def __init__(self, *, spare_blocks: int = SPARE_BLOCKS) -> None:
        """Collect and freeze what there is, and take the full collections over from Python."""
        gc.collect()
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        self._spare_blocks = spare_blocks
        self._left = sys.getallocatedblocks()

    def look(self, *, is_quiet: bool) -> bool:
        """Make a full collection if one is due; whether one was made."""
        due = max(DOUBLED_TIMES * self._left, self._left + self._spare_blocks)
        if is_quiet:
            due = GROWN_TIMES * self._left
        if sys.getallocatedblocks() < due:
            return False
        gc.collect()
        self._left = sys.getallocatedblocks()
        return True

    async def run(self, disk_passes: Callable[[], int]) -> None:
        """Look each second, until cancelled; cancellation leaves nothing behind."""
        while True:
            passes, used = disk_passes(), time.process_time()
            due = trio.current_time() + LOOK_SECONDS
            await trio.sleep_until(due)
            is_on_time = trio.current_time() < due + LATE_SECONDS
            is_at_rest = time.process_time() - used < QUIET_SHARE * LOOK_SECONDS
            self.look(is_quiet=is_on_time and is_at_rest and disk_passes() == passes)
