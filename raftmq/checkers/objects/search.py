"""The search for an order: Wing and Gong's algorithm with Lowe's memory, on one object.

The walk goes through the begins and ends of calls in time. A call that has begun and not ended
*may* take effect; a call that ends *must* have. So at each end of a call without effect yet, some
of the others under way take effect first, in some order, then that call does. If a way fails, the
last choice is undone and the next is tried: depth first.

A *place* in the search is (which end is next, the object's state, which of the calls under way have
taken effect). These rules keep the search short:

- a place that was tried is not tried again (Lowe);
- a call that only looked, and whose answer fits, takes effect at once: waiting gains nothing;
- of open calls (no answer seen) with the same function and argument, the one that began first goes
  first; and a place reached by fewer open calls is at least as good as one reached by more;
- an open call that would not change the state is not tried, nor one whose change no call shows: the
  next call must come out differently than it would have without the open one;
- where the next answers of observers can no longer come true, since no call is left before them
  that could bring the state about, the search turns back; ways that lead to them go first.

Time and space are exponential in the number of calls under way at once, in the worst case: hence
`places_max`.

Invariants:
- The answer does not depend on the order of the choices; only the time does.

Sources: Wing and Gong, "Testing and verifying concurrent objects" (1993); Lowe, "Testing for
linearizability" (2017), whose just-in-time linearization this walk is; Horn and Kroening (2015) for
the parts by key.
"""

import bisect
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .calls import Call
from .models import REFUSED, Model, State

PLACES_MAX = 2_000_000
"""Places tried before the search gives up: about ten seconds and a gigabyte at worst."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a search."""

    is_linearizable: bool | None
    """None: the search gave up."""
    places: int
    """Places that were tried."""
    furthest_end: int
    """If there is no order: the end that no order reached, as in `Call.end`."""


NOTHING = object()
"""Stands for the absence of a state; None may be a state."""


class _Place(NamedTuple):
    event: int
    state: State
    done: int
    """Bits of answered calls under way that have taken effect."""
    used: int
    """Bits of open calls that have taken effect."""
    before: State = NOTHING
    """If an open call was last: the state before it; the next call must come out differently."""


@dataclass(slots=True)
class _Plan:
    """The calls prepared for the walk: the calls under way at each end."""

    calls: Sequence[Call]
    ends: list[int] = field(default_factory=list)
    """Numbers of the answered calls, in the order of their ends."""
    under_way: list[list[int]] = field(default_factory=list)
    """By end: answered calls that have begun and not ended yet."""
    looks: list[list[int]] = field(default_factory=list)
    """By end: those of them that change nothing."""
    open_calls: list[list[list[int]]] = field(default_factory=list)
    """By end: open calls that have begun, alike ones together, in the order of their begins."""
    ahead: list["_Look"] = field(default_factory=list)
    """Answered calls of observers, in the order of their ends."""
    ahead_from: list[int] = field(default_factory=list)
    """By end: the first of `ahead` that ends then or later."""


class _Look(NamedTuple):
    """An observer's answered call, which the state must come to agree with."""

    number: int
    settled_event: int
    """From this end on, no overwriter is left that could come before it."""


LOOKS_AHEAD = 3
"""Number of next answers that are looked at."""


