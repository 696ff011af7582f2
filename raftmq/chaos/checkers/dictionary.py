"""The anomalies that checkers report, by name, each with its explanation.

The names are what a report, a test and `raftmq chaos list` use; the explanations are data so that
each can be printed beside what was found.

Sources: Jepsen's total-queue and Kafka workloads, Adya's G1a, Jepsen's NATS analysis (where a loss
lies), Gibbons and Korach 1997.
"""

from collections.abc import Mapping
from types import MappingProxyType

ANOMALIES: Mapping[str, str] = MappingProxyType(
    {
        # Queues: what went in against what came out.
        "lost-prefix": "A message was acknowledged and never delivered, and it was sent before "
        "all that was delivered of its sender: a start of the log is missing, as when retention or "
        "a snapshot cuts too much.",
        "lost-middle": "A message was acknowledged and never delivered, while earlier and later "
        "ones of the same sender were: a hole in what was durable. No slow reader explains it.",
        "lost-postfix": "A message was acknowledged and never delivered, and nothing that its "
        "sender sent later was: an end of the log is missing, as after a power loss without a "
        "sync, or the reader had not come that far.",
        "unexpected": "A message was delivered that nobody ever sent.",
        "aborted-read": "A message was delivered whose send had failed for sure: `fail` promises "
        "that it did not happen and never will (Adya's G1a).",
        "duplicated": "A message was delivered more than once. At-least-once delivery allows it; "
        "exactly-once does not.",
        "redelivered-after-ack": "A delivery was asked for after the message's ack had completed, "
        "and brought the message again.",
        # Logs: offsets.
        "lost-write": "A message was acknowledged at an offset, later offsets were read, and "
        "nobody ever read it.",
        "unseen": "A message was acknowledged, and no reader ever came as far as its offset, "
        "though readers had the time to drain the log.",
        "inconsistent-offset": "One offset of one queue held two different messages: two replicas "
        "or two moments disagree about the log.",
        "duplicate": "One message, sent once, stands at two offsets.",
        "poll-skip": "A reader's next poll passed over an offset that holds a message.",
        "nonmonotonic-poll": "A reader's next poll went back to an offset it had read already.",
        "internal-poll-skip": "Inside one poll a message was passed over.",
        "internal-nonmonotonic-poll": "Inside one poll the offsets do not rise.",
        "nonmonotonic-send": "A later send of one producer got a lower offset than an earlier one.",
        "internal-nonmonotonic-send": "Inside one send of several messages the offsets do not "
        "rise.",
        "internal-send-skip": "Inside one send of several messages another message came between, "
        "although such a send is one entry of the log.",
        "realtime-send": "A send began after another message of the queue was acknowledged, and "
        "got a lower offset.",
        "realtime-lag": "A poll missed a message that had been acknowledged longer ago than the "
        "bound allows.",
        # Order by key.
        "order-inversion": "Two messages of one sender and one key were first delivered in "
        "another order than they were sent in.",
        "order-overtake": "A message of a key was delivered while an earlier one of that key was "
        "out for delivery and not acked yet.",
        # Registers.
        "nonlinearizable": "No order of the operations explains the answers, if each took effect "
        "at one moment between its call and its answer.",
        "phantom-read": "A read returned a value that nobody had written, or before its write "
        "began.",
        "zone-overlap": "Two values were each current during the same moment: forward zones "
        "overlap (Gibbons and Korach, condition 2).",
        "zone-inside": "A value was written and read wholly while another was current the whole "
        "time: a backward zone lies inside a forward zone (Gibbons and Korach, condition 3).",
    }
)
