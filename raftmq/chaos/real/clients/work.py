"""What a run asks of its clients, whatever it is that they do: see `workload` and `registers`."""

from typing import Protocol


class Work(Protocol):
    """The clients of one run."""

    consumers_stand_still: bool
    """Whoever reads holds what it was handed."""
    consumer_pause_seconds: float
    """Whoever reads takes so long for each answer."""

    @property
    def acked(self) -> int:
        """Messages or operations that were acknowledged."""

    @property
    def polled(self) -> int:
        """Messages or registers that were read while things broke."""

    @property
    def read_back(self) -> int:
        """Messages that `read_all` has read so far."""

    @property
    def went_back(self) -> int:
        """Positions that were found before what had been committed."""

    @property
    def is_read(self) -> bool:
        """Whether everything that was to be read was."""

    async def create_topic(self) -> None:
        """Before all else."""

    async def produce(self) -> None:
        """All that writes, until `stop`."""

    async def consume(self) -> None:
        """All that reads on its own, until `set_ends` told where to stop."""

    def stop(self) -> None:
        """Write no more."""

    async def set_ends(self) -> None:
        """Find out where the queues end. Raises `Unavailable`."""

    async def read_all(self) -> None:
        """Read everything once more from the start."""

    def crash_producer(self) -> None:
        """One writer ends between a call and its answer; another one takes its place."""

    def churn(self) -> None:
        """All readers end; others come."""

    def commit_oddly(self, how: str) -> None:
        """The next commit comes `twice`, or is followed by a `late` older one."""
