"""The weights of nodes, by calls at given times."""

from random import Random

import pytest

from raftmq.client.routing.weights import (
    PROBE_SECONDS,
    RAMP_SECONDS,
    STUCK_SECONDS,
    WEIGHT_MIN,
    Outcome,
    Weights,
)

NODES = [1, 2, 3]


def measured(*milliseconds: float, zone: str = "") -> Weights:
    """Nodes 1, 2, ... whose batches took these times, up to time 10."""
    weights = Weights()
    weights.zone, weights.zones = zone, {1: "a", 2: "b", 3: "c"}
    for node, each in enumerate(milliseconds, 1):
        for _ in range(40):
            store(weights, node, each / 1000, 10.0)
    return weights


def store(weights: Weights, node: int, seconds: float, now: float) -> None:
    request = object()
    weights.began(node, request, now - seconds)
    weights.ended(node, request, Outcome.STORED, now)


def fail(weights: Weights, node: int, now: float) -> None:
    request = object()
    weights.began(node, request, now)
    weights.ended(node, request, Outcome.FAILED, now)


def of(weights: Weights, now: float, nodes: list[int] = NODES) -> list[float]:
    found = weights.among(nodes, now).weights
    return [round(found[node], 3) for node in nodes]


def test_nodes_that_were_never_measured_have_the_full_weight() -> None:
    assert of(Weights(), 10.0) == [1, 1, 1]
    assert of(measured(5.0), 10.0) == [1, 1, 1]


def test_node_up_to_twice_as_slow_has_the_full_weight_and_a_slower_one_less_by_the_square() -> None:
    assert of(measured(5, 9.9, 5), 10.0) == [1, 1, 1]
    assert of(measured(5, 20, 50), 10.0) == [1, 0.25, 0.04]


def test_node_that_is_a_thousand_times_slower_keeps_the_least_weight() -> None:
    assert of(measured(5, 900, 5), 10.0) == [1, round(WEIGHT_MIN, 3), 1]


def test_differences_below_two_milliseconds_mean_nothing() -> None:
    assert of(measured(0.1, 2.0, 3.9), 10.0) == [1, 1, 1]


def test_quickest_leader_of_the_topic_is_the_measure() -> None:
    weights = measured(5, 50, 50)
    assert of(weights, 10.0) == [1, 0.04, 0.04]
    assert of(weights, 10.0, [2, 3]) == [1, 1]


def test_batch_without_an_answer_counts_with_its_age() -> None:
    weights = measured(5, 5, 5)
    weights.began(2, "batch", 10.0)
    assert of(weights, 10.008) == [1, 1, 1]
    assert of(weights, 10.05) == [1, 0.04, 1]
    weights.began(2, "later batch", 10.5)
    assert of(weights, 10.0 + STUCK_SECONDS + 0.1) == [1, 0, 1]
    weights.ended(2, "batch", Outcome.UNTOLD, 11.1)
    weights.ended(2, "later batch", Outcome.UNTOLD, 11.1)
    assert of(weights, 11.1) == [1, 1, 1]


def test_node_that_got_quick_again_has_its_weight_back_after_some_batches() -> None:
    weights = measured(5, 50, 5)
    for _ in range(20):
        store(weights, 2, 0.005, 10.1)
    assert of(weights, 10.1) == [1, 1, 1]


def test_first_batch_after_a_silence_replaces_the_mean() -> None:
    weights = measured(5, 500, 5)
    assert of(weights, 60.0) == [1, round(WEIGHT_MIN, 3), 1]
    store(weights, 2, 0.005, 60.0)
    assert of(weights, 60.0) == [1, 1, 1]


def test_failed_node_has_no_weight_until_a_batch_probes_it() -> None:
    weights = measured(5, 5, 5)
    fail(weights, 2, 10.0)
    assert of(weights, 10.0 + PROBE_SECONDS - 0.01) == [1, 0, 1]
    assert of(weights, 10.0 + PROBE_SECONDS) == [1, round(WEIGHT_MIN, 3), 1]
    weights.began(2, "probe", 11.0)
    assert of(weights, 11.001) == [1, 0, 1], "one batch is enough"


def test_failed_node_comes_back_step_by_step() -> None:
    weights = measured(5, 5, 5)
    fail(weights, 2, 10.0)
    store(weights, 2, 0.005, 10.2)
    found = [of(weights, 10.2 + RAMP_SECONDS * n / 5)[1] for n in range(6)]
    assert found == [round(WEIGHT_MIN, 3), 0.2, 0.4, 0.6, 0.8, 1]
    store(weights, 2, 0.005, 10.2 + RAMP_SECONDS)
    fail(weights, 2, 20.0)
    assert of(weights, 20.0 + PROBE_SECONDS)[1] > 0, "the earlier failure is forgotten"


