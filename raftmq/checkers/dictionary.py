"""The anomalies that checkers report, by name, each with its explanation.

Reports, tests and `raftmq chaos list` use the names; the explanations are data, so that each can be
printed beside a finding.

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
        "unexpected": "A message was delivered that was never sent.",
        "aborted-read": "A message was delivered whose send had failed for sure: `fail` promises "
        "that it did not happen and never will (Adya's G1a).",
        "duplicated": "A message was delivered more than once. At-least-once delivery allows it; "
        "exactly-once does not.",
        "redelivered-after-ack": "A delivery was asked for after the message's ack had completed, "
        "and brought the message again.",
        # Logs: offsets.
        "lost-write": "A message was acknowledged at an offset, later offsets were read, and the "
        "message never was.",
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
        # Consumer groups that pop: the fate of a message.
        "pop-lost": "A message was acknowledged, and in the end it is neither acked by a consumer, "
        "nor a dead letter, nor left to do: a hand-out was forgotten, or never made.",
        "unwanted": "A message was handed out that the group's filter keeps back.",
        "stale-delivery": "A pop gave a message that had been settled for good before the pop was "
        "begun; it had been taken ahead, with a lease that had run out since.",
        "settled-twice": "Two calls settled a message, and only one of them can have had it.",
        "stale-settled": "A token settled a message that had been handed out again with a later "
        "token: two consumers had it at the same time, or stale tokens are believed.",
        "foreign-settled": "A consumer settled a message with a token that another one had been "
        "handed.",
        "unfenced": "A token was refused as stale, and the same token settled the message later.",
        "attempt-miscounted": "A message was handed out again, and its attempt is not one more "
        "than the last time; or one more, although it had been given back.",
        "attempts-exceeded": "A message was handed out more often than its group allows.",
        "buried-early": "A message is a dead letter, and neither had it failed as often as its "
        "group allows, nor had a consumer rejected it for this reason.",
        "buried-twice": "A message stands in two dead letters.",
        "not-buried": "A message was rejected, or failed for the last time, and is no dead letter.",
        "delivered-after-burial": "A message was handed out after it had been rejected, or had "
        "failed for the last time, without a request to do so.",
        "books-unbalanced": "A broker's figures of a group's backlog do not add up, or differ from "
        "what clients did.",
        # Consumer groups that pop: leases.
        "token-reused": "One token stands for two hand-outs: of two consumers, of two attempts, or "
        "of one message twice.",
        "token-order": "A pop that was begun after another one had ended gave a smaller token: a "
        "store that tells old owners from new ones by tokens refuses the new one.",
        "expired-delivery": "An application was given a message whose lease had run out.",
        "two-leases": "A message was handed out again while a consumer surely had it in hand and "
        "had not given it back.",
        "fenced-wrongly": "A lease was refused as stale although it surely ran and nothing else "
        "had settled it.",
        "redelivered-early": "A message that failed was handed out before its wait was over.",
        "redelivered-late": "A message that was due was not handed out in time, although a "
        "consumer popped all the time.",
        "key-inversion": "In an ordered group a message was handed out after a later one of its "
        "key had been.",
        "key-overtake": "In an ordered group a message was handed out while an earlier one of its "
        "key was not settled.",
        "rest-delivered": "In an ordered group a consumer was given a later message of a lease "
        "after an earlier one that it is in order with had failed, or was no longer its own.",
        "lease-inversion": "In an ordered group a consumer was given a message of a lease after a "
        "later one that is in order with it.",
        # Messages that are stored before they may be seen.
        "delivered-early": "A delayed message came before its time, by the stamp of the leader "
        "that put it into its queue, or by the clocks of clients.",
        "delivered-after-cancel": "A delayed message was taken back in time, and came all the "
        "same.",
        "half-visible": "A message of a transaction came before any request to commit it.",
        "delivered-after-rollback": "A transaction was rolled back, and a message of it came.",
        "transaction-torn": "Some messages of a transaction came, and another one, that was "
        "acknowledged, never did.",
        "withheld-lost": "A delayed message fell due, or a transaction committed, and the message, "
        "which was acknowledged, never came.",
        "outcome-changed": "A transaction was reported as committed and as rolled back, or with an "
        "outcome that was never requested.",
        "undecided-unlisted": "A transaction without an outcome is not in the list of open ones: "
        "no check-back would ever decide it.",
        "ended-listed": "A transaction that has ended is listed as open.",
        # Claims, hand-offs, groups that are moved or broadcast, topics that change.
        "claims-overlap": "A claim was granted while another one of its key surely ran: two "
        "consumers do what only one may do.",
        "claim-disowned": "The first call that gave up a claim with long to run was told that "
        "the claim was over: its holder believes that another consumer did the work.",
        "made-twice": "Of one input two outputs can be seen: a hand-off counted twice, or the "
        "input came again although it was acknowledged with its output.",
        "made-undone": "An output can be seen of a transaction that was rolled back, never "
        "committed, or never begun.",
        "made-lost": "A hand-off was committed, and an output of it cannot be seen.",
        "input-lost": "An input was acknowledged to its producer, all inputs are done with, and "
        "no output of it can be seen.",
        "reset-lost": "A group was moved back, and a message behind the place was never "
        "acknowledged after that.",
        "reset-unfenced": "A group was moved, and a token that had been handed out before settled "
        "a message after it.",
        "clone-early": "A group was made as a clone of another one, and was handed a message "
        "before the place where that one stood.",
        "instance-skipped": "An instance of a broadcast group passed over a message, without being "
        "moved.",
        "instance-went-back": "An instance of a broadcast group went back behind what it had "
        "committed, without being moved.",
        "instance-lost": "A message was acknowledged, and an instance of a broadcast group that "
        "read to the end never got it.",
        "topic-ghost": "A topic was deleted and made again, and a message of its former life came, "
        "or one that was sent to the topic while it was deleted.",
        "topic-revived": "A deleted topic was there again before a client made the topic again: "
        "the first creation took effect twice.",
        # Registers.
        "nonlinearizable": "No order of the operations explains the answers, if each took effect "
        "at one moment between its call and its answer.",
        "phantom-read": "A read returned a value that was never written, or before its write "
        "began.",
        "zone-overlap": "Two values were each current during the same moment: forward zones "
        "overlap (Gibbons and Korach, condition 2).",
        "zone-inside": "A value was written and read wholly while another was current the whole "
        "time: a backward zone lies inside a forward zone (Gibbons and Korach, condition 3).",
    }
)
