"""raftmq's place in a run: where it leads, where it loses, and its own targets.

Invariants:
- Every sentence that compares is computed from the rows.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.results import FIGURES, Gap, Row, by_scenario
from bench.scenarios import SYSTEMS
from bench.system import READ_ALIKE

MAJORITY = 2
"""Disks of three replicas that are a majority."""


def losses(rows: Sequence[Row]) -> list[str]:
    """Sentences about each scenario in which a peer beats raftmq; the floor is no peer."""
    sentences = []
    for scenario, table in by_scenario(rows).items():
        ours = table.get("raftmq")
        if ours is None:
            continue
        peers = {name: row for name, row in table.items() if _is_peer(name)}
        rates = {n: row["messages_per_s"] / ours["messages_per_s"] for n, row in peers.items()}
        parts = [_beaten("times raftmq's rate", rates)]
        for field, words in (("p50_ms", "p50"), ("p99_ms", "p99")):
            own = ours[field]  # type: ignore[literal-required]
            theirs = {n: row[field] for n, row in peers.items()}  # type: ignore[literal-required]
            times = {n: own / other for n, other in theirs.items() if own and other}
            parts.append(_beaten(f"times shorter {words}", times))
        if any(parts):
            sentences.append(f"{scenario}: {'; '.join(part for part in parts if part)}.")
        for row in peers.values():
            sentences += _lost_figures(scenario, ours, row)
    return sentences


def _beaten(words: str, times: Mapping[str, float]) -> str:
    """The systems by which raftmq is beaten, the most first, and how much; empty: by none."""
    found = sorted(((n, x) for n, x in times.items() if x > 1), key=lambda each: -each[1])
    return f"{', '.join(f'{name} {x:.2f}' for name, x in found)} {words}" if found else ""


def _is_peer(system: str) -> bool:
    return system.partition("-")[0] not in ("floor", "raftmq")


def lost_costs(rows: Sequence[Row]) -> list[str]:
    """For each scenario a sentence about the peers that take less processor time a message than
    raftmq, or less memory."""
    sentences = []
    for scenario, table in by_scenario(rows).items():
        if "raftmq" not in table:
            continue
        parts = [
            part
            for field, words in (
                ("server_cpu_s_per_million", "less processor time a message"),
                ("server_mib", "less memory"),
            )
            if (part := _cheaper(table, field, words))
        ]
        if parts:
            sentences.append(f"{scenario}: {'; '.join(parts)}.")
    return sentences


def _cheaper(table: Mapping[str, Row], field: str, words: str) -> str:
    """The peers with less of something than raftmq, and their share of raftmq's; empty: none."""
    ours = table["raftmq"].get(field)
    costs = {name: row.get(field) for name, row in table.items() if _is_peer(name)}
    shares = {
        name: cost / ours
        for name, cost in costs.items()
        if isinstance(cost, float | int) and isinstance(ours, float | int) and cost < ours
    }
    found = sorted(shares.items(), key=lambda each: each[1])
    texts = ", ".join(f"{name} {share:.2f}" for name, share in found)
    return f"{words}: {texts} of raftmq's" if found else ""


def _lost_figures(scenario: str, ours: Row, theirs: Row) -> list[str]:
    """Sentences about the figures, and the memory beside them, in which a peer beats raftmq."""
    if "figures" not in ours or "figures" not in theirs:
        return []
    numbers = {
        name: (ours["figures"][name], theirs["figures"][name], is_more)
        for name, is_more in FIGURES.items()
        if name in ours["figures"] and name in theirs["figures"]
    }
    if ours["server_mib"] is not None and theirs["server_mib"] is not None:
        numbers["MiB"] = (ours["server_mib"], theirs["server_mib"], False)
    return [
        f"{scenario}: {name}: raftmq {own:,.12g}, {theirs['system']} {other:,.12g}."
        for name, (own, other, is_more) in numbers.items()
        if (other > own if is_more else other < own)
    ]


def best_peers(rows: Sequence[Row]) -> list[tuple[str, float, str, float]]:
    """For each scenario of raftmq and a peer: raftmq's rate, the fastest peer, its rate; first
    those in which raftmq is furthest ahead."""
    found = []
    for scenario, table in by_scenario(rows).items():
        peers = {name: row["messages_per_s"] for name, row in table.items() if _is_peer(name)}
        if "raftmq" in table and peers:
            best = max(peers, key=peers.__getitem__)
            found.append((scenario, table["raftmq"]["messages_per_s"], best, peers[best]))
    return sorted(found, key=lambda each: -each[1] / each[3])


def targets(rows: Sequence[Row], gaps: Iterable[Gap] = ()) -> list[tuple[str, float, float, bool]]:
    """Each target of raftmq for which there are rows: claim, wanted, got, is met."""
    table = by_scenario(rows)

    def rate(scenario: str, system: str) -> float | None:
        row = table.get(scenario, {}).get(system)
        return row["messages_per_s"] if row else None

    def median(scenario: str, system: str) -> float | None:
        row = table.get(scenario, {}).get(system)
        return row["p50_ms"] if row else None

    single = "single-200B"
    rates = [
        ("produce-100B", "the floor's", "produce-100B", "floor", 0.6),
        ("produce-10kB", "the floor's", "produce-10kB", "floor", 0.75),
        ("produce-1MiB", "the floor's", "produce-1MiB", "floor", 0.7),
        ("consume-100B", "raftmq's own produce", "produce-100B", "raftmq", 2.0),
        ("consume-10kB", "the floor's", "consume-10kB", "floor", 0.5),
        ("consume-1MiB", "the floor's", "consume-1MiB", "floor", 0.5),
        ("ordered-100B", "raftmq's own pop", "pop-100B", "raftmq", 0.5),
    ]
    wanted = [
        (f"{scenario}: rate over {whose}, at least", limit, rate(scenario, "raftmq"),
         rate(other, system), True)
        for scenario, whose, other, system, limit in rates
    ]  # fmt: skip
    durable = {
        name: p50
        for name, entrant in SYSTEMS.items()
        if _is_peer(name) and entrant.synced >= MAJORITY and (p50 := median(single, name))
    }
    best = min(durable, key=durable.__getitem__, default="")
    p50s = [
        ("the floor's", "floor", 1.3),
        ("RabbitMQ's", "rabbitmq", 1.0),
        (f"that of {best}, the best peer that syncs a majority", best, 1.5),
    ]
    silences = {gap["system"]: statistics.median(gap["gaps_ms"]) for gap in gaps}
    ours = silences.pop("raftmq", None)
    quickest = min(silences, key=silences.__getitem__, default="")
    popped = table.get("pop-100B", {}).get("raftmq")
    wanted += [
        ("pop-100B: rate over reading in like batches, at least", 0.6,
         popped.get("figures", {}).get(READ_ALIKE) if popped else None, 1.0, True),
        (f"failover: silence over that of {quickest}, the quickest peer, at most", 1.0,
         ours, silences.get(quickest), False),
    ]  # fmt: skip
    wanted += [
        (f"{single}: p50 over {whose}, at most", limit, median(single, "raftmq"),
         median(single, system), False)
        for whose, system, limit in p50s
    ]  # fmt: skip
    return [
        (claim, limit, got / base, (got / base >= limit) is is_least)
        for claim, limit, got, base, is_least in wanted
        if base and got
    ]