def search(
    calls: Sequence[Call],
    model: Model,
    *,
    places_max: int = PLACES_MAX,
    is_late: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Search an order of `calls` (given by begin) that the model explains."""
    plan = _plan(calls, model)
    walk = _Walk(plan, model)
    stack = [_Place(0, model.initial, 0, 0)]
    tried = 0
    while stack:
        place = walk.settle(stack.pop())
        if place.event == len(plan.ends):
            return Outcome(True, tried, 0)
        if walk.is_hopeless(place) or walk.is_known(place):
            continue
        tried += 1
        if tried > places_max or (tried & 0xFFF == 0 and is_late()):
            return Outcome(None, tried, 0)
        stack += walk.choices(place)
    return Outcome(False, tried, calls[plan.ends[walk.furthest]].end)


def _plan(calls: Sequence[Call], model: Model) -> _Plan:
    plan = _Plan(calls)
    looks = [model.is_look(call.function, call.result) for call in calls]
    answered = [number for number, call in enumerate(calls) if not call.is_open]
    plan.ends = sorted(answered, key=lambda number: calls[number].end)
    waiting = sorted(range(len(calls)), key=lambda number: calls[number].begin)
    position, active = 0, list[int]()
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number in plan.ends:
        while position < len(waiting) and calls[waiting[position]].begin < calls[number].end:
            new = waiting[position]
            position += 1
            if calls[new].is_open:
                alike[calls[new].function, calls[new].argument].append(new)
            else:
                active.append(new)
        plan.under_way.append(active[:])
        plan.looks.append([one for one in active if looks[one]])
        plan.open_calls.append([list(group) for group in alike.values()])
        active.remove(number)
    _look_ahead(plan, model)
    return plan


def _look_ahead(plan: _Plan, model: Model) -> None:
    """Fill in `ahead`: the answers of observers, and from which end on no overwriter can come
    before each."""
    calls, ends = plan.calls, plan.ends
    begins = sorted(
        (call.begin, call.end) for call in calls if call.function in model.overwriters
        and not model.is_look(call.function, call.result)
    )  # fmt: skip
    times = [calls[number].end for number in ends]
    position, last = 0, -1
    for event, number in enumerate(ends):
        plan.ahead_from.append(len(plan.ahead))
        while position < len(begins) and begins[position][0] < times[event]:
            last = max(last, begins[position][1])
            position += 1
        if calls[number].function in model.observers:
            plan.ahead.append(_Look(number, bisect.bisect_right(times, last)))


class _Walk:
    """The walk's memory and moves."""

    def __init__(self, plan: _Plan, model: Model) -> None:
        self._plan = plan
        self._model = model
        self._known: dict[Hashable, list[int]] = {}
        self.furthest = 0
        # Bits of answered calls are reused: masks need one bit for each call under way at once.
        self._bit = _bits(plan)

    def settle(self, place: _Place) -> _Place:
        """Take all steps that need no choice: ends of calls that took effect, and calls that only
        look."""
        plan, step = self._plan, self._model.step
        event, state, done, used, before = place
        while event < len(plan.ends):
            for number in plan.looks[event]:
                bit = self._bit[number]
                if not done & bit:
                    call = plan.calls[number]
                    if step(state, call.function, call.argument, call.result) is not REFUSED:
                        done |= bit
                        before = NOTHING
            bit = self._bit[plan.ends[event]]
            if not done & bit:
                break
            done &= ~bit
            event += 1
        self.furthest = max(self.furthest, min(event, len(plan.ends) - 1))
        return _Place(event, state, done, used, before)

    def is_known(self, place: _Place) -> bool:
        """Whether this place, or a better one, was tried before."""
        best = self._known.setdefault((place.event, place.state, place.done, place.before), [])
        if any(place.used & other == other for other in best):
            return True
        best[:] = [other for other in best if other & place.used != place.used]
        best.append(place.used)
        return False

    def is_hopeless(self, place: _Place) -> bool:
        """Whether one of the next answers can no longer come true."""
        return any(
            place.event >= look.settled_event
            and not self._model.leads(place.state, self._plan.calls[look.number].result)
            for look in self._next_looks(place)
        )

    def _next_looks(self, place: _Place) -> list[_Look]:
        """The next observers' calls that have not taken effect."""
        plan, found = self._plan, list[_Look]()
        now = plan.calls[plan.ends[place.event]].end
        for position in range(plan.ahead_from[place.event], len(plan.ahead)):
            look = plan.ahead[position]
            # Bits are shared by calls of different times: they mean nothing before the begin.
            has_begun = plan.calls[look.number].begin < now
            if not (has_begun and place.done & self._bit[look.number]):
                found.append(look)
                if len(found) == LOOKS_AHEAD:
                    break
        return found

    def choices(self, place: _Place) -> list[_Place]:
        """The places one call further, the most promising last."""
        plan = self._plan
        event, state, done, used, _ = place
        found = []
        for group in plan.open_calls[event]:
            number = next((one for one in group if not used >> one & 1), None)
            if number is not None:
                after = self._after(place, number)
                if after is not REFUSED and after != state:
                    found.append(_Place(event, after, done, used | 1 << number, state))
        must = plan.ends[event]
        answered = []
        for number in [*(one for one in reversed(plan.under_way[event]) if one != must), must]:
            if not done & self._bit[number]:
                after = self._after(place, number)
                if after is not REFUSED:
                    answered.append(_Place(event, after, done | self._bit[number], used))
        looks = self._next_looks(place)
        if looks and len(answered) > 1:
            answer = plan.calls[looks[0].number].result
            answered.sort(key=lambda one: self._model.leads(one.state, answer))
        if plan.calls[must].is_optional:
            found.append(place._replace(event=event + 1))
        return found + answered

    def _after(self, place: _Place, number: int) -> State:
        """The state after one more call; REFUSED if it cannot be, or need not be, tried here."""
        call, step = self._plan.calls[number], self._model.step
        after = step(place.state, call.function, call.argument, call.result)
        if place.before is not NOTHING and after is not REFUSED:
            otherwise = step(place.before, call.function, call.argument, call.result)
            # With the same outcome, the open call before made no difference: leaving it out finds
            # the same orders.
            return REFUSED if otherwise == after else after
        return after


def _bits(plan: _Plan) -> dict[int, int]:
    """A bit for each answered call, none shared by two calls that are under way together."""
    bits: dict[int, int] = {}
    free: list[int] = []
    width = 0
    for event, active in enumerate(plan.under_way):
        for number in active:
            if number not in bits:
                if not free:
                    free.append(width)
                    width += 1
                bits[number] = 1 << free.pop()
        free.append(bits[plan.ends[event]].bit_length() - 1)
    return bits
