"""Claims: one claimant a key while its time runs."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import Reason
from raftmq.machine.claims import Claims
from raftmq.results import Changed, Refused, Result


def value(result: Result) -> Any:
    assert isinstance(result, Changed), result
    return result.value


def test_second_claimant_is_told_and_the_first_may_ask_again() -> None:
    claims = Claims()
    assert value(claims.claim(1, b"k", 5, ttl_ms=100, now=0)) == [True, 100]
    assert value(claims.claim(1, b"k", 6, ttl_ms=100, now=40)) == [False, 60]
    assert value(claims.claim(1, b"k", 5, ttl_ms=100, now=40)) == [True, 60]
    assert value(claims.claim(2, b"k", 6, ttl_ms=100, now=40)) == [True, 100]


def test_claim_ends_with_its_time_or_when_its_claimant_gives_it_up() -> None:
    claims = Claims()
    claims.claim(1, b"k", 5, ttl_ms=100, now=0)
    assert value(claims.release(1, b"k", 6)) == [False, 0]
    assert value(claims.claim(1, b"k", 6, ttl_ms=100, now=100)) == [True, 100]
    assert value(claims.release(1, b"k", 6)) == [True, 0]
    assert value(claims.claim(1, b"k", 7, ttl_ms=9, now=101)) == [True, 9]


def test_claim_made_anew_is_not_ended_by_the_timer_of_the_old_one() -> None:
    claims = Claims()
    claims.claim(1, b"k", 5, ttl_ms=10, now=0)
    claims.release(1, b"k", 5)
    claims.claim(1, b"k", 6, ttl_ms=100, now=5)
    claims.pass_time(10)
    assert value(claims.claim(1, b"k", 7, ttl_ms=1, now=10)) == [False, 95]


def test_what_is_out_of_range_or_too_much_is_refused() -> None:
    claims = Claims(claims_max=1)
    for key, ttl_ms in ((b"", 1), (b"x" * 1025, 1), (b"k", 0), (b"k", 10**12)):
        refused = claims.claim(1, key, 5, ttl_ms=ttl_ms, now=0)
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.BAD_ARGUMENT
    claims.claim(1, b"k", 5, ttl_ms=10, now=0)
    full = claims.claim(1, b"l", 5, ttl_ms=10, now=0)
    assert isinstance(full, Refused)
    assert full.reason is Reason.TOO_LARGE
    claims.close({1})
    assert len(claims) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["claim", "release", "time", "load"]),
            st.sampled_from([b"a", b"b"]),
            st.integers(1, 3),
            st.integers(1, 30),
        ),
        max_size=60,
    )
)
def test_claims_are_as_a_plain_table_says(steps: list[tuple[str, bytes, int, int]]) -> None:
    claims, table, now = Claims(), dict[bytes, tuple[int, int]](), 0
    for what, key, claimant, number in steps:
        holder, until = table.get(key, (0, 0))
        is_held = until > now
        match what:
            case "claim":
                is_new = not is_held or holder == claimant
                if not is_held:
                    table[key] = (claimant, now + number)
                got = value(claims.claim(1, key, claimant, ttl_ms=number, now=now))
                assert got == [is_new, table[key][1] - now]
            case "release":
                # A claim whose time is over may be forgotten already, or not.
                claims.pass_time(now)
                is_ours = is_held and holder == claimant
                assert value(claims.release(1, key, claimant)) == [is_ours, 0]
                if is_ours:
                    del table[key]
            case "time":
                now += number
                claims.pass_time(now)
                assert len(claims) == sum(until > now for _, until in table.values())
            case _:
                dumped = claims.dump()
                claims = Claims()
                claims.load(dumped)
