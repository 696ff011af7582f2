"""Mutants of the leaders' tasks apart from serving: retention by age, and deadlines.

They are hunted on whole brokers, as consensus alone has neither retention nor wall clocks. Modules
of the broker are loaded when a mutant is planted, so that hunts on cores need no event loop.
"""

from importlib import import_module
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.consensus.core import Core

_CLOCKS = ("step-clock",)
_ALL_CLOCKS = ("skew", "step-clock", "kill-leader")
_WHY_A_CLOCK = "runs of a minute draw faults that last, and the jump of a clock is none of them"
_WHY_CLOCKS = "it takes a clock that jumps, which one seed in thirty to sixty draws"


def _one_clock(patch: Patch) -> None:
    clocks = import_module("raftmq.broker.cluster.clocks").Clocks
    patch.set(clocks, "agreed_ms", lambda self, group: self._node.now_ms())


def _fastest_clock(patch: Patch) -> None:
    clocks = import_module("raftmq.broker.cluster.clocks")

    def latest(self: Any, group: object) -> int:
        now = clocks.trio.current_time()
        shown: list[int] = [self._shown(node, now) for node in (1, 2, 3)]
        return max(shown)

    patch.set(clocks.Clocks, "agreed_ms", latest)


def _own_clock_for_sessions(patch: Patch) -> None:
    coordinator = import_module("raftmq.broker.serve.group_coordinator").GroupCoordinator
    renewal = coordinator._renewal

    def own(self: Any, now: int) -> Any:
        return renewal(self, self._node.now_ms())

    patch.set(coordinator, "_renewal", own)


def _own_clock_for_ages(patch: Patch) -> None:
    module = import_module("raftmq.broker.serve.transactions")
    find, page = module.TransactionRequests._find, module.transactions_page
    clocks: dict[int, Any] = {}

    def finding(self: Any, request: Any, group: Any, asked: Any) -> Any:
        clocks[id(group.machine)] = group._now_ms
        return find(self, request, group, asked)

    def own(machine: Any, request: Any, latest: int, sees: Any) -> Any:
        return page(machine, request, clocks[id(machine)]() - request.age_ms_min, sees)

    patch.set(module.TransactionRequests, "_find", finding)
    patch.set(module, "transactions_page", own)


def _waits_for_the_clock(patch: Patch) -> None:
    patch.set(Core, "stamp", lambda core, now: max(now, core.log.last_timestamp))


def _one_message_too_many(patch: Patch) -> None:
    leader_tasks = import_module("raftmq.broker.leader_tasks")
    earliest = leader_tasks._earliest

    def beyond(group: Any, queue: int, since: int) -> int:
        found: int = earliest(group, queue, since)
        return min(found + 1, group.machine.ends.get(queue, 0)) if found else 0

    patch.set(leader_tasks, "_earliest", beyond)


def _tells_after(patch: Patch) -> None:
    leader_tasks = import_module("raftmq.broker.leader_tasks").LeaderTasks
    tell = leader_tasks._tell_lost

    def only_what_is_gone(self: Any, group: Any, *, since: int = 0) -> bool:
        return bool(since) or tell(self, group)

    patch.set(leader_tasks, "_tell_lost", only_what_is_gone)


MUTANTS = (
    Mutant(
        number=161,
        name="one-clock",
        what="Retention by age believes the leader's clock (raftmq before `8c9c832`).",
        killers=("Q1",),
        plant=_one_clock,
        kinds=_CLOCKS,
        why_hinted=_WHY_A_CLOCK,
        workload="log",
    ),
    Mutant(
        number=162,
        name="fastest-clock",
        what="Retention by age believes the clock that is furthest ahead.",
        killers=("Q1",),
        plant=_fastest_clock,
        kinds=_CLOCKS,
        why_hinted=_WHY_A_CLOCK,
        workload="log",
    ),
    Mutant(
        number=163,
        name="sessions-by-own-clock",
        what="Sessions of members end by the leader's clock, not by the log's time [ours].",
        killers=("V3", "lost-middle", "lost-postfix", "lost-prefix"),
        plant=_own_clock_for_sessions,
        kinds=("skew", "step-clock", "client-crash"),
        why_hinted=_WHY_CLOCKS,
        workload="members",
        seconds=20.0,
    ),
    Mutant(
        number=164,
        name="ages-by-own-clock",
        what="The age of an open transaction goes by the leader's clock, not by the log's time.",
        killers=("undecided-unlisted", "V3"),
        plant=_own_clock_for_ages,
        kinds=_ALL_CLOCKS,
        why_hinted=_WHY_CLOCKS,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=165,
        name="waits-for-the-clock",
        what="The log's time stands still until its leader's clock has caught up.",
        killers=("V3", "Q21", "Q16", "pop-lost"),
        plant=_waits_for_the_clock,
        kinds=_ALL_CLOCKS,
        why_hinted=_WHY_CLOCKS,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=166,
        name="gives-up-one-more",
        what="Groups also give up the first message that retention has left.",
        killers=("Q25",),
        plant=_one_message_too_many,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=322,
        name="tells-after",
        what="Groups hear of retention only after a replica has dropped the messages (raftmq "
        "before `35506e5`).",
        killers=("Q25", "key-inversion", "key-overtake"),
        plant=_tells_after,
        workload="pop",
        seconds=6.0,
    ),
)
