"""The throttle times of users and topics: for how long quotas have held their requests."""

from raftmq.machine.catalog.quotas import Subject

SUBJECTS_MAX = 1000
"""Subjects that are remembered. With more of them, a time may be too long, by the shortest one that
is remembered."""


class ThrottleTimes:
    """The sum of the throttle times of each subject, since the node started.

    Source: the Space-Saving summary (Metwally, Agrawal, El Abbadi, 2005).
    """

    def __init__(self) -> None:
        self.requests = 0
        """Requests that a quota delayed: held in a lane, or POPs that waited for room. Those that
        the order alone held are left out."""
        self.seconds = 0.0
        """The seconds of all these delays together."""
        self.refused = 0
        """Requests that were refused as busy."""
        self._of: dict[tuple[str, str], float] = {}

    def note(self, subject: Subject, seconds: float) -> None:
        """A request of a subject was held."""
        self.requests += 1
        self.seconds += seconds
        key = (subject.kind.value, subject.name)
        before = self._of.get(key, 0.0)
        if key not in self._of and len(self._of) >= SUBJECTS_MAX:
            # A newcomer takes over the least amount: else it would always be the least itself.
            before = self._of.pop(min(self._of, key=self._of.__getitem__))
        self._of[key] = before + seconds

    def most(self, count: int) -> list[tuple[tuple[str, str], float]]:
        """The subjects with the longest times, in seconds."""
        return sorted(self._of.items(), key=lambda each: (-each[1], each[0]))[:count]
