"""Mutants of quotas, hunted with whole brokers whose clients have some.

The modules are loaded when a mutant is planted: hunts on cores need no event loop.
"""

from importlib import import_module
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch


def counts_what_is_applied(patch: Patch) -> None:
    """382"""
    in_flight = import_module("raftmq.broker.deliver.in_flight").InFlight
    count = in_flight._count_user

    def applied(self: Any, user: str) -> int:
        messages: int = count(self, user) - self._asked_by_user[user]
        return messages

    patch.set(in_flight, "_count_user", applied)


MUTANTS = (
    Mutant(
        number=382,
        name="asks-on-their-way",
        what="A count of a user's messages in flight leaves out what its consumers have asked for "
        "and the log has not applied yet.",
        killers=("in-flight",),
        plant=counts_what_is_applied,
        workload="pop",
        is_secure=True,
        seconds=4.0,
    ),
)
