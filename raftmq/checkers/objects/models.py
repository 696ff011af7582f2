"""Sequential models: the behaviour of one object when its operations come one after the other.

A model's `step` takes a state, and one operation with its answer, and gives the state after it, or
`REFUSED` if the object would not have given that answer. States are immutable and hashable. An
operation without an answer has the result `UNSEEN`: any answer is right.

| model | functions | state |
|---|---|---|
| register | read, write(value), cas((old, new)) | the value, None at first |
| text | get, put(text), append(text) | the text, empty at first |
| set | add(value), read | the values |
| fifo | enqueue(value), dequeue | the values in order |
| mutex | acquire, release | whether it is held |

A `cas` that answered False saw a value other than `old`; one that answered True saw `old`.

Invariants:
- `step` is a pure function; equal states step alike.
- A function named in `observers` never changes the state.
- While only functions outside `overwriters` happen, `leads(state, answer)` once false stays so.

Sources: Herlihy and Wing 1990; the models that Knossos and Porcupine come with.
"""

import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftmq.checkers.history import Value

State: TypeAlias = Hashable


class Refused:
    """The type of `REFUSED`."""


class Unseen:
    """The type of `UNSEEN`."""


REFUSED: Final = Refused()
"""This operation cannot have given this answer here."""
UNSEEN: Final = Unseen()
"""The answer is not known: any is possible."""

Step: TypeAlias = Callable[[State, str, Value, Value], State]
"""(state, function, argument, result) to the next state or REFUSED."""


@dataclass(frozen=True, slots=True)
class Model:
    """One kind of object."""

    name: str
    functions: frozenset[str]
    initial: State
    step: Step
    observers: frozenset[str]
    """Functions that only look: a call without an answer proves nothing and is left out."""
    overwriters: frozenset[str]
    """Functions whose calls may replace any earlier state."""
    leads: Callable[[State, Value], bool]
    """(state, answer): whether an observer may give this answer, now or later, if no overwriter
    takes effect before."""

    def is_look(self, function: str, result: Value) -> bool:
        """Whether an operation with this answer leaves every state unchanged."""
        is_refusal = (function == "cas" and result is False) or (
            function == "dequeue" and result is None
        )
        return function in self.observers or is_refusal

    def fits(self, function: str, argument: Value, result: Value) -> bool:
        """Whether argument and answer are of the kinds that `step` expects."""
        if function == "cas":
            return isinstance(argument, tuple) and len(argument) == 2
        if self.name == "text":
            is_text = isinstance(argument, str) or (function == "get" and argument is None)
            return is_text and isinstance(result, str | None | Unseen)
        if self.name == "set" and function == "read":
            return isinstance(result, tuple | None | Unseen)
        return True


def _register(state: State, function: str, argument: Value, result: Value) -> State:
    if function == "read":
        return state if result is UNSEEN or result == state else REFUSED
    if function == "write":
        return argument
    assert function == "cas", function
    assert isinstance(argument, tuple), argument
    old, new = argument
    if result is UNSEEN:
        return new if state == old else state
    is_match = state == old
    if is_match is not bool(result):
        return REFUSED
    return new if is_match else state


def _text(state: State, function: str, argument: Value, result: Value) -> State:
    if function == "get":
        return state if result is UNSEEN or (result or "") == state else REFUSED
    if function == "put":
        return argument
    assert isinstance(state, str), state
    assert isinstance(argument, str), argument
    return state + argument


def _set(state: State, function: str, argument: Value, result: Value) -> State:
    assert isinstance(state, frozenset)
    if function == "add":
        return state | {argument}
    if result is UNSEEN:
        return state
    assert result is None or isinstance(result, tuple), result
    return state if frozenset(result or ()) == state else REFUSED


def _fifo(state: State, function: str, argument: Value, result: Value) -> State:
    assert isinstance(state, tuple)
    if function == "enqueue":
        return (*state, argument)
    if result is UNSEEN:
        return state[1:]
    if result is None:
        return REFUSED if state else state
    return state[1:] if state and state[0] == result else REFUSED


def _mutex(state: State, function: str, argument: Value, result: Value) -> State:
    is_acquire = function == "acquire"
    if state == is_acquire:
        # A held mutex cannot be acquired, nor a free one released: only an unanswered call may
        # have tried, without effect.
        return state if result is UNSEEN else REFUSED
    return is_acquire


def _is_prefix(state: State, answer: Value) -> bool:
    return isinstance(state, str) and str(answer or "").startswith(state)


def _is_subset(state: State, answer: Value) -> bool:
    assert isinstance(state, frozenset)
    return isinstance(answer, tuple | None) and state <= frozenset(answer or ())


def _is_any(state: State, answer: Value) -> bool:
    return True


REGISTER = Model(
    name="register",
    functions=frozenset({"read", "write", "cas"}),
    initial=None,
    step=_register,
    observers=frozenset({"read"}),
    overwriters=frozenset({"write", "cas"}),
    leads=operator.eq,
)
TEXT = Model(
    name="text",
    functions=frozenset({"get", "put", "append"}),
    initial="",
    step=_text,
    observers=frozenset({"get"}),
    overwriters=frozenset({"put"}),
    leads=_is_prefix,
)
SET = Model(
    name="set",
    functions=frozenset({"add", "read"}),
    initial=frozenset(),
    step=_set,
    observers=frozenset({"read"}),
    overwriters=frozenset(),
    leads=_is_subset,
)
FIFO = Model(
    name="fifo",
    functions=frozenset({"enqueue", "dequeue"}),
    initial=(),
    step=_fifo,
    observers=frozenset(),
    overwriters=frozenset(),
    leads=_is_any,
)
MUTEX = Model(
    name="mutex",
    functions=frozenset({"acquire", "release"}),
    initial=False,
    step=_mutex,
    observers=frozenset(),
    overwriters=frozenset(),
    leads=_is_any,
)

MODELS = (REGISTER, TEXT, SET, FIFO, MUTEX)


def model_for(functions: frozenset[str]) -> Model | None:
    """The first model that knows all these functions."""
    return next((model for model in MODELS if functions <= model.functions), None)
