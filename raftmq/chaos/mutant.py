"""The form of a mutant: a known bug, planted into the real code while a test runs.

The production code has no switches for mutants: a mutant replaces functions of the modules and puts
the functions back. One mutant is planted at a time, in one thread. The list of mutants is part of
the checkout (`tests/quality/mutants`), because each mutant patches one version of the code.

    with planted(mutant):
        outcome = run(schedule)

Sources: mutation testing (DeMillo, Lipton, Sayward, 1978); each mutant names the project in which
its bug happened, where the project is known.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from inspect import isfunction, signature
from types import FunctionType
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
    """Replaces attributes, and restores the attributes when the stack is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: object, name: str, value: object) -> None:
        """Put `value` in the place of an attribute that exists: a function in that of a function
        that is called alike."""
        old = getattr(owner, name)
        if isfunction(old) and isfunction(value):
            _check_calls(old, value)
        self._stack.enter_context(mock.patch.object(owner, name, value))

    def handler(self, kind: MessageKind, old: Step, new: Step) -> None:
        """Replace `old` by `new` as the handler of a kind of message, in every role."""
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


def _check_calls(old: FunctionType, new: FunctionType) -> None:
    """`TypeError` if `new` can't be called with all that `old` is called with. Such a mutant is out
    of date: it would end a run by its own mistake, and not by the bug that it plants."""
    taken = signature(old).parameters.values()
    arguments = [x.name for x in taken if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    named = {x.name: None for x in taken if x.kind is x.KEYWORD_ONLY}
    try:
        signature(new).bind(*arguments, **named)
    except TypeError as problem:
        raise TypeError(f"the mutant's {old.__qualname__}: {problem}") from None


def later(module: str, name: str) -> Plant:
    """A plant in a module that is imported only when planting: hunts on cores need no trio."""

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
    """Number in the list that this project was planned with; from 101 on: our own."""
    name: str
    what: str
    """The bug in one sentence, followed by the project where it happened, in brackets."""
    killers: tuple[str, ...] = ()
    """The checks expected to fail: invariants by number, or `assert` for an assert in the code."""
    plant: Plant | None = None
    """None: it cannot be planted, see `reason`."""
    reason: str = ""
    """Why it cannot be planted."""
    is_popping: bool = False
    """The mutant is hunted on random logs of consumer groups, not on clusters."""
    workload: Literal["", "log", "register", "pop", "members", "flows", "admin"] = ""
    """Workload of the whole brokers that the mutant is hunted on; empty: on other worlds."""
    is_secure: bool = False
    """Of whole brokers: nodes know their users, and clients have quotas in every third run."""
    seconds: float = 0.0
    """Length of a run with whole brokers; 0: a minute, with pauses between the faults."""
    nodes: int = 3
    """Founding nodes of the cluster of whole brokers."""
    kinds: tuple[str, ...] = ()
    """Faults that expose the mutant; empty: any."""
    settings: Callable[[Settings], Settings] = as_drawn
    """Changes the seed's settings of consensus to those that the mutant needs."""
    why_hinted: str = ""
    """Why random draws of the mutant's world seldom find the mutant: for people."""
    is_of_the_simulator: bool = False
    """The mutant is planted in the simulation's own node or machine: it tests the checks, not the
    product."""

    @property
    def hints(self) -> str:
        """Hints that the hunt got beside the seed; empty: random draws find the bug unaided."""
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
        # Another missing module is a mistake inside the list, not a missing checkout.
        if problem.name is None or not f"{LIST}.".startswith(f"{problem.name}."):
            raise
        return ()
    return listed


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Plant the mutant's bug while the context is open."""
    assert mutant.plant is not None, mutant.reason
    with ExitStack() as stack:
        mutant.plant(Patch(stack))
        yield
