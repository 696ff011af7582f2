"""Elections: campaigns, votes, and what a message's term means.

Raft §5.1: "If one server's current term is smaller than the other's, then it updates its current
term to the larger value. If a candidate or leader discovers that its term is out of date, it
immediately reverts to follower state. If a server receives a request with a stale term number,
it rejects the request."

Two refinements keep nodes that come and go from unseating a working leader: a pre-vote asks before
it raises the term (thesis §9.6), and a node that hears from a leader does not listen to candidates
(thesis §4.2.3). A transfer's candidate is exempt from both.

Invariants:
- At most one vote a term, durable before it is sent (Raft §5.2, §5.4.1).
- Only a log at least as up-to-date as ours gets our vote (Raft §5.4.1); while we abstain, none.

Sources: Raft §5.1, §5.2, §5.4.1; thesis §3.10, §4.2.3, §9.6; etcd-io/raft; TiKV's raft-rs, whose
votes tell the commit index as well.
"""

from collections.abc import Callable
from enum import Enum

from raftmq.consensus import applying, follower, leader, patience, transfer
from raftmq.consensus.core import Core
from raftmq.consensus.messages import TRANSFER, Message, MessageKind
from raftmq.consensus.quorum import VoteResult, joint_vote_result
from raftmq.consensus.replication import broadcast_append
from raftmq.consensus.trace import Event
from raftmq.consensus.types import NONE, DropReason, Role

_VOTES = (MessageKind.VOTE, MessageKind.PRE_VOTE)
_SIGNS_OF_LIFE = (MessageKind.APPEND, MessageKind.HEARTBEAT)
_FROM_LEADER = (*_SIGNS_OF_LIFE, MessageKind.SNAPSHOT)


class Campaign(Enum):
    """Why and how a node asks for votes."""

    PRE_ELECTION = "pre-election"
    """Would you vote for me? Nothing changes yet."""
    ELECTION = "election"
    """Vote for me."""
    TRANSFER = "transfer"
    """Vote for me, the leader itself asks for it."""


def tick(core: Core) -> None:
    """One tick of anyone but a leader.

    Raft §5.2: "If a follower receives no communication over a period of time called the election
    timeout, then it assumes there is no viable leader and begins an election".
    """
    assert core.role is not Role.LEADER, "a leader waits for no leader"
    if patience.has_to_wait(core):
        return
    core.election_elapsed += 1
    if core.is_promotable and core.election_elapsed >= core.election_timeout:
        core.election_elapsed = 0
        campaign(core)


def campaign(core: Core) -> None:
    """The election timeout ran out, or the shell asks for it."""
    _start(core, Campaign.PRE_ELECTION if core.config.pre_vote else Campaign.ELECTION)


def on_timeout_now(core: Core, message: Message) -> None:
    """The leader hands over: no pre-vote, since no partition is being recovered from."""
    core.note(Event.TIMEOUT_NOW_RECEIVED, core.term, message.sender)
    _start(core, Campaign.TRANSFER)
    assert core.role is not Role.PRE_CANDIDATE, "a successor asks no pre-votes"
    if core.role is Role.FOLLOWER:
        # It abstains, learns, or must apply a change first: the leader need not wait for it.
        transfer.decline(core, message.sender)


def _start(core: Core, kind: Campaign) -> None:
    if core.role is Role.LEADER:
        core.note(Event.CAMPAIGN_IGNORED_AS_LEADER)
        return
    if not core.is_promotable:
        core.note(Event.CAMPAIGN_IGNORED_AS_UNPROMOTABLE)
        return
    # A committed membership change that is not applied yet may have removed us, or changed whose
    # votes count: electing by the old membership beside the new one could elect two leaders.
    if applying.has_unapplied_change(core):
        core.note(Event.CAMPAIGN_IGNORED_FOR_PENDING_CHANGE, core.term)
        return
    core.note(Event.CAMPAIGN_STARTED, core.term)
    core.votes_written.has_yielded = False
    _ask(core, kind)


def _ask(core: Core, kind: Campaign) -> None:
    if kind is Campaign.PRE_ELECTION:
        core.become_pre_candidate()
        request, response = MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_RESPONSE
        term = core.term + 1  # the term it would campaign in
    else:
        core.become_candidate()
        request, response = MessageKind.VOTE, MessageKind.VOTE_RESPONSE
        term = core.term
    assert core.id in core.membership.voters, "a candidate's first vote is its own"
    context = TRANSFER if kind is Campaign.TRANSFER else b""
    log, config = core.log, core.config
    waits = kind is not Campaign.PRE_ELECTION and config.waits_for_votes
    requests = core.after_append if waits else core.messages
    for node in sorted(core.membership.voters):
        if node == core.id:
            # Our own vote counts once it is on our disk, like any other.
            own = Message(response, node, sender=node, term=term)
            core.after_append.append(own)
            continue
        core.note(Event.VOTE_REQUESTED, log.last_term, log.last_index, request, node, core.term)
        requests.append(
            Message(
                request,
                node,
                sender=core.id,
                term=term,
                index=log.last_index,
                log_term=log.last_term,
                context=context,
                commit=log.committed,
                commit_term=log.term(log.committed) or 0,
            )
        )


