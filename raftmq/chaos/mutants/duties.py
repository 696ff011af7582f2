"""Mutants of what leaders do apart from serving: retention by age.

They are hunted on whole brokers, as consensus alone has neither retention nor wall clocks. Modules
of the broker are loaded when a mutant is planted, so that hunts on cores need no event loop.
"""

from importlib import import_module
from typing import Any

from raftmq.chaos.mutants.mutant import Mutant, Patch

_CLOCKS = ("step-clock",)


def _one_clock(patch: Patch) -> None:
    clocks = import_module("raftmq.broker.clocks").Clocks
    patch.set(clocks, "agreed_ms", lambda self, group: self._node.now_ms())


def _fastest_clock(patch: Patch) -> None:
    clocks = import_module("raftmq.broker.clocks")

    def latest(self: Any, group: object) -> int:
        now = clocks.trio.current_time()
        shown: list[int] = [self._shown(node, now) for node in (1, 2, 3)]
        return max(shown)

    patch.set(clocks.Clocks, "agreed_ms", latest)


MUTANTS = (
    Mutant(
        number=161,
        name="one-clock",
        what="Retention by age believes the leader's clock (raftmq before `8c9c832`).",
        killers=("Q1",),
        plant=_one_clock,
        kinds=_CLOCKS,
        workload="log",
    ),
    Mutant(
        number=162,
        name="fastest-clock",
        what="Retention by age believes the clock that is furthest ahead.",
        killers=("Q1",),
        plant=_fastest_clock,
        kinds=_CLOCKS,
        workload="log",
    ),
)
