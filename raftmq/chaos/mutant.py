"""The form of a mutant: a known bug, planted into the real code while a test runs.

The production code has no switches for this: a mutant replaces functions of its modules and puts
them back. Only one is planted at a time, in one thread. The list of mutants is part of the checkout
(`tests/quality/mutants`), as it patches one version of the code.

    with planted(mutant):
        outcome = run(schedule)

Sources: mutation testing (DeMillo, Lipton, Sayward, 1978); each mutant names where its bug really
happened, where that is known.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal
from unittest import mock

from raftmq.chaos.core import Settings
from raftmq.consensus import MessageKind, raft
from raftmq.consensus.core import Core
from raftmq.consensus.messages import Message

Step = Callable[[Core, Message], Any]

LIST = "tests.quality.mutants"
"""The module of a checkout that lists the mutants."""


class Patch:
    """Replaces attributes, and puts them back in the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: object, name: str, value: object) -> None:
        """Put `value` in the place of an attribute that exists."""
        self._stack.enter_context(mock.patch.object(owner, name, value))

    def handler(self, kind: MessageKind, old: Step, new: Step) -> None:
        """Handle messages of a kind by `new` wherever `old` did."""
        assert any(table[kind] is old for table in raft._BY_ROLE), f"{old} handles no {kind.name}"
        tables = tuple(
            tuple(
                new if of == kind and handler is old else handler
                for of, handler in enumerate(table)
            )
            for table in raft._BY_ROLE
        )
        self.set(raft, "_BY_ROLE", tables)


Plant = Callable[[Patch], None]


def later(module: str, name: str) -> Plant:
    """A plant of a module that is loaded when it is planted: hunts on cores need no event loop."""

    def plant(patch: Patch) -> None:
        getattr(import_module(module), name)(patch)

    return plant


def as_drawn(settings: Settings) -> Settings:
    """The settings of the seed."""
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One planted bug, or the reason why it cannot be planted."""

    number: int
    """In the list that this project was planned with; from 101 on: our own."""
    name: str
    what: str
    """What is wrong, in one sentence; where it happened in brackets."""
    killers: tuple[str, ...] = ()
    """Who is expected to notice: numbers of invariants, or `assert` for one of the code's own."""
    plant: Plant | None = None
    """None: it cannot be planted, see `reason`."""
    reason: str = ""
    """Why it cannot be planted."""
    is_popping: bool = False
    """It is hunted on random logs of consumer groups, not on clusters."""
    workload: Literal["", "log", "register", "pop", "members", "flows", "admin"] = ""
    """What clients do on the whole brokers that it is hunted on; empty: it is hunted elsewhere."""
    seconds: float = 0.0
    """Length of a run with whole brokers; 0: a minute, with pauses between the faults."""
    nodes: int = 3
    """Of the cluster of whole brokers."""
    kinds: tuple[str, ...] = ()
    """Faults that bring it out; empty: any."""
    settings: Callable[[Settings], Settings] = as_drawn
    """Options of consensus that it needs."""
    why_hinted: str = ""
    """Why random draws of its world seldom find it: for people."""
    is_of_the_simulator: bool = False
    """It is planted in the simulation's own node or machine: it tries the checks, not the
    product."""

    @property
    def hints(self) -> str:
        """What the hunt was given beside the seed: it says how far random draws find the bug."""
        given = ["faults"] if self.kinds else []
        given += ["settings"] if self.settings is not as_drawn else []
        return " and ".join(given)

    def __post_init__(self) -> None:
        assert bool(self.reason) != bool(self.plant), f"mutant {self.number}: a plant or a reason"
        assert bool(self.killers) == bool(self.plant), f"mutant {self.number}: whom to expect?"


def known_mutants() -> tuple[Mutant, ...]:
    """The mutants of this checkout, by number; none if raftmq was installed as a package."""
    try:
        listed: tuple[Mutant, ...] = import_module(LIST).MUTANTS
    except ModuleNotFoundError as problem:
        # A module that is missing inside the list is a mistake there, and not an installation.
        if problem.name is None or not f"{LIST}.".startswith(f"{problem.name}."):
            raise
        return ()
    return listed


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The mutant's bug is in the code for as long as this lasts."""
    assert mutant.plant is not None, mutant.reason
    with ExitStack() as stack:
        mutant.plant(Patch(stack))
        yield
