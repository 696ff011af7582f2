"""Topics and consumer groups that several administrators change: sequential models.

| function | value | answers |
|---|---|---|
| `make_topic` | how many queues | `done`, `taken`: it has another number of them |
| `grow_topic` | how many queues | `done`, `absent`, `fewer`: it has more of them |
| `drop_topic` | - | `done`, `absent` |
| `see_topic` | - | how many queues it has, None: there is none |
| `put_group` | attempts | `done` |
| `attach` | - | `done` |
| `detach` | - | `done`, `absent`: it was not attached |
| `drop_group` | - | `done`, `absent` |
| `see_group` | - | (attempts, whether it is attached), None: there is none |

The key is the name of a topic, or of a group. A client repeats a call whose answer was lost: the
call must take effect once nevertheless, and changes of other clients under that name hold.
Histories in which a call takes effect twice are not linearizable.

Invariants:
- A change or deletion whose object existed when the call began, and is gone since, is `done`: the
  caller cannot tell whose change removed the object.
"""

import operator

from raftmq.checkers.history import Value

from .models import REFUSED, UNSEEN, Model, State

DONE = "done"
TAKEN = "taken"
FEWER = "fewer"
ABSENT = "absent"
USUAL_ATTEMPTS = 17
"""Attempts that a group without a policy allows."""


def _topic(state: State, function: str, argument: Value, result: Value) -> State:
    if function == "see_topic":
        return state if result == state else REFUSED
    is_there = state is not None
    match function, result:
        case "make_topic", "taken":
            return state if is_there and state != argument else REFUSED
        case _, "absent":
            return REFUSED if is_there else state
        case "grow_topic", "fewer":
            return state if isinstance(state, int) and state > _number(argument) else REFUSED
        case "make_topic", _:
            if is_there and state != argument:
                return state if result is UNSEEN else REFUSED
            return argument
        case "grow_topic", _:
            if not isinstance(state, int):
                return state
            if state > _number(argument):
                return state if result is UNSEEN else REFUSED
            return argument
        case _:
            assert function == "drop_topic", function
            return None


def _group(state: State, function: str, argument: Value, result: Value) -> State:
    if function == "see_group":
        return state if result == state else REFUSED
    attempts, is_attached = state if isinstance(state, tuple) else (USUAL_ATTEMPTS, False)
    match function, result:
        case "drop_group", "absent":
            return state if state is None else REFUSED
        case "detach", "absent":
            return REFUSED if is_attached else state
        case "put_group", _:
            return argument, is_attached
        case "attach", _:
            return attempts, True
        case "detach", _:
            return state if state is None else (attempts, False)
        case _:
            assert function == "drop_group", function
            return None


def _number(value: Value) -> int:
    assert isinstance(value, int), value
    return value


TOPIC = Model(
    name="topic",
    functions=frozenset({"make_topic", "grow_topic", "drop_topic", "see_topic"}),
    initial=None,
    step=_topic,
    observers=frozenset({"see_topic"}),
    overwriters=frozenset({"make_topic", "grow_topic", "drop_topic"}),
    leads=operator.eq,
)
GROUP = Model(
    name="consumer group",
    functions=frozenset({"put_group", "attach", "detach", "drop_group", "see_group"}),
    initial=None,
    step=_group,
    observers=frozenset({"see_group"}),
    overwriters=frozenset({"put_group", "attach", "detach", "drop_group"}),
    leads=operator.eq,
)
