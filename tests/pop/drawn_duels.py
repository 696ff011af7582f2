"""Duels whose steps are drawn from a seed."""

from random import Random

from raftmq.pop.leases import Handed
from tests.pop.duel import CONSUMERS, QUEUES, VERBS, Duel, Kind

CHANGES_SHARE = 0.3
"""Share of the steps with a change by an operator, in kinds that have these."""
KEYS = (0, 1, 1, 2, 3, 0xFFFFFFFF)


def drive(kind: Kind, seed: int, steps: int) -> Duel:
    """A duel with steps drawn from a seed."""
    draw = Random(seed)
    duel = Duel(kind, begun=draw.choice([0, 3]))
    for _ in range(steps):
        step(duel, draw)
    duel.rebuild()
    duel.find_events()
    return duel


def step(duel: Duel, draw: Random) -> None:
    """One step of a duel."""
    is_changing = duel.kind.is_changing
    # Few of both, so that several dead letters are of one key.
    queues, among = (QUEUES[:1], KEYS[:3]) if is_changing else (QUEUES, KEYS)
    queue, consumer = draw.choice(queues), draw.choice(CONSUMERS)
    recent = duel.handed[-12:]
    if is_changing and draw.random() < CHANGES_SHARE:
        change(duel, draw, queue, recent)
    match draw.choices(range(11), (3, 3, 5, 10, 1, 1, 3, 1, 2, 1, 1))[0]:
        case 0:
            size = draw.randint(1, 40)
            keys = [draw.choice(among) for _ in range(size)]
            duel.append(queue, keys, [draw.random() < 0.5 for _ in range(size)])
        case 1:
            duel.feed(queue, draw.randint(0, 30))
            duel.feed_elsewhere(queue, draw.choice([-5, -1, 1, 5]))
        case 2:
            numbers = [draw.randint(0, most) for most in (30, 100, 60)]
            duel.ask(consumer, *numbers, is_kept=draw.random() < 0.5)
        case 3 if recent:
            one = draw.choice(recent)
            bits = draw.randint(1, (1 << one.messages.stop - one.messages.base) - 1)
            duel.settle(one, draw.choice([bits, one.messages.bits]), draw.choice(VERBS))
        case 4 if recent:
            duel.settle_foreign(draw.choice(recent), consumer)
        case 5 if recent:
            duel.extend(draw.choice(recent), draw.randint(1, 200))
        case 6:
            duel.pass_time(draw.choice([0, 1, 9, 10, 49, 50, 120]))
            duel.clock_moves(draw.choice([0, 0, 0, 1, 10, 120]))
        case 7:
            duel.trim(queue, draw.randint(1, 30))
        case 8:
            part = draw.choice([None, draw.randint(1, 0xFFFF)])
            duel.attend(draw.choice(["redrive", "purge"]), draw.randrange(1000), part)
        case 9:
            duel.leave(consumer)
        case _:
            duel.rebuild()


def change(duel: Duel, draw: Random, queue: int, recent: list[Handed]) -> None:
    """A step that makes, moves or unblocks dead letters: more of them than in other duels."""
    match draw.choices(range(5), (1, 3, 2, 6, 4))[0]:
        case 0:
            duel.reset(queue, duel.first.backlogs[queue].next + draw.randint(-20, 5))
        case 1:
            duel.alter()
        case 2:
            duel.attend("redrive", draw.randrange(1000), None)
        case 3 if leased := duel.all("leased"):
            each = draw.choice(leased)
            one = next(one for one in duel.handed if one.token == each.token)
            duel.settle(one, 1 << each.offset - one.messages.base, "reject")
        case 4:
            # Else some message of a key is in hand nearly always.
            for one in recent:
                duel.settle(one, one.messages.bits, "ack")
            duel.ask(draw.choice(CONSUMERS), draw.randint(1, 9), 100, 60)
        case _:
            pass