# Terms


def settle_term(core: Core, message: Message) -> bool:
    """Compare terms before anything else. False if the message is done with."""
    before = core.term
    if message.term > before:
        is_open = _on_higher_term(core, message)
        # Raft §5.1: a server's term "increases monotonically over time".
        assert core.term in (before, message.term), "a term that no message named"
        return is_open
    _on_lower_term(core, message)
    assert core.term == before, "a message of an older term changed ours"
    return False


def _on_higher_term(core: Core, message: Message) -> bool:
    kind = message.kind
    if kind in _VOTES and message.context != TRANSFER and core.in_lease:
        # Thesis §4.2.3: "if a server receives a RequestVote request within the minimum election
        # timeout of hearing from a current leader, it does not update its term or grant its vote".
        left = core.config.election_ticks - core.election_elapsed
        _note_vote(core, Event.VOTE_IGNORED_IN_LEASE, message, left)
        return False
    if kind is MessageKind.PRE_VOTE:
        return True  # its term is only a question
    if kind is MessageKind.PRE_VOTE_RESPONSE and not message.reject:
        return True  # our own question, answered: the term is raised when a quorum agrees
    core.note(Event.HIGHER_TERM_SEEN, core.term, kind, message.sender, message.term)
    core.become_follower(message.term, message.sender if kind in _FROM_LEADER else NONE)
    return True


def _on_lower_term(core: Core, message: Message) -> None:
    kind, config = message.kind, core.config
    if (config.check_quorum or config.pre_vote) and kind in _SIGNS_OF_LIFE:
        # A leader of an older term, and with these options no vote request will tell it of the
        # newer one: our answer's term does. Else a node that raised its term while cut off could
        # neither win nor rejoin.
        response = MessageKind.APPEND_RESPONSE
        core.after_append.append(Message(response, message.sender, sender=core.id, term=core.term))
    elif kind is MessageKind.PRE_VOTE:
        # Answered so that a pre-candidate with an older term learns ours instead of asking for
        # ever.
        _note_vote(core, Event.VOTE_REJECTED, message)
        response = MessageKind.PRE_VOTE_RESPONSE
        core.after_append.append(
            Message(response, message.sender, sender=core.id, term=core.term, reject=True)
        )
    elif kind is MessageKind.STORAGE_APPEND_RESPONSE:
        # The records may have been superseded in a later term while they were being written, so
        # they do not count as stable. A snapshot holds committed state and stays valid.
        if message.index:
            core.note(Event.LOWER_TERM_STORAGE_IGNORED, core.term, kind, message.term)
        if message.snapshot is not None:
            applying.on_snapshot_stored(core, message.snapshot)
    else:
        core.note(Event.LOWER_TERM_IGNORED, core.term, kind, message.sender, message.term)


# Votes


def on_vote_request(core: Core, message: Message) -> None:
    """Raft figure 2, RequestVote receiver: grant or refuse.

    A learner votes too if it is asked: the candidate may know of its promotion before it does.
    """
    _learns_commit(core, message)
    kind, log = message.kind, core.log
    is_pre_vote = kind is MessageKind.PRE_VOTE
    # A repeat of our vote is granted again, as its first answer may be lost; a pre-vote for a later
    # term binds no member. A vote beside the leader of this term could elect no other member.
    may_vote = (
        core.vote == message.sender
        or (core.vote == NONE and core.leader == NONE)
        or (is_pre_vote and message.term > core.term)
    )
    response = MessageKind.PRE_VOTE_RESPONSE if is_pre_vote else MessageKind.VOTE_RESPONSE
    # A log that lost records cannot tell who is as up-to-date as it was.
    is_cast = may_vote and not core.abstains and log.is_up_to_date(message.index, message.log_term)
    _note_vote(core, Event.VOTE_CAST if is_cast else Event.VOTE_REJECTED, message)
    core.after_append.append(
        Message(
            response,
            message.sender,
            sender=core.id,
            # The request's term, not ours: after a pre-vote ours is lower and would be ignored.
            term=message.term if is_cast else core.term,
            reject=not is_cast,
            commit=log.committed,
            commit_term=log.term(log.committed) or 0,
        )
    )
    if is_cast and is_pre_vote:
        patience.yield_once(core)
    elif is_cast:
        # Raft §5.2: "Each server will vote for at most one candidate in a given term".
        assert core.vote in (NONE, message.sender), f"a second vote in term {core.term}"
        assert not core.abstains, "a vote of a member that lost records"
        core.election_elapsed = 0
        core.vote = message.sender


