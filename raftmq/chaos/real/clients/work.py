"""The protocol between a run and its clients, for all workloads: see `workload` and `registers`."""

from typing import Protocol


class Work(Protocol):
    """The clients of one run."""

    consumers_stand_still: bool
    """Readers hang, and hold the messages that they got."""
    consumer_pause_seconds: float
    """Time that a reader takes for each answer."""

    @property
    def acked(self) -> int:
        """Messages or operations that were acknowledged."""

    @property
    def polled(self) -> int:
        """Messages or registers that were read, without those of `read_all`."""

    @property
    def read_back(self) -> int:
        """Messages that `read_all` has read so far."""

    @property
    def went_back(self) -> int:
        """Positions that a new consumer found before the committed position."""

    @property
    def is_read(self) -> bool:
        """Have the readers read everything?"""

    async def create_topic(self) -> None:
        """Create the topic, before all other calls."""

    async def produce(self) -> None:
        """Run all writers, until `stop`."""

    async def consume(self) -> None:
        """Run all readers, until they reach the ends that `set_ends` found."""

    def stop(self) -> None:
        """End all writers."""

    async def set_ends(self) -> None:
        """Find out where the queues end. Raises `Unavailable`."""

    async def read_all(self) -> None:
        """Read everything from the start, with one more reader."""

    def crash_producer(self) -> None:
        """End one writer between a call and its answer; a new one takes its place."""

    def churn(self) -> None:
        """End all readers; new ones take their places."""

    def restart(self) -> None:
        """End all writers and readers; new ones take their places."""

    def commit_oddly(self, how: str) -> None:
        """Send the next commit `twice`, or send a `late` older commit after it."""
