"""Mutants of elections and votes.

Sources: Raft §5.1, §5.2, §5.4.1, thesis §4.2.3 and §9.6 for the broken rules; issues of other
implementations as named.
"""

from functools import partial

from raftmq.chaos.core.arena import CoreArena
from raftmq.chaos.core.disk import CoreDisk
from raftmq.chaos.core.faults import nemesis
from raftmq.chaos.core.replica import replica
from raftmq.chaos.faults.arena import Steps
from raftmq.chaos.faults.schedule import Event as Fault
from raftmq.chaos.mutant import Mutant, Patch
from raftmq.consensus import (
    Config,
    ConfState,
    Message,
    MessageKind,
    Role,
    abstaining,
    election,
    leader,
    patience,
    raft,
)
from raftmq.consensus.core import Core
from raftmq.consensus.log import RaftLog
from raftmq.consensus.quorum import VoteResult
from raftmq.consensus.ready import ReadyMaker
from raftmq.consensus.types import NONE, HardState

_on_vote_request = election.on_vote_request
_on_vote_response = election.on_vote_response


def votes_before_it_is_durable(patch: Patch) -> None:
    """1"""

    def vote(core: Core, message: Message) -> None:
        waiting = len(core.after_append)
        _on_vote_request(core, message)
        core.messages += core.after_append[waiting:]
        del core.after_append[waiting:]

    patch.handler(MessageKind.VOTE, _on_vote_request, vote)


def does_not_write_its_term(patch: Patch) -> None:
    """2"""
    make = ReadyMaker._append_message

    def without(self: ReadyMaker, hard_state: HardState | None, *rest: object) -> Message:
        if hard_state is not None and not hard_state.vote:
            hard_state = None
        return make(self, hard_state, *rest)  # type: ignore[arg-type]

    patch.set(ReadyMaker, "_append_message", without)


def votes_twice(patch: Patch) -> None:
    """3"""

    def vote(core: Core, message: Message) -> None:
        if core.leader == 0:
            core.vote = 0
        _on_vote_request(core, message)

    patch.handler(MessageKind.VOTE, _on_vote_request, vote)


def compares_logs_by_length(patch: Patch) -> None:
    """4"""
    patch.set(RaftLog, "is_up_to_date", lambda log, index, term: index >= log.last_index)


def counts_votes_of_older_terms(patch: Patch) -> None:
    """5"""
    settle = election.settle_term

    def careless(core: Core, message: Message) -> bool:
        if message.kind is MessageKind.VOTE_RESPONSE and message.term < core.term:
            return True
        return settle(core, message)

    patch.set(election, "settle_term", careless)


def half_is_enough(patch: Patch) -> None:
    """6"""

    def result(voters: frozenset[int], votes: dict[int, bool]) -> VoteResult:
        yes = [votes.get(voter) for voter in voters].count(True)
        return VoteResult.WON if yes >= len(voters) // 2 else VoteResult.PENDING

    def joint(one: frozenset[int], two: frozenset[int], votes: dict[int, bool]) -> VoteResult:
        results = {result(one, votes), result(two, votes)}
        return VoteResult.WON if results == {VoteResult.WON} else VoteResult.PENDING

    patch.set(election, "joint_vote_result", joint)


def counts_a_vote_each_time_it_arrives(patch: Patch) -> None:
    """7"""

    def count(core: Core, message: Message) -> None:
        is_vote = message.kind is MessageKind.VOTE_RESPONSE and core.role is Role.CANDIDATE
        if is_vote and not message.reject and message.sender in core.votes:
            missing = sorted(core.membership.voters - set(core.votes))
            if missing:
                core.votes[missing[0]] = True
        _on_vote_response(core, message)

    patch.handler(MessageKind.VOTE_RESPONSE, _on_vote_response, count)


def raises_its_term_to_ask(patch: Patch) -> None:
    """8"""
    become = Core.become_pre_candidate

    def eager(core: Core) -> None:
        core.reset(core.term + 1)
        become(core)

    patch.set(Core, "become_pre_candidate", eager)


def leads_on_below_a_higher_term(patch: Patch) -> None:
    """9"""
    settle = election.settle_term
    answers = (MessageKind.APPEND_RESPONSE, MessageKind.HEARTBEAT_RESPONSE)

    def deaf(core: Core, message: Message) -> bool:
        is_higher = message.term > core.term
        if core.role is Role.LEADER and is_higher and message.kind in answers:
            return False
        return settle(core, message)

    patch.set(election, "settle_term", deaf)


def leader_votes_for_others(patch: Patch) -> None:
    """10"""

    def vote(core: Core, message: Message) -> None:
        if core.role is Role.LEADER:
            # Its log is newer than any candidate's, so the question of logs would save it.
            kind, term = MessageKind.VOTE_RESPONSE, message.term
            core.after_append.append(Message(kind, message.sender, sender=core.id, term=term))
            return
        _on_vote_request(core, message)

    patch.handler(MessageKind.VOTE, _on_vote_request, vote)


def never_steps_down(patch: Patch) -> None:
    """11"""
    patch.set(leader, "check_quorum", lambda core: None)


def lets_a_wiped_node_in(patch: Patch) -> None:
    """12"""

    def wipe(arena: CoreArena, event: Fault) -> Steps:
        node = arena.cluster.at_place[event.nodes[0]]
        if node.is_up:
            node.end(power=False)
            node.disk = CoreDisk(node.random)
            voters = tuple(range(1, arena.cluster.settings.nodes + 1))
            arena.cluster.found_again(node, ConfState(voters=voters))
            node.start_later()
        yield from ()

    patch.set(nemesis, "HANDLERS", {**nemesis.HANDLERS, "wipe": wipe})


