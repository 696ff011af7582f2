"""The memory cache against a plain list that forgets nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.log.cache import RECORD_OVERHEAD_BYTES, Compacted, LogCache, NotInMemory
from raftmq.log.record import Record
from raftmq.log.segment import Link

from .building import Chain


def link(record: Record) -> Link:
    return Link(record.index, record.term, record.crc, record.timestamp)


def empty(bytes_max: int = 2**20) -> LogCache:
    return LogCache(start=Link(), last=Link(), terms=(), bytes_max=bytes_max)


def test_entries_are_a_slice_within_the_byte_limit_and_at_least_one() -> None:
    cache, chain = empty(), Chain()
    cache.append(chain.make([bytes(60)] * 10))
    records = chain.upto(10)
    assert cache.entries(1, 11, 2**30) == records
    assert cache.entries(4, 8, 2**30) == records[3:7]
    assert cache.entries(4, 8, 200) == records[3:5]
    assert cache.entries(4, 8, 199) == records[3:4]
    assert cache.entries(4, 8, 0) == records[3:4]
    assert cache.entries(4, 4, 0) == []


def test_the_index_before_the_log_has_a_term_and_a_tail() -> None:
    start = Link(10, 3, 77, 5000)
    cache = LogCache(start=start, last=start, terms=(), bytes_max=2**20)
    assert (cache.first_index(), cache.last_index()) == (11, 10)
    assert cache.term(10) == 3
    assert cache.tail(10) == (77, 5000)
    with pytest.raises(Compacted):
        cache.term(9)
    with pytest.raises(Compacted):
        cache.entries(10, 11, 1)


def test_evicted_records_keep_their_terms_and_are_not_in_memory() -> None:
    cache, chain = empty(20 * (140 + RECORD_OVERHEAD_BYTES)), Chain()
    for index in range(1, 101):
        cache.append(chain.make([bytes(100)], term=1 + index // 30))
    assert 15 <= cache.last_index() - cache.memory_start() < 20
    with pytest.raises(NotInMemory):
        cache.entries(5, 10, 1)
    with pytest.raises(NotInMemory):
        cache.tail(5)
    edge = cache.memory_start() - 1
    assert cache.tail(edge) == (chain.records[edge].crc, chain.records[edge].timestamp)
    assert [cache.term(i) for i in range(1, 101)] == [1 + i // 30 for i in range(1, 101)]
    assert cache.get(edge) is None
    assert cache.get(edge + 1) == chain.records[edge + 1]


def test_the_newest_record_is_never_evicted() -> None:
    cache, chain = empty(1000), Chain()
    cache.append(chain.make([bytes(5000)]))
    cache.append(chain.make([bytes(6000)]))
    assert cache.entries(2, 3, 0) == [chain.records[2]]
    assert cache.memory_start() == 2


def test_cache_that_gets_less_memory_keeps_the_newest_records() -> None:
    cache, chain = empty(), Chain()
    cache.append(chain.make([bytes(1000)] * 50))
    cache.resize(20 * (1040 + RECORD_OVERHEAD_BYTES))
    assert 15 <= cache.last_index() - cache.memory_start() < 20
    assert cache.memory_bytes() <= 20 * (1040 + RECORD_OVERHEAD_BYTES)
    assert cache.entries(50, 51, 0) == [chain.records[50]]


def test_superseding_below_what_is_in_memory_forgets_the_crc_before_it() -> None:
    cache, chain = empty(10 * 500), Chain()
    cache.append(chain.make([bytes(100)] * 30))
    cache.append(chain.make([b"new"], term=2, first=4))
    assert (cache.memory_start(), cache.last_index()) == (4, 4)
    assert cache.entries(4, 5, 1) == [chain.records[4]]
    with pytest.raises(NotInMemory):
        cache.tail(3)
    assert [cache.term(i) for i in (0, 1, 3, 4)] == [0, 1, 1, 2]


def test_a_restored_snapshot_empties_the_cache() -> None:
    cache, chain = empty(), Chain()
    cache.append(chain.make([b"a"] * 5))
    cache.restore(Link(40, 6, 9, 8))
    assert (cache.first_index(), cache.last_index()) == (41, 40)
    assert cache.term(40) == 6
    cache.append(Chain(40, crc=9).make([b"b"], term=6))
    assert cache.last_index() == 41


def test_the_overhead_of_a_record_is_about_what_is_charged() -> None:
    import tracemalloc

    payload = bytes(100)
    tracemalloc.start()
    cache = empty(2**30)
    chain = Chain()
    for _ in range(100):
        cache.append(chain.make([payload] * 20))
        chain.records.clear()
    chain._crcs.clear()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.6 < used / cache.memory_bytes() < 1.1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 900), min_size=1, max_size=6)),
        st.tuples(st.just("supersede"), st.integers(0, 12)),
        st.tuples(st.just("drop"), st.integers(0, 12)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(steps, st.integers(500, 20_000))
def test_the_cache_answers_like_a_list_or_says_that_it_does_not_know(
    plan: list[tuple[str, list[int] | int]], bytes_max: int
) -> None:
    cache, chain, term, start = empty(bytes_max), Chain(), 1, Link()
    for operation, argument in plan:
        if isinstance(argument, list):
            cache.append(chain.make([bytes(size) for size in argument], term=term))
        elif operation == "supersede":
            first = max(chain.last - argument, start.index + 1)
            if first <= chain.last:
                term += 1
                cache.append(chain.make([b"new"], term=term, first=first))
        elif operation == "drop":
            index = min(start.index + argument, chain.last)
            if index > start.index:
                start = link(chain.records[index])
                cache.drop_before(start)
        elif chain.last > start.index:
            kept = chain.upto(chain.last)[start.index :]
            runs = [(record.index, record.term) for record in kept]
            cache = LogCache(start=start, last=link(kept[-1]), terms=runs, bytes_max=bytes_max)
        compare(cache, chain, start)


def compare(cache: LogCache, chain: Chain, start: Link) -> None:
    assert (cache.first_index(), cache.last_index()) == (start.index + 1, chain.last)
    assert cache.term(start.index) == start.term
    assert cache.tail(start.index) == (start.crc, start.timestamp)
    for index in range(start.index + 1, chain.last + 1):
        record = chain.records[index]
        assert cache.term(index) == record.term
        try:
            assert cache.tail(index) == (record.crc, record.timestamp)
        except NotInMemory:
            assert index < cache.memory_start()
        try:
            found = cache.entries(index, chain.last + 1, 1000)
        except NotInMemory:
            assert index < cache.memory_start()
        else:
            assert found == [chain.records[i] for i in range(index, index + len(found))]
            size = sum(len(r.encoded) for r in found)
            assert found
            assert len(found) == 1 or size <= 1000
            after = chain.records.get(index + len(found))
            assert after is None or size + len(after.encoded) > 1000
