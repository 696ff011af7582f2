"""The test of the tests: known ways to get it wrong, each planted and hunted down.

Start reading at `mutant` (what one is), then `campaign` (how it is hunted); the lists stand in
`election`, `replication`, `membership`, `storage`, `popping`, `handing`, `withholding`,
`clients`, `connections`, `returning`, `flows`, `administration`, `rotting`, `duties`,
`placement` and `readings`.
`python -m raftmq.chaos.mutants` hunts all of them and writes docs/chaos/mutants.md.

Nothing of this is in the path of production code: a mutant patches functions from outside.
"""

from raftmq.chaos.mutants import (
    administration,
    clients,
    connections,
    duties,
    election,
    flows,
    handing,
    hostile_readings,
    membership,
    placement,
    popping,
    readings,
    replication,
    returning,
    rotting,
    storage,
    withholding,
)
from raftmq.chaos.mutants.campaign import Hunt, hunt, hunt_all, play, schedule_of
from raftmq.chaos.mutants.mutant import Mutant, planted

MUTANTS: tuple[Mutant, ...] = tuple(
    sorted(
        (
            *duties.MUTANTS,
            *election.MUTANTS,
            *replication.MUTANTS,
            *membership.MUTANTS,
            *storage.MUTANTS,
            *popping.MUTANTS,
            *handing.MUTANTS,
            *withholding.MUTANTS,
            *clients.MUTANTS,
            *connections.MUTANTS,
            *returning.MUTANTS,
            *flows.MUTANTS,
            *administration.MUTANTS,
            *rotting.MUTANTS,
            *hostile_readings.MUTANTS,
            *readings.MUTANTS,
            *placement.MUTANTS,
        ),
        key=lambda mutant: mutant.number,
    )
)
"""All of them, by number."""

__all__ = ["MUTANTS", "Hunt", "Mutant", "hunt", "hunt_all", "planted", "play", "schedule_of"]
