"""The test of the tests: known bugs, each planted and hunted down.

Start reading at `raftmq.chaos.mutant` (the form of a mutant), then `hunts`; the lists stand in the
rooms `consensus`, `pop` and `brokers`. `plants` holds the patches that need the event loop.
`python -m tests.quality.mutants` hunts all of them and writes docs/chaos/mutants.md.

Production code knows nothing of mutants: a mutant patches functions from outside, and the wheel has
none. `raftmq chaos run --mutant` finds the mutants in a checkout.
"""

from raftmq.chaos.mutant import Mutant, planted

from .brokers import (
    administration,
    answers,
    clients,
    close_readings,
    connections,
    directory,
    flows,
    hostile_readings,
    leader_tasks,
    placement,
    quotas,
    returning_members,
    rot,
    settings,
)
from .consensus import election, membership, replication, storage
from .hunts import Hunt, hunt, hunt_all, play, schedule_of
from .pop import deliveries, pop_groups, runs, withheld

MUTANTS: tuple[Mutant, ...] = tuple(
    sorted(
        (
            *leader_tasks.MUTANTS,
            *election.MUTANTS,
            *replication.MUTANTS,
            *membership.MUTANTS,
            *storage.MUTANTS,
            *pop_groups.MUTANTS,
            *deliveries.MUTANTS,
            *runs.MUTANTS,
            *withheld.MUTANTS,
            *clients.MUTANTS,
            *connections.MUTANTS,
            *returning_members.MUTANTS,
            *flows.MUTANTS,
            *administration.MUTANTS,
            *rot.MUTANTS,
            *hostile_readings.MUTANTS,
            *close_readings.MUTANTS,
            *placement.MUTANTS,
            *quotas.MUTANTS,
            *answers.MUTANTS,
            *settings.MUTANTS,
            *directory.MUTANTS,
        ),
        key=lambda mutant: mutant.number,
    )
)
"""All of them, by number."""

__all__ = ["MUTANTS", "Hunt", "Mutant", "hunt", "hunt_all", "planted", "play", "schedule_of"]
