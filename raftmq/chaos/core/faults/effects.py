"""The effect of each fault on the simulated cluster, which shows that the fault struck: `strikes`.

The parts of the world count their effects in `Loop.effects`.
"""

from collections.abc import Mapping

HELD = "messages held"
LOST = "messages lost"
DROPPED = "messages dropped"
DELAYED = "messages delayed"
OVERTAKEN = "messages overtaken"
DOUBLED = "messages doubled"
SLOWED = "messages slowed"
LATE = "messages that came late"
AGAIN = "messages sent again"
NEEDLESS = "snapshots that were not needed"
ENDED = "processes ended"
DARK = "machines that went dark"
STOOD = "events that waited"
LAGGED = "records applied late"
STOPPED = "failpoints reached"
SLOW_JOBS = "disk jobs slowed"
SCARCE = "space told as scarce"
DAMAGED = "disks damaged"
TOLD = "wrong times told"
ASKED = "changes asked for"

EFFECTS: Mapping[str, str] = {
    "isolate-node": HELD,
    "split-majority": HELD,
    "split-minority-third": HELD,
    "split-halves": HELD,
    "isolate-leader": HELD,
    "bridge": HELD,
    "majorities-ring": HELD,
    "mute": HELD,
    "deaf": HELD,
    "quorum-loss": HELD,
    "constrained-election": HELD,
    "chain": HELD,
    "flap": HELD,
    "swizzle": HELD,
    "delay": DELAYED,
    "reorder": OVERTAKEN,
    "duplicate": DOUBLED,
    "loss": LOST,
    "burst-loss": HELD,
    "stale-replay": AGAIN,
    "needless-snapshot": NEEDLESS,
    "drop-kind": DROPPED,
    "late-kind": LATE,
    "kill": ENDED,
    "kill-minority": ENDED,
    "kill-majority": ENDED,
    "kill-all": ENDED,
    "kill-leader": ENDED,
    "restart-storm": ENDED,
    "rolling-restart": ENDED,
    "pause": STOOD,
    "pause-leader": STOOD,
    "pause-kill": ENDED,
    "slow-node": SLOWED,
    "slow-apply": LAGGED,
    "crash-point": STOPPED,
    "kill-then-power": DARK,
    "power-loss": DARK,
    "power-loss-majority": DARK,
    "power-loss-all": DARK,
    "torn-write": STOPPED,
    "sync-error": "datasync refused",
    "sync-lies": "datasync refused",
    "write-error": "append refused",
    "read-error": "pread refused",
    "full-disk": SCARCE,
    "slow-disk": SLOW_JOBS,
    "bit-flip": DAMAGED,
    "bad-sector": DAMAGED,
    "unreadable-sector": DAMAGED,
    "misdirected-write": DAMAGED,
    "lost-write": DAMAGED,
    "cut-tail": DAMAGED,
    "lost-hard-state": DAMAGED,
    "wipe": DAMAGED,
    "skew": TOLD,
    "step-clock": TOLD,
    "drift": TOLD,
    "strobe-clock": TOLD,
    "periodic-clock": TOLD,
    "leap-second": TOLD,
    "stall-monotonic": STOOD,
    "add-voter": ASKED,
    "remove-voter": ASKED,
    "promote-learner": ASKED,
    "replace-node": ASKED,
    "remove-leader": ASKED,
    "two-changes": ASKED,
    "change-when-cut": ASKED,
    "rejoin": ASKED,
    "slow-change": SLOW_JOBS,
    "return": ASKED,
}
"""By fault: the effect that is counted if the fault strikes. A test holds this to `HANDLERS`."""
