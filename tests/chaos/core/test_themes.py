"""Themes of the core simulator: the seeds that have one, its draws, the effect of its settings."""

from dataclasses import asdict, replace

import pytest

from raftmq.chaos.core import STEADY, draw_schedule, draw_settings, run
from raftmq.chaos.core.cluster import Cluster
from raftmq.chaos.core.faults.themes import EVERY, THEMES, chosen_settings, theme_of
from raftmq.chaos.core.replica.writing import Writing
from raftmq.chaos.faults import FAULTS, Schedule, World, draw, of_world
from raftmq.consensus import Message, MessageKind

SEEDS = range(400)


def test_most_seeds_have_no_theme_and_draw_as_if_there_were_none() -> None:
    plain = [seed for seed in SEEDS if theme_of(seed) is None]
    assert len(plain) == len(SEEDS) * 10 // 16
    for seed in plain:
        settings = draw_settings(seed)
        kinds = of_world(World.CORE)
        assert chosen_settings(seed) == {}
        assert draw_schedule(seed) == draw(seed, kinds, nodes=settings.nodes, seconds=60.0)
        assert (settings.index_loss_share, settings.delay_ms, settings.duplication) == (0, 0, 0)
        assert (settings.stall_share, settings.jobs_first) == (0, False)


@pytest.mark.parametrize("rest", sorted(THEMES))
def test_theme_says_which_settings_and_faults_belong_together(rest: int) -> None:
    theme = THEMES[rest]
    assert theme.kinds <= {fault.name for fault in of_world(World.CORE)}
    seen: dict[str, set[object]] = {name: set() for name in theme.choices}
    struck: set[str] = set()
    for seed in range(rest, 800, EVERY):
        settings, schedule = asdict(draw_settings(seed)), draw_schedule(seed)
        for name in seen:
            seen[name].add(settings[name])
        struck |= {event.fault for event in schedule.events}
        assert all(event.at_ms + event.lasts_ms <= schedule.heal_ms for event in schedule.events)
    assert seen == {name: set(values) for name, values in theme.choices.items()}
    assert struck == theme.kinds


def test_disks_of_the_stalled_theme_are_as_slow_as_can_be() -> None:
    levels = {
        event.level
        for seed in range(12, 400, EVERY)
        for event in draw_schedule(seed).events
        if event.fault == "slow-disk"
    }
    assert levels == {max(FAULTS["slow-disk"].levels)}


def test_call_to_a_slow_disk_may_stall() -> None:
    shares = []
    for stall_share in (0.0, 0.5):
        cluster = Cluster(3, replace(STEADY, stall_share=stall_share))
        cluster.begin()
        cluster.loop.run_until(5_000_000)
        node = cluster.nodes[1]
        node.disk_factor = 1000.0
        assert node.replica is not None
        passes = node.replica.writing.passes
        cluster.loop.run_until(25_000_000)
        shares.append(node.replica.writing.passes - passes)
    assert shares[0] > 2 * shares[1] > 0


@pytest.mark.parametrize(("jobs_first", "taken"), [(False, "pass"), (True, "job")])
def test_disk_thread_takes_a_job_or_the_next_pass_first(
    jobs_first: bool, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(3, replace(STEADY, jobs_first=jobs_first))
    cluster.begin()
    cluster.loop.run_until(5_000_000)
    replica = cluster.nodes[1].replica
    assert replica is not None
    order: list[str] = []
    monkeypatch.setattr(Writing, "_begin", lambda *_: order.append("pass"))
    monkeypatch.setattr(Writing, "_later", lambda *_: order.append("job"))
    answer = Message(MessageKind.STORAGE_APPEND_RESPONSE, 1)
    replica.writing._is_busy = False
    replica.writing.write(Message(MessageKind.STORAGE_APPEND, 1, responses=(answer,)))
    replica.writing.submit(lambda: None, lambda _: None)
    assert order == [taken]


def test_node_that_ends_over_a_file_which_it_removed_itself_is_a_finding() -> None:
    cluster = Cluster(3, STEADY)
    cluster.begin()
    cluster.loop.run_until(5_000_000)
    replica = cluster.nodes[1].replica
    assert replica is not None
    store = replica.store

    def look() -> None:
        store.open_snapshot(7)

    with pytest.raises(FileNotFoundError):
        replica.turn(look)
    cluster.nodes[1].is_damaged = True
    replica.turn(look)
    assert cluster.counts["stopped at a fault"] == 1


def test_seed_844_of_two_snapshots_in_one_pass_the_later_one_counts() -> None:
    """The earlier one was opened after the later one had replaced it."""
    outcome = run(draw_schedule(844))
    assert outcome.is_good, str(outcome)


def test_who_names_kinds_gets_these_whatever_the_theme() -> None:
    for seed in THEMES:
        kinds = [FAULTS["wipe"], FAULTS["add-voter"]]
        drawn = {event.fault for event in draw_schedule(seed, kinds=kinds).events}
        assert drawn <= {"wipe", "add-voter"}


def test_rough_network_doubles_and_delays_until_everything_heals() -> None:
    rough = replace(STEADY, delay_ms=50.0, duplication=0.3, reordering=0.3)
    cluster = Cluster(1, rough)
    shares = [cluster.network.duplication]
    cluster.network.heal()
    shares.append(cluster.network.duplication)
    assert shares == [0.3, 0.0]
    outcome = run(Schedule(1, 12.0, ()), rough)
    assert outcome.is_good, str(outcome)
    calm = run(Schedule(1, 12.0, ()), STEADY)
    assert outcome.trace_hash != calm.trace_hash


def test_lost_indexes_are_no_damage_and_are_made_again() -> None:
    settings = replace(STEADY, segment_bytes=1024, index_loss_share=0.5)
    cluster = Cluster(3, settings)
    cluster.begin()
    cluster.loop.run_until(10_000_000)
    node = cluster.nodes[1]
    before = [path for path in node.disk.paths() if path.endswith(".index")]
    node.end(power=False)
    node._lose_indexes()
    left = [path for path in node.disk.paths() if path.endswith(".index")]
    assert set(left) < set(before)
    node.start()
    cluster.loop.run_until(20_000_000)
    assert not node.is_damaged
    assert not node.refusal
    again = [path for path in node.disk.paths() if path.endswith(".index")]
    assert again[-1] > before[-1]


def test_clients_go_to_deposed_leaders_as_often_as_is_set() -> None:
    shares = []
    for newest_share in (0.1, 0.6):
        cluster = Cluster(3, replace(STEADY, check_quorum=False, newest_share=newest_share))
        cluster.begin()
        cluster.loop.run_until(5_000_000)
        leader = cluster.leader()
        assert leader is not None
        cut = [(leader.node.place, p) for p in cluster.at_place if p != leader.node.place]
        cluster.network.cut(cut + [(b, a) for a, b in cut])
        cluster.loop.run_until(12_000_000)
        assert cluster.leader() is not leader
        picked = [cluster.clients._pick() for _ in range(1000)]
        shares.append(picked.count(leader))
    assert shares[0] > 1.7 * shares[1] > 0


def test_cluster_too_small_to_split_draws_of_all_kinds() -> None:
    for seed in THEMES:
        for nodes in (1, 2):
            plain = draw(seed, of_world(World.CORE), nodes=nodes, seconds=60.0)
            assert draw_schedule(seed, nodes=nodes) == plain