def test_node_that_fails_again_is_probed_after_a_longer_time() -> None:
    weights = measured(5, 5, 5)
    fail(weights, 2, 10.0)
    fail(weights, 2, 10.1)
    assert of(weights, 11.0)[1] > 0, "failures at one time are one"
    fail(weights, 2, 11.0)
    assert of(weights, 12.9)[1] == 0
    assert of(weights, 13.0)[1] > 0
    now = 13.0
    for _ in range(2000):
        weights.failed(2, now)
        now += 10.0
    assert of(weights, now)[1] > 0, "the time has a bound"


def test_failure_during_the_return_takes_the_weight_again() -> None:
    weights = measured(5, 5, 5)
    fail(weights, 2, 10.0)
    store(weights, 2, 0.005, 10.1)
    fail(weights, 2, 12.0)
    assert of(weights, 13.9)[1] == 0
    store(weights, 2, 0.005, 13.9)
    assert of(weights, 13.9)[1] == round(WEIGHT_MIN, 3)


def test_all_nodes_count_if_all_have_failed() -> None:
    weights = measured(5, 50, 5)
    for node in NODES:
        weights.failed(node, 10.0)
    assert of(weights, 10.0) == [1, 1, 1]


def test_refusal_that_says_nothing_about_the_node_changes_nothing() -> None:
    weights = measured(5, 5, 5)
    weights.began(2, "batch", 10.0)
    weights.ended(2, "batch", Outcome.UNTOLD, 10.5)
    assert of(weights, 10.5) == [1, 1, 1]


def test_batch_that_was_given_up_counts_with_the_time_it_had() -> None:
    weights = measured(5, 5, 5)
    weights.began(2, "short", 10.0)
    weights.gave_up(2, "short", 10.001)
    assert of(weights, 10.001) == [1, 1, 1], "the caller had no patience"
    weights.began(2, "longer", 10.0)
    weights.gave_up(2, "longer", 10.5)
    assert 0 < of(weights, 10.5)[1] < 0.2
    weights.began(3, "long", 10.0)
    weights.gave_up(3, "long", 10.0 + STUCK_SECONDS + 0.1)
    assert of(weights, 11.1)[2] == 0


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        ((5, 5, 5), [1, WEIGHT_MIN, WEIGHT_MIN]),
        ((20, 5, 5), [1, 4 * WEIGHT_MIN, 4 * WEIGHT_MIN]),
        ((40, 5, 5), [1 / 12, 1, 1]),
        ((500, 5, 5), [WEIGHT_MIN, 1, 1]),
    ],
    ids=["equal", "four-times-as-slow", "overloaded", "very-slow"],
)
def test_leader_in_the_zone_is_preferred_while_it_is_well(
    milliseconds: tuple[float, ...], expected: list[float]
) -> None:
    found = of(measured(*milliseconds, zone="a"), 10.0)
    assert found == pytest.approx(expected, abs=0.002)


def test_other_zones_take_over_from_a_leader_that_failed_and_hand_back_step_by_step() -> None:
    weights = measured(5, 5, 5, zone="a")
    weights.failed(1, 10.0)
    assert of(weights, 10.0) == [0, 1, 1]
    store(weights, 1, 0.005, 11.0)
    assert of(weights, 11.0 + RAMP_SECONDS / 2) == [1, 1, 1]
    assert of(weights, 11.0 + RAMP_SECONDS)[1:] == [round(WEIGHT_MIN, 3)] * 2


def test_zone_without_a_leader_of_the_topic_has_no_effect() -> None:
    assert of(measured(5, 5, 5, zone="z"), 10.0) == [1, 1, 1]
    assert of(measured(5, 5, 50, zone="a"), 10.0, [2, 3]) == [1, 0.04]


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_in_bounds_and_one_is_full_whatever_happens(seed: int) -> None:
    random = Random(seed)
    weights = Weights()
    weights.zone, weights.zones = random.choice(["", "a"]), {1: "a", 2: "b", 3: "a"}
    now, opened = 0.0, list[tuple[int, object]]()
    for _ in range(3000):
        now += random.expovariate(10.0)
        match random.randrange(4):
            case 0 | 1:
                opened.append((random.choice(NODES), object()))
                weights.began(*opened[-1], now)
            case 2 if opened:
                node, request = opened.pop(random.randrange(len(opened)))
                weights.ended(node, request, random.choice(list(Outcome)), now)
            case 3 if opened:
                weights.gave_up(*opened.pop(0), now)
        found = weights.among(NODES, now)
        assert max(found.weights.values()) == 1.0
        assert all(0.0 <= each <= 1.0 for each in found.weights.values())
        assert found.late_seconds > 0