def _note_vote(core: Core, event: Event, message: Message, *more: object) -> None:
    core.note(
        event,
        core.log.last_term,
        core.log.last_index,
        core.vote,
        message.kind,
        message.sender,
        message.log_term,
        message.index,
        core.term,
        *more,
    )


def on_vote_response(core: Core, message: Message) -> None:
    """Count a vote, if it answers the campaign that is on (Raft §5.2)."""
    if _learns_commit(core, message):
        return
    is_pre_candidate = core.role is Role.PRE_CANDIDATE
    # A late answer to the pre-vote must not count as a vote.
    if is_pre_candidate != (message.kind is MessageKind.PRE_VOTE_RESPONSE):
        return
    granted = not message.reject
    core.note(Event.VOTE_RECEIVED, message.kind, message.sender, core.term, granted)
    core.votes.setdefault(message.sender, granted)
    result = _tally(core, message.kind)
    if result is VoteResult.LOST:
        core.become_follower(core.term, NONE)
    elif result is VoteResult.WON:
        if is_pre_candidate:
            _ask(core, Campaign.ELECTION)
        else:
            leader.take_office(core)
            # Raft §5.2: "It then sends heartbeat messages to all of the other servers to
            # establish its authority and prevent new elections."
            broadcast_append(core)


def _learns_commit(core: Core, message: Message) -> bool:
    """Take over the commit index of a vote, or of the request for one. True if that ends the
    campaign that is on: a change of members is committed by it, and others were asked before.

    Else a group may have no leader for good. Only one member knows that a change is committed, as
    the leader was cut off before it could say so; and its log is shorter than that of a member
    which campaigns under the old membership, or not at all: it is a learner as far as it knows.
    """
    log = core.log
    if core.role is Role.LEADER:
        # A leader counts its own records (Raft §5.4.2), and with one of them commits all before.
        return False
    # Equal terms at an index mean equal records (Raft §5.3), so that ours is the committed one.
    if message.commit <= log.committed or not log.matches(message.commit, message.commit_term):
        return False
    log.commit_to(message.commit)
    is_asking = core.role in (Role.CANDIDATE, Role.PRE_CANDIDATE)
    if not is_asking or not applying.has_unapplied_change(core):
        return False
    core.become_follower(core.term, NONE)
    return True


def _tally(core: Core, kind: MessageKind) -> VoteResult:
    assert core.role in (Role.CANDIDATE, Role.PRE_CANDIDATE), "only a candidate counts votes"
    counted = [
        core.votes[node]
        for node, progress in core.members.items()
        if not progress.is_learner and node in core.votes
    ]
    core.note(Event.VOTES_COUNTED, counted.count(True), kind, counted.count(False))
    membership = core.membership
    return joint_vote_result(membership.incoming, membership.outgoing, core.votes)


# Candidates hear from others


def on_leader_message(core: Core, message: Message) -> DropReason | None:
    """Raft §5.2: a candidate that hears from a leader of its own term "recognizes the leader as
    legitimate and returns to follower state"."""
    core.become_follower(message.term, message.sender)
    return follower.HANDLERS[message.kind](core, message)


def on_propose(core: Core, message: Message) -> DropReason:
    """There is no leader while we campaign."""
    core.note(Event.PROPOSAL_DROPPED_NO_LEADER, core.term)
    return DropReason.NO_LEADER


def on_timeout_now_as_candidate(core: Core, message: Message) -> None:
    """We campaign already."""
    core.note(Event.TIMEOUT_NOW_IGNORED, core.term, core.role, message.sender)


HANDLERS: dict[MessageKind, Callable[[Core, Message], DropReason | None]] = {
    MessageKind.PROPOSE: on_propose,
    MessageKind.APPEND: on_leader_message,
    MessageKind.HEARTBEAT: on_leader_message,
    MessageKind.SNAPSHOT: on_leader_message,
    MessageKind.VOTE_RESPONSE: on_vote_response,
    MessageKind.PRE_VOTE_RESPONSE: on_vote_response,
    MessageKind.TIMEOUT_NOW: on_timeout_now_as_candidate,
}
"""A candidate's or pre-candidate's handlers of messages of its own term; it ignores other kinds."""
