"""What each fault does to the world if it strikes: only that is counted as a fault.

The parts of the made-up world count what befalls them (`Agenda.effects`): pieces that were held,
calls that were refused, processes that ended. A fault has struck if the count of its effect rose
between its begin and its end, or the heal for one that happens once. A fault that found nothing to
strike, or whose handler does nothing, is not counted.

Left out: whose effect it was, if two faults of one effect overlap.
"""

from collections.abc import Mapping

HELD = "pieces held"
ENDED = "processes ended"
DARK = "machines that went dark"
STOOD = "processes that stood still"
DAMAGED = "disks damaged"
TOLD = "wrong times told"
AGAIN = "frames sent again"
ASKED = "changes asked for"
STRUCK = "pieces struck"
SCARCE = "space told as scarce"
STOPPED = "crash points reached"

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
    "cut-clients": HELD,
    "flap": HELD,
    "swizzle": HELD,
    "burst-loss": HELD,
    "outage": HELD,
    "lost-names": "names without an address",
    "strangers": "strangers that came",
    "delay": "pieces delayed",
    "reorder": "pieces overtaken",
    "loss": "pieces lost",
    "slow-link": "pieces slowed",
    "half-open": "pieces swallowed",
    "cut-in-frame": STRUCK,
    "corrupt-frame": STRUCK,
    "duplicate": AGAIN,
    "stale-replay": AGAIN,
    "client-resend": AGAIN,
    "drop-kind": "messages dropped",
    "old-address": "strangers that listened",
    "kill": ENDED,
    "kill-minority": ENDED,
    "kill-majority": ENDED,
    "kill-all": ENDED,
    "kill-leader": ENDED,
    "restart-storm": ENDED,
    "rolling-restart": ENDED,
    "stop": ENDED,
    "pause-kill": ENDED,
    "power-loss": DARK,
    "power-loss-majority": DARK,
    "power-loss-all": DARK,
    "pause": STOOD,
    "pause-leader": STOOD,
    "slow-node": STOOD,
    "stall-loop": STOOD,
    "stall-monotonic": STOOD,
    "client-hang": STOOD,
    "crash-point": STOPPED,
    "torn-write": STOPPED,
    "crash-write": STOPPED,
    "move-group": "groups moved",
    "return-node": "nodes that returned",
    "return-blank": "nodes that returned",
    "lose-group": ENDED,
    "sync-error": "datasync refused",
    "sync-lies": "datasync refused",
    "write-error": "append refused",
    "read-error": "pread refused",
    "full-disk": SCARCE,
    "full-quota": SCARCE,
    "low-disk": SCARCE,
    "short-write": "writes in two parts",
    "interrupted-write": "writes in two parts",
    "read-only": "changes refused",
    "slow-disk": "disk jobs slowed",
    "unreadable-sector": DAMAGED,
    "bit-flip": DAMAGED,
    "bad-sector": DAMAGED,
    "misdirected-write": DAMAGED,
    "lost-write": DAMAGED,
    "time-travel": DAMAGED,
    "cut-tail": DAMAGED,
    "missing-segment": DAMAGED,
    "lost-hard-state": DAMAGED,
    "wipe": DAMAGED,
    "clone": DAMAGED,
    "sync-reordered": DAMAGED,
    "skew": TOLD,
    "step-clock": TOLD,
    "drift": TOLD,
    "strobe-clock": TOLD,
    "periodic-clock": TOLD,
    "leap-second": TOLD,
    "add-voter": ASKED,
    "remove-voter": ASKED,
    "promote-learner": ASKED,
    "replace-node": ASKED,
    "remove-leader": ASKED,
    "two-changes": ASKED,
    "change-when-cut": ASKED,
    "rejoin": ASKED,
    "client-crash": "clients ended",
    "client-churn": "clients ended",
    "client-slow": "consumers slowed",
    "client-ack-twice": "acks repeated",
    "client-ack-late": "acks of what was over",
    "retry-storm": "connections reset",
}
"""By fault: what it does if it strikes. A test holds this to the handlers."""
