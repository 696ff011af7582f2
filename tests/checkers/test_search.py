"""The search for an order against trying all orders, and against the zones."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.checkers import History, Limit, Recorder, RowType, Verdict
from raftmq.checkers.objects.calls import NEVER, Call, calls_by_key
from raftmq.checkers.objects.linearizability import check_linearizability, contradiction
from raftmq.checkers.objects.models import (
    FIFO,
    MODELS,
    MUTEX,
    REFUSED,
    REGISTER,
    SET,
    TEXT,
    UNSEEN,
    Model,
    model_for,
)
from raftmq.checkers.objects.search import search
from raftmq.checkers.objects.zones import check_zones, why_zones_do_not_apply

from .writing import Script, random_register_run

seeds = st.integers(0, 2**32)


def some_order_explains(calls: Sequence[Call], model: Model) -> bool:
    """By trying them all: every subset of the optional calls, every order."""
    free = [call for call in calls if call.is_open or call.is_optional]
    bound = [call for call in calls if not (call.is_open or call.is_optional)]
    return any(
        explains(order, model)
        for count in range(len(free) + 1)
        for chosen in itertools.combinations(free, count)
        for order in itertools.permutations([*bound, *chosen])
    )


def explains(order: Sequence[Call], model: Model) -> bool:
    for early, late in itertools.combinations(order, 2):
        if late.end < early.begin:
            return False
    state = model.initial
    for call in order:
        state = model.step(state, call.function, call.argument, call.result)
        if state is REFUSED:
            return False
    return True


@st.composite
def few_calls(draw: st.DrawFn, model: Model) -> list[Call]:
    """Up to six calls with arbitrary times and answers, some of them open or optional."""
    arguments: dict[str, st.SearchStrategy[object]] = {
        "read": st.none(), "get": st.none(), "dequeue": st.none(),
        "acquire": st.none(), "release": st.none(),
        "write": st.integers(0, 2), "add": st.integers(0, 2), "enqueue": st.integers(0, 2),
        "cas": st.tuples(st.integers(0, 2), st.integers(0, 2)),
        "put": st.sampled_from(["", "a", "b"]), "append": st.sampled_from(["a", "b"]),
    }  # fmt: skip
    number = st.none() | st.integers(0, 2)
    results: dict[str, st.SearchStrategy[object]] = {
        "cas": st.booleans(), "get": st.text("ab", max_size=3), "dequeue": number,
        "read": number if model is REGISTER else st.lists(st.integers(0, 2)).map(tuple),
    }  # fmt: skip
    count = draw(st.integers(1, 5))
    times = draw(st.permutations(range(2 * count)))
    calls = []
    for place in range(count):
        function = draw(st.sampled_from(sorted(model.functions)))
        begin, end = sorted(times[2 * place : 2 * place + 2])
        fate = draw(st.sampled_from(["answered"] * 4 + ["open", "optional"]))
        if fate != "answered" and function in model.observers:
            continue
        result = draw(results.get(function, st.none())) if fate == "answered" else UNSEEN
        end = NEVER if fate == "open" else end
        argument = draw(arguments[function])
        calls.append(Call(place, function, argument, result, begin, end, fate == "optional"))
    return sorted(calls, key=lambda call: call.begin)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@given(data=st.data())
@settings(max_examples=300)
def test_search_finds_an_order_exactly_when_there_is_one(model: Model, data: st.DataObject) -> None:
    calls = data.draw(few_calls(model))
    assert search(calls, model).is_linearizable is some_order_explains(calls, model)


@given(seeds)
@settings(max_examples=60)
def test_what_a_perfect_register_answers_is_linearizable(seed: int) -> None:
    history = random_register_run(random.Random(seed), is_unique=False)
    report = check_linearizability(history)
    assert report.verdict is not Verdict.INVALID
    assert report.verdict is Verdict.VALID or report.reason.startswith("vacuous")


def with_another_read(history: History, rng: random.Random) -> History:
    """The same, but one read returned another value of the history."""
    rows = np.flatnonzero(history.is_function("read") & (history.type == RowType.OK))
    value = history.value.copy()
    if len(rows):
        value[rng.choice(list(rows))] = rng.randrange(-1, len(history.values))
    return History(
        history.operation, history.process, history.type, history.function, history.key, value,
        history.offset, history.time, history.functions, history.keys, history.values,
    )  # fmt: skip


@given(seeds)
@settings(max_examples=200)
def test_zones_and_search_agree(seed: int) -> None:
    rng = random.Random(seed)
    history = random_register_run(rng)
    if rng.random() < 0.8:
        history = with_another_read(history, rng)
    by_search = check_linearizability(history, method="search", is_shrinking=False)
    assert check_zones(history).verdict is by_search.verdict


@given(seeds)
@settings(max_examples=40)
def test_operations_that_are_reported_are_a_contradiction_by_themselves(seed: int) -> None:
    rng = random.Random(seed)
    history = with_another_read(random_register_run(rng), rng)
    for method in ("search", "zones"):
        report = check_linearizability(history, method=method)
        for anomaly in report.anomalies:
            part = history.select(np.isin(history.operation, anomaly.operations))
            assert check_linearizability(part, method="search").verdict is Verdict.INVALID
            assert len(anomaly.operations) < 12


def test_contradiction_of_a_stale_read_is_four_operations_of_22() -> None:
    script = Script()
    for value in range(10):
        script.wrote(0, value)
        script.read(1, value)
    script.read(2, 7)
    script.read(2, 9)
    (calls,) = calls_by_key(script.history(), REGISTER).values()
    outcome = search(calls, REGISTER)
    assert outcome.is_linearizable is False
    found = contradiction(calls, REGISTER, outcome)
    shown = [(call.function, call.argument if call.argument is not None else call.result)
             for call in found]  # fmt: skip
    # A later value was there already; the read of the old one, and the old value's write.
    assert ("write", 7) in shown
    assert ("read", 7) in shown
    assert len(shown) <= 4


def test_search_that_runs_into_its_limit_is_unknown() -> None:
    recorder = Recorder()
    writes = [recorder.invoke(process, "write", "x", process) for process in range(12)]
    for write in writes:
        recorder.ok(write)
    reads = [recorder.invoke(process, "cas", "x", (process, process + 1)) for process in range(12)]
    for read in reads:
        recorder.ok(read, value=False)
    report = check_linearizability(recorder.history(), limit=Limit(places=3))
    assert report.verdict is Verdict.UNKNOWN
    assert "gave up" in report.reason


def test_one_invalid_key_is_enough_though_another_is_unknown() -> None:
    recorder = Recorder()
    recorder.ok(recorder.invoke(0, "cas", "a", (1, 2)), value=True)
    report = check_linearizability(recorder.history(), limit=Limit(places=1))
    assert report.verdict is Verdict.INVALID
    assert report.names() == {"nonlinearizable"}


def test_empty_or_unanswered_history_is_vacuous() -> None:
    recorder = Recorder()
    assert check_linearizability(recorder.history()).reason.startswith("vacuous")
    recorder.unknown(recorder.invoke(0, "write", "x", 1))
    for method in ("search", "zones"):
        report = check_linearizability(recorder.history(), method=method)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reason.startswith("vacuous")


def test_zones_say_when_they_do_not_apply() -> None:
    script = Script()
    script.wrote(0, 1)
    assert why_zones_do_not_apply(script.history()) == ""
    script.wrote(0, 1)
    assert "twice" in why_zones_do_not_apply(script.history())
    assert check_zones(script.history()).verdict is Verdict.UNKNOWN


def test_write_that_failed_did_not_happen() -> None:
    recorder = Recorder()
    recorder.fail(recorder.invoke(0, "write", "x", 5))
    recorder.ok(recorder.invoke(1, "read", "x"), value=5)
    by_zones = check_zones(recorder.history())
    assert by_zones.names() == {"aborted-read"}
    assert check_linearizability(recorder.history(), method="search").names() == {"nonlinearizable"}


@pytest.mark.parametrize(
    ("functions", "model"),
    [
        ({"read", "write"}, REGISTER), ({"cas"}, REGISTER), ({"get", "append"}, TEXT),
        ({"add", "read"}, SET), ({"enqueue", "dequeue"}, FIFO), ({"acquire"}, MUTEX),
    ],
)  # fmt: skip
def test_functions_tell_the_model(functions: set[str], model: Model) -> None:
    assert model_for(frozenset(functions)) is model
    assert model_for(frozenset({*functions, "fly"})) is None


def test_fifty_clients_on_ten_texts_are_judged_fast() -> None:
    rng = random.Random(1)
    recorder = Recorder()
    texts = {str(key): "" for key in range(10)}
    under_way: list[tuple[int, str, str, str, bool]] = []
    for number in range(2000):
        function = rng.choice(["get", "append", "append", "put"]) if number % 7 else "get"
        key = rng.choice(list(texts))
        argument = f"x {number} y"
        value = None if function == "get" else argument
        under_way.append(
            (recorder.invoke(number, function, key, value), function, key, argument, False)
        )
        while len(under_way) > rng.randrange(50):
            place = rng.randrange(len(under_way))
            operation, function, key, argument, has_happened = under_way.pop(place)
            result = argument
            if function == "get":
                result = texts[key]
            elif not has_happened:
                texts[key] = argument if function == "put" else texts[key] + argument
            recorder.ok(operation, value=result)
    report = check_linearizability(recorder.history(), TEXT, limit=Limit(places=20_000))
    assert report.verdict is Verdict.VALID
