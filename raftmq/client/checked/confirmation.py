"""Is a suspicion about a lease true? The message's trace tells: the records of the log itself.

| suspicion | confirmed, if between the two hand-outs in the log |
|---|---|
| redelivered-after-ack | no reset of the group stands |
| two-leases | nothing ended the first lease, or it ran out before its end |
"""

from raftmq.checkers.witness.leases import Suspicion
from raftmq.client.admin.traces import MessageEvent, Trace

_GOES_ON = ("handed out", "extended")


def is_true(suspicion: Suspicion, trace: Trace) -> bool | None:
    """Whether the log shows the breach; None: the log no longer shows both hand-outs."""
    for journey in trace.journeys:
        tokens = {event.token: at for at, event in enumerate(journey.events) if _is_hand_out(event)}
        first, second = tokens.get(suspicion.first), tokens.get(suspicion.second)
        if first is None and second is None:
            continue
        if first is None or second is None:
            # The group was detached between, or retention took the older records.
            return False if trace.is_whole else None
        between = journey.events[first + 1 : second]
        if suspicion.anomaly == "redelivered-after-ack":
            return not any(event.what == "reset" for event in between)
        return _ran([journey.events[first], *between])
    return None


def _is_hand_out(event: MessageEvent) -> bool:
    return event.what == "handed out"


def _ran(events: list[MessageEvent]) -> bool:
    """Whether the lease that the first event begins still ran after the others."""
    until = 0
    for event in events:
        if event.what in _GOES_ON:
            until = event.until
        else:
            return event.what == "expired" and event.timestamp < until
    return True
