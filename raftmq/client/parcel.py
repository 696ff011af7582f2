"""What is under way: one message (`PendingSend`), one batch (`Parcel`)."""

from .receipts import Receipt


class PendingSend:
    """A message that `send_nowait` took."""

    @property
    def is_done(self) -> bool:
        """True once it is known what became of the message."""
        raise NotImplementedError

    async def wait(self, timeout: float | None = None) -> Receipt:
        """Wait until it is known what became of the message. It may be called again.

        Cancelling stops the waiting, not the sending.

        Raises:
            Unavailable, OutcomeUnknown, Rejected: as `Producer.send`.
            OutcomeUnknown: `timeout` seconds were over; the message stays under way.
        """
        raise NotImplementedError
