"""The operator: starts nodes that ended, and replaces nodes that cannot start.

| node | the operator |
|---|---|
| ended by a fault | starts the node when its time has come |
| ended by itself, for instance over a fault of its disk | starts the node after a moment |
| its disk was damaged, and it refuses to start | replaces the node by a new one |
| its disk may hold damage that no read has found | replaces the node by a new one |
| wiped | starts the node, which re-enters by itself |
| blank, and asks for new settings since its peers are gone | updates the settings and restarts it |
| removed | starts the node like the others until no group counts on it |

Invariants:
- Only a node whose disk was damaged on purpose is ever replaced. If another node still refuses to
  start after the heal, that is a violation: see `Operator.complaints`.
"""

from dataclasses import dataclass, field

import trio

from raftmq.broker.cluster.links import ADVICE
from raftmq.chaos.real.faults.members import replace

from .run_state import Goal, RunState, are_reached, goals_of

LOOK_SECONDS = 0.1
RESTART_SECONDS = (0.2, 1.0)
QUICK_SECONDS = 6.0
"""A node that ends by itself sooner after its start counts as one that refuses to start."""
SERVE_SECONDS_MAX = 8.0
"""A damaged node that does not serve this long after its start counts as one that refuses."""
REFUSALS_MAX = 2
GOAL_SECONDS_MAX = 5.0
ADVICE_LINES = 20
"""Log lines to search for the advice: a waiting node logs it once, then a line for each peer."""


@dataclass(slots=True)
class _Life:
    started: float = 0.0
    refusals: int = 0
    words: str = ""


@dataclass(slots=True)
class Operator:
    """The operator of one run."""

    state: RunState
    off: set[int] = field(default_factory=set)
    """Nodes that must stay down."""
    _lives: dict[int, _Life] = field(default_factory=dict)
    _goals: dict[int, Goal] = field(default_factory=dict)
    _goals_at: float = 0.0

    async def run(self) -> None:
        """Work until cancelled."""
        state = self.state
        while True:
            for node in sorted((state.members | state.leaving) - self.off - state.held):
                if not state.nodes.pid(node):
                    await self._start(node)
            self._follow_advice()
            await self._look_after_broken()
            await trio.sleep(LOOK_SECONDS)

    def complaints(self) -> list[str]:
        """Sentences about undamaged members that refuse to start."""
        return [
            f"node {node} refuses to start: {life.words}"
            for node, life in sorted(self._lives.items())
            if life.refusals > REFUSALS_MAX
            and node in self.state.members
            and node not in self.state.broken
        ]

    # -- inside ----------------------------------------------------------------------------------

    async def _start(self, node: int) -> None:
        state, now = self.state, trio.current_time()
        life = self._lives.setdefault(node, _Life())
        if node not in state.down:
            self._note_end(node, life)
            return
        if now >= state.down[node]:
            state.down.pop(node)
            life.started = now
            await state.up(node)

    def _follow_advice(self) -> None:
        state = self.state
        for node in sorted(state.members - self.off - state.held):
            others = state.members - {node}
            is_lost = others and not state.nodes.named[node] & others
            if is_lost and state.nodes.is_running(node) and self._says_advice(node):
                state.nodes.join(node, sorted(others))
                state.counts["settings of old"] += 1
                state.kill(node, down_seconds=0.0)

    def _says_advice(self, node: int) -> bool:
        # Lines about the node's links follow the advice in the log.
        return ADVICE in self.state.nodes.last_words(node, lines=ADVICE_LINES)

    def _note_end(self, node: int, life: _Life) -> None:
        """A node ended by itself: count a refusal if it was soon, and plan the restart."""
        state, now = self.state, trio.current_time()
        status = state.nodes.exit_status(node)
        life.words = state.nodes.last_words(node)
        life.refusals = life.refusals + 1 if now - life.started < QUICK_SECONDS else 1
        state.nodes.kill(node)
        state.counts["nodes that ended by themselves"] += 1
        state.note_end(node, status)
        state.down[node] = now + state.random.uniform(*RESTART_SECONDS)

    async def _look_after_broken(self) -> None:
        state = self.state
        for node, is_latent in sorted(state.broken.items()):
            life = self._lives.setdefault(node, _Life())
            await self._note_silence(node, life)
            if life.refusals >= REFUSALS_MAX or (is_latent and await self._is_level(node)):
                self._goals = {}
                if await replace(state, node):
                    state.note(node, "is replaced")
            elif not is_latent and await self._is_level(node):
                self._goals = {}
                state.broken.pop(node, None)
                state.counts["nodes that re-entered"] += node in state.wiped
                state.wiped.discard(node)
                state.note(node, "has all again")

    async def _note_silence(self, node: int, life: _Life) -> None:
        state = self.state
        is_late = trio.current_time() - life.started > SERVE_SECONDS_MAX
        is_up = state.nodes.is_running(node) and node not in state.down
        # A blank node rightly waits for a majority of the others, without a limit of time.
        is_up = is_up and node not in state.wiped
        if is_up and is_late and await state.nodes.status(node) is None:
            life.refusals = REFUSALS_MAX

    async def _is_level(self, node: int) -> bool:
        """Do all voters, with the damaged node up, hold what the leaders held when last asked?"""
        state, now = self.state, trio.current_time()
        if not state.nodes.is_running(node):
            self._goals = {}
            return False
        statuses = await state.nodes.statuses()
        if not self._goals or now - self._goals_at > GOAL_SECONDS_MAX:
            self._goals, self._goals_at = goals_of(statuses, set(state.members)), now
            return False
        return are_reached(statuses, self._goals)
