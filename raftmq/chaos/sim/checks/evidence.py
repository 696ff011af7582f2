"""Evidence of what the servers held and did, gathered after a run from disks and observations."""

from raftmq.chaos.sim.run_state import RunState
from raftmq.checkers import Evidence, NodeLog, Report, check_evidence

from .logs import Held, held_logs
from .watch import Watch


def gather(state: RunState, watch: Watch) -> dict[int, Evidence]:
    """Evidence by partition group; the nodes must have ended."""
    held = {
        node: held_logs(state.cluster.machines[node].disk.copy(), node)
        for node in state.members()
        if node not in state.damaged
    }
    found = {}
    for group in sorted(watch.moments):
        moments = watch.moments[group]
        nodes = []
        for node, logs in held.items():
            is_member = node in state.final_members.get(group, set())
            if isinstance(logs, dict) and group in logs and is_member:
                nodes.append(_node_log(state, watch, node, group, logs[group]))
        found[group] = Evidence(
            nodes=tuple(nodes),
            timeline=tuple(moments),
            progress=tuple(watch.progress[group]),
            acknowledged=tuple(state.handed.acknowledged[group]),
            recoveries=tuple(state.recoveries[group]),
            served=tuple(state.handed.served[group]),
            sync_failures=tuple(state.handed.sync_failures[group]),
            derived=tuple(state.derived[group]),
        )
    return found


def _node_log(state: RunState, watch: Watch, node: int, group: int, held: Held) -> NodeLog:
    digests = {
        index: digest for (seen, index), digest in watch.digests[group].items() if seen == node
    }
    members = state.final_members.get(group, set())
    return NodeLog(
        node,
        held.entries,
        held.base,
        commit=held.commit,
        applied=max(digests, default=0),
        digests=digests,
        is_voter=node in members,
    )


def judge_servers(evidence: dict[int, Evidence]) -> list[tuple[int, Report]]:
    """The invariants' reports by partition group."""
    return [(group, report) for group, one in evidence.items() for report in check_evidence(one)]


def vacuous_everywhere(reports: list[tuple[int, Report]]) -> list[str]:
    """The numbers of the invariants that no partition group's evidence could decide."""
    numbers = {report.checker.split()[0]: 0 for _, report in reports}
    for _, report in reports:
        numbers[report.checker.split()[0]] += not report.reason.startswith("vacuous")
    return [number for number, decided in numbers.items() if not decided]