def forgets_its_vote_at_a_restart(patch: Patch) -> None:
    """101"""
    restore = raft._restore_hard_state
    patch.set(raft, "_restore_hard_state", lambda core, t, v, c: restore(core, t, 0, c))


def votes_for_shorter_logs(patch: Patch) -> None:
    """102"""
    patch.set(RaftLog, "is_up_to_date", lambda log, index, term: True)


def asks_before_its_own_vote_is_durable(patch: Patch) -> None:
    """109"""
    patch.set(replica, "Config", partial(Config, votes_wait=False))


def counts_in_any_term(patch: Patch) -> None:
    """132"""

    def may(core: Core) -> bool:
        log = core.log
        is_durable = log.unstable.snapshot is None and log.committed < log.unstable.offset
        return core.leader != NONE and is_durable

    patch.set(abstaining, "may_count_again", may)


def counts_at_once(patch: Patch) -> None:
    """133"""
    patch.set(abstaining, "may_count_again", lambda core: True)


def never_counts_again(patch: Patch) -> None:
    """134"""
    patch.set(abstaining, "may_count_again", lambda core: False)


def waits_for_no_disk(patch: Patch) -> None:
    """392"""
    patch.set(patience, "has_to_wait", lambda core: False)


MUTANTS = (
    Mutant(
        number=1,
        name="vote-before-durable",
        what="A vote is sent before it is on the disk.",
        killers=("R14", "R11"),
        plant=votes_before_it_is_durable,
    ),
    Mutant(
        number=2,
        name="term-not-written",
        what="A new term without a vote is not written to the disk.",
        killers=("R6", "R14"),
        plant=does_not_write_its_term,
    ),
    Mutant(
        number=3,
        name="two-votes",
        what="A node gives two votes in one term.",
        killers=("R11", "R1", "R14"),
        plant=votes_twice,
    ),
    Mutant(
        number=4,
        name="longest-log-wins",
        what="Logs are compared by their length, not by their last term [openraft a48a328].",
        killers=("R4", "R5"),
        plant=compares_logs_by_length,
    ),
    Mutant(
        number=5,
        name="old-votes-count",
        what="Votes of an older term are counted [Xraft #33].",
        killers=("R1",),
        plant=counts_votes_of_older_terms,
    ),
    Mutant(
        number=6,
        name="half-is-enough",
        what="Half of the votes, rounded down, win an election [openraft d60f1e8].",
        killers=("R1",),
        plant=half_is_enough,
    ),
    Mutant(
        number=7,
        name="votes-counted-twice",
        what="A vote that arrives twice counts twice.",
        killers=("R1",),
        plant=counts_a_vote_each_time_it_arrives,
    ),
    Mutant(
        number=8,
        name="pre-vote-raises-term",
        what="Asking for pre-votes raises the term.",
        killers=("V4",),
        plant=raises_its_term_to_ask,
    ),
    Mutant(
        number=9,
        name="leader-ignores-terms",
        what="A leader ignores the higher term of an answer.",
        killers=("R6", "V1", "V4"),
        plant=leads_on_below_a_higher_term,
    ),
    Mutant(
        number=10,
        name="leader-votes",
        what="A leader votes for others in its own term [DaosRaft #70].",
        killers=("R11", "R14"),
        plant=leader_votes_for_others,
    ),
    Mutant(
        number=11,
        name="no-check-quorum",
        what="A leader that reaches no majority leads on.",
        killers=("V4",),
        plant=never_steps_down,
    ),
    Mutant(
        number=12,
        name="wiped-node-votes",
        what="A node whose disk was wiped comes back under its old id [openraft's documentation].",
        killers=("R6", "R11", "L2", "R4", "R1"),
        plant=lets_a_wiped_node_in,
        is_of_the_simulator=True,
    ),
    Mutant(
        number=101,
        name="vote-forgotten",
        what="The vote is not read back at a restart.",
        killers=("R11",),
        plant=forgets_its_vote_at_a_restart,
    ),
    Mutant(
        number=102,
        name="any-log-wins",
        what="Logs are not compared before a vote.",
        killers=("R4", "R5"),
        plant=votes_for_shorter_logs,
    ),
    Mutant(
        number=109,
        name="asks-too-early",
        what="A candidate asks for votes before its own is durable [ours, until f1311d0].",
        killers=("R14", "R3"),
        plant=asks_before_its_own_vote_is_durable,
    ),
    Mutant(
        number=392,
        name="waits-for-no-disk",
        what="The election timer runs while the vote is on its way to a slow disk [ours].",
        killers=("V1",),
        plant=waits_for_no_disk,
    ),
    Mutant(
        number=132,
        name="returns-too-early",
        what="A member that lost records votes again when its commit index is of an older term.",
        killers=("R4", "R13", "R23", "R5", "R15"),
        plant=counts_in_any_term,
    ),
    Mutant(
        number=133,
        name="returns-at-once",
        what="A member that lost records votes again at once.",
        killers=("R4", "R13", "R23", "R5", "R15"),
        plant=counts_at_once,
    ),
    Mutant(
        number=134,
        name="never-returns",
        what="A member that lost records never votes again.",
        killers=("V1", "V3"),
        plant=never_counts_again,
    ),
)
