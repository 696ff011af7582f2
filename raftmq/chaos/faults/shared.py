"""The faults that are written once for several worlds, of all families."""

from collections.abc import Mapping

from .arena import Make
from .catalogue import FAULTS, World
from .clients import CLIENT
from .clocks import CLOCKS
from .disks import DISKS
from .members import MEMBERS
from .network import NETWORK
from .processes import PROCESSES

SHARED: Mapping[str, Make] = {
    **NETWORK, **PROCESSES, **DISKS, **CLOCKS, **MEMBERS, **CLIENT,
}  # fmt: skip
"""By name of the fault."""


def shared_in(world: World) -> Mapping[str, Make]:
    """The shared faults that can be made in a world."""
    return {name: make for name, make in SHARED.items() if world in FAULTS[name].worlds}
