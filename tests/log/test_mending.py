"""Rot is mended: rewritten by a peer's records where these can be proven, else cut and noted."""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from raftmq.chaos.world.disk import MemoryFiles, PowerLoss
from raftmq.log import cutting
from raftmq.log.builder import SegmentBuilder
from raftmq.log.cutting import ASIDE_MAX, ASIDE_SUFFIX, NOTE_NAME
from raftmq.log.faults import RotFound
from raftmq.log.index_file import IndexDamaged
from raftmq.log.record import Record
from raftmq.log.rewrite import NotProven
from raftmq.log.segment import HardState
from raftmq.log.store import LogStore, Recovered

from .building import (
    FOLDER,
    IDENTITY,
    SMALL,
    Chain,
    meta_at,
    open_store,
    read_all,
    segment_names,
    write,
)
from .test_recovery import scenario_seal

SEALED = f"{FOLDER}/{6:020d}.log"


def reopened(files: MemoryFiles) -> tuple[LogStore, Recovered]:
    """The folder, mended as far as it can be."""
    return LogStore.open(files, FOLDER, SMALL, IDENTITY, mends=True)


def sealed_log(*, superseding: bool = False) -> tuple[MemoryFiles, Chain, LogStore]:
    """An open log with sealed segments; `superseding`: with superseded records."""
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 6)
    if superseding:
        store.append(chain.make([bytes(77), bytes(33)]), HardState(1, 1, 6))
        store.append(chain.make([bytes(50), bytes(60)], first=7, term=2), HardState(2, 1, 6))
        write(store, chain, 14, term=2)
    else:
        write(store, chain, 16)
    scenario_seal(store, chain, files)
    for sealed in store.sealed:
        store.save_snapshot(meta_at(store, sealed.last), b"state")
    return files, chain, store


def mend(store: LogStore, name: int, give: Callable[[int], Record], *, keeps: bool = True) -> int:
    """Rewrite a segment; returns the number of records that came from elsewhere."""
    rewrite = store.rewrite(name, keeps_sound=keeps)
    assert rewrite is not None
    given = 0
    while (wanted := rewrite.lacks()) is not None:
        records = [give(index) for index in range(*wanted)][:2]
        rewrite.add(records)
        given += len(records)
    rewrite.finish()
    assert store.replace(rewrite)
    return given


def without_index(files: MemoryFiles, name: int) -> MemoryFiles:
    """The same disk without an index, so that the segment is scanned."""
    twin = files.copy()
    twin.remove(f"{FOLDER}/{name:020d}.index")
    return twin


@pytest.mark.parametrize("superseding", [False, True])
def test_flipped_bit_anywhere_in_a_sealed_segment_is_mended_to_the_same_records(
    superseding: bool,
) -> None:
    files, chain, store = sealed_log(superseding=superseding)
    store.close()
    random = Random(3)
    size = len(files.bytes_of(SEALED))
    for byte in range(0, size, 3):
        twin = files.copy()
        twin.flip(SEALED, 8 * byte + random.randrange(8))
        store, recovered = reopened(twin)
        assert not recovered.abstains
        assert mend(store, 6, chain.records.__getitem__) <= 1
        assert read_all(store) == chain.upto(chain.last)
        assert len(twin.bytes_of(SEALED)) == size
        store.close()
        # The copy can be scanned as well, if its index is lost later.
        store, _ = open_store(without_index(twin, 6))
        assert read_all(store) == chain.upto(chain.last)


@pytest.mark.parametrize("superseding", [False, True])
def test_lost_file_of_a_sealed_segment_is_reported_and_made_anew_from_peers(
    superseding: bool,
) -> None:
    files, chain, store = sealed_log(superseding=superseding)
    store.close()
    files.remove(SEALED)
    store, recovered = reopened(files)
    assert [fault.file for fault in recovered.rotten] == [SEALED]
    assert recovered.last_index == chain.last
    with pytest.raises(RotFound, match="missing"):
        store.read(6, 8, 1000)
    segment = next(segment for segment in store.sealed if segment.name == 6)
    if superseding:
        # Its header named a record that was superseded: that record is unknown now.
        assert segment.base == 7 or mend(store, 6, chain.records.__getitem__) == segment.count
        return
    assert mend(store, 6, chain.records.__getitem__) == segment.count
    assert read_all(store) == chain.upto(chain.last)


def test_cut_zeroed_and_misplaced_pieces_of_a_sealed_segment_are_mended() -> None:
    files, chain, store = sealed_log()
    store.close()
    data = files.bytes_of(SEALED)
    random = Random(11)
    for _ in range(60):
        start = random.randrange(len(data))
        size = random.randint(1, 400)
        other = random.randrange(len(data))
        damaged = random.choice(
            [
                data[:start],
                data[:start] + bytes(len(data[start : start + size])) + data[start + size :],
                data[:start] + data[other : other + size] + data[start + size :],
                data + data[:size],
            ]
        )
        twin = files.copy()
        twin.put(SEALED, damaged)
        store, recovered = reopened(twin)
        assert not recovered.abstains
        mend(store, 6, chain.records.__getitem__)
        assert read_all(store) == chain.upto(chain.last)
        assert len(twin.bytes_of(SEALED)) == len(data)
        store.close()


def test_records_of_another_log_are_not_taken() -> None:
    files, _, store = sealed_log()
    other = Chain()
    other.make([b"other" * 20 for _ in range(22)])
    files.flip(SEALED, 8 * 300)
    before = files.bytes_of(SEALED)
    with pytest.raises(NotProven):
        mend(store, 6, other.records.__getitem__)
    assert files.bytes_of(SEALED) == before


def test_sound_looking_record_of_an_older_term_is_found_out_and_all_is_asked_for() -> None:
    files, chain, store = sealed_log()
    segment = next(segment for segment in store.sealed if segment.name == 6)
    # The last record passes every check of its own, and is not the one that the index names.
    stranger = Chain(segment.last - 1, chain.records[segment.last].chain)
    (record,) = stranger.make([bytes(99) + b"x"])
    data = files.bytes_of(SEALED)
    files.put(SEALED, data.replace(chain.records[segment.last].encoded, record.encoded))
    with pytest.raises(NotProven):
        mend(store, 6, chain.records.__getitem__)
    assert mend(store, 6, chain.records.__getitem__, keeps=False) == segment.count
    assert read_all(store) == chain.upto(chain.last)


def test_power_loss_at_every_call_of_a_rewrite_leaves_the_old_file_or_the_new_one() -> None:
    files, chain, store = sealed_log()
    store.close()
    files.flip(SEALED, 8 * 300)
    for call in range(1, 100):
        twin = files.copy()
        store, _ = reopened(twin)
        twin.crash_at(call)
        try:
            mend(store, 6, chain.records.__getitem__)
        except PowerLoss:
            twin.power_loss()
            store, recovered = reopened(twin)
            assert not recovered.abstains
            mend(store, 6, chain.records.__getitem__)
            assert read_all(store) == chain.upto(chain.last)
        else:
            assert call > 5
            return
    raise AssertionError("it never ended")


def test_segment_that_retention_took_meanwhile_does_not_come_back() -> None:
    files, _, store = sealed_log()
    name = store.sealed[0].name
    rewrite = store.rewrite(name)
    assert rewrite is not None
    assert rewrite.lacks() is None
    rewrite.finish()
    names = segment_names(files)
    store.drop_before(store.snapshots[0].index + 1)
    assert not store.replace(rewrite)
    assert f"{name:020d}.log" not in segment_names(files)
    assert len(segment_names(files)) < len(names)
    assert not any(each.endswith(".new") for each in files.list(FOLDER))


def test_retention_drops_a_lost_segment() -> None:
    files, chain, store = sealed_log()
    files.remove(f"{FOLDER}/{store.sealed[0].name:020d}.log")
    start = store.drop_before(store.snapshots[0].index + 1)
    assert start.index == store.snapshots[0].index > 0
    store.close()
    store, _ = open_store(files)
    assert read_all(store) == chain.upto(chain.last)[start.index :]


# Cutting.


def unsealed_log(count: int = 8) -> tuple[MemoryFiles, Chain]:
    """A closed log of a few segments without an index."""
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, count, term=3)
    store.append(chain.make([b"last"], term=5), HardState(7, 2, chain.last - 1))
    store.sync()
    store.close()
    return files, chain


def test_every_flipped_bit_is_cut_before_with_a_note_and_a_term_never_used() -> None:
    files, chain = unsealed_log()
    random = Random(1)
    outcomes: set[object] = set()
    for name in segment_names(files):
        path = f"{FOLDER}/{name}"
        for byte in range(0, len(files.bytes_of(path)), 5):
            twin = files.copy()
            twin.flip(path, 8 * byte + random.randrange(8))
            try:
                store, recovered = reopened(twin)
            except RotFound as fault:
                # Only the header and the first mark of the newest segment matter so.
                is_newest = name == segment_names(files)[-1]
                outcomes.add(("term of the last vote" in str(fault), is_newest, byte < 136))
                continue
            kept = chain.upto(recovered.last_index)
            assert [*read_all(store)] == kept
            if recovered.abstains:
                outcomes.add("abstains")
                assert recovered.hard_state.term == 8
                assert recovered.hard_state.vote == 0
                assert recovered.hard_state.commit <= recovered.last_index
                assert any(ASIDE_SUFFIX in each for each in twin.list(FOLDER))
            else:
                outcomes.add("unharmed")
                assert len(kept) == chain.last
    assert outcomes == {"abstains", (True, True, True), "unharmed"}


def test_a_missing_piece_in_the_last_segment_is_rot_though_no_later_mark_is_in_its_place() -> None:
    files, chain = unsealed_log()
    path = f"{FOLDER}/{segment_names(files)[-1]}"
    data = files.bytes_of(path)
    for start in range(136, len(data) - 64 - 240, 7):
        twin = files.copy()
        twin.put(path, data[:start] + data[start + 50 :])
        with pytest.raises(RotFound, match="says that it was durable"):
            open_store(twin)
        _, recovered = reopened(twin)
        assert recovered.abstains
        assert recovered.hard_state.term == 8
        assert recovered.last_index < chain.last


def test_a_log_that_was_cut_goes_on_abstains_over_restarts_and_returns() -> None:
    files, chain = unsealed_log()
    path = f"{FOLDER}/{segment_names(files)[-1]}"
    files.flip(path, 8 * (len(files.bytes_of(path)) - 160))
    store, recovered = reopened(files)
    cut_at = recovered.last_index
    assert "byte" in recovered.abstains
    assert 0 < cut_at < chain.last
    missing = [chain.records[i] for i in range(cut_at + 1, chain.last + 1)]
    store.append(missing, HardState(9, 0, cut_at))
    store.sync()
    store.close()
    with pytest.raises(RotFound, match="was cut and abstains"):
        open_store(files)
    store, recovered = reopened(files)
    assert recovered.abstains
    assert recovered.hard_state.term == 9
    assert read_all(store) == chain.upto(chain.last)
    store.end_abstention()
    store.close()
    store, recovered = open_store(files)
    assert not recovered.abstains
    assert NOTE_NAME not in files.list(FOLDER)


def test_a_log_that_no_cut_brings_into_order_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    files, _, store = sealed_log()
    store.close()
    cuts = list[RotFound]()

    def recover(*_: object, **__: object) -> None:
        raise RotFound("rot", file=SEALED, position=0)

    monkeypatch.setattr(cutting, "CUTS_MAX", 3)
    monkeypatch.setattr(cutting, "recover", recover)
    monkeypatch.setattr(cutting, "cut", lambda *args: cuts.append(args[2]))
    with pytest.raises(RotFound, match="cannot be brought into order"):
        cutting.open_cut(files, FOLDER, IDENTITY, mends=True, cuts=True)
    assert len(cuts) == 3


def test_power_loss_at_every_call_of_a_cut_never_loses_the_note_of_what_was_lost() -> None:
    for name in segment_names(unsealed_log()[0]):
        for seed in range(3):
            files, chain = unsealed_log()
            files.random = Random(seed)
            path = f"{FOLDER}/{name}"
            files.flip(path, 8 * (len(files.bytes_of(path)) - 160))
            call = 0
            while True:
                call += 1
                twin = files.copy()
                twin.random = Random(100 * seed + call)
                twin.crash_at(call)
                try:
                    store, recovered = reopened(twin)
                except PowerLoss:
                    twin.power_loss()
                    store, recovered = reopened(twin)
                    assert recovered.abstains
                    assert recovered.hard_state.term >= 8
                    assert read_all(store) == chain.upto(recovered.last_index)
                    continue
                assert recovered.abstains
                assert call > 8
                break


def test_log_without_any_segment_left_starts_anew_and_abstains() -> None:
    files, _ = unsealed_log(2)
    files.flip(f"{FOLDER}/{1:020d}.log", 8 * 150)
    store, recovered = reopened(files)
    assert recovered.last_index == 0
    assert recovered.abstains
    assert recovered.hard_state.term == 8
    store.close()
    _, recovered = reopened(files)
    assert recovered.hard_state.term == 8


def trimmed_log() -> tuple[MemoryFiles, Chain]:
    """A closed log whose first segments retention took: it stands on a snapshot."""
    files, chain, store = sealed_log()
    store.drop_before(store.snapshots[0].index + 1)
    assert len(store.snapshots) > 1
    store.close()
    return files, chain


def snapshot_names(files: MemoryFiles) -> list[str]:
    return [name for name in files.list(FOLDER) if name.endswith(".snapshot")]


def test_flipped_bit_anywhere_in_the_oldest_snapshot_costs_no_record() -> None:
    files, chain = trimmed_log()
    path = f"{FOLDER}/{snapshot_names(files)[0]}"
    for bit in range(8 * len(files.bytes_of(path))):
        twin = files.copy()
        twin.flip(path, bit)
        before = twin.list(FOLDER)
        store, recovered = reopened(twin)
        assert not recovered.abstains
        assert (recovered.snapshot_fault is None) == (recovered.start == store.snapshots[0].link)
        assert read_all(store) == chain.upto(chain.last)[recovered.start.index :]
        assert recovered.start[:3] == store.link(recovered.start.index)[:3]
        assert store.link(recovered.start.index).crc == chain.records[recovered.first_index].chain
        store.close()
        assert twin.list(FOLDER) == before


def test_log_whose_oldest_snapshot_is_gone_goes_on_and_retention_takes_what_is_left() -> None:
    files, chain = trimmed_log()
    for spoil in (files.remove, lambda path: files.flip(path, 100)):
        spoil(f"{FOLDER}/{snapshot_names(files)[0]}")
        store, recovered = reopened(files)
        assert recovered.snapshot_fault is not None
        start = store.drop_before(store.snapshots[0].index + 1)
        assert start == store.snapshots[0].link
        assert snapshot_names(files)[0] == f"{start.index:020d}.snapshot"
        store.close()
        store, recovered = open_store(files)
        assert recovered.snapshot_fault is None
        assert [f"{start.index:020d}.snapshot", *snapshot_names(files)[1:]] == snapshot_names(files)
        assert read_all(store) == chain.upto(chain.last)[start.index :]
        store.close()


def cut_to_nothing() -> MemoryFiles:
    """A log of many segments, all of them rotten, that was opened once."""
    files, chain, store = sealed_log()
    for _ in range(ASIDE_MAX):
        write(store, chain, 16, term=2)
    store.close()
    names = segment_names(files)
    assert len(names) > ASIDE_MAX + 1
    for name in names[:-1]:
        files.flip(f"{FOLDER}/{name}", 8 * 300)
        with suppress(FileNotFoundError):
            files.remove(f"{FOLDER}/{name.removesuffix('.log')}.index")
    store, recovered = reopened(files)
    assert recovered.abstains
    aside = {name.partition(ASIDE_SUFFIX)[0] for name in files.list(FOLDER) if ASIDE_SUFFIX in name}
    assert aside == set(names)
    store.close()
    return files


def test_nothing_that_was_put_aside_is_removed_before_the_member_holds_all_again() -> None:
    files = cut_to_nothing()
    store, _ = reopened(files)
    store.end_abstention()
    assert sum(ASIDE_SUFFIX in name for name in files.list(FOLDER)) == ASIDE_MAX


def test_power_loss_at_every_call_of_a_return_leaves_the_note_or_few_files_aside() -> None:
    whole = cut_to_nothing()
    for call in range(1, 1000):
        files = whole.copy()
        store, _ = reopened(files)
        files.crash_at(call)
        with suppress(PowerLoss):
            store.end_abstention()
            break
        files.power_loss()
        store, recovered = reopened(files)
        if not recovered.abstains:
            assert sum(ASIDE_SUFFIX in name for name in files.list(FOLDER)) <= ASIDE_MAX
    assert call > ASIDE_MAX


def test_only_copy_is_never_cut() -> None:
    files, _ = unsealed_log()
    path = f"{FOLDER}/{segment_names(files)[-1]}"
    files.flip(path, 8 * (len(files.bytes_of(path)) - 160))
    before = files.digest()
    with pytest.raises(RotFound, match="was durable"):
        LogStore.open(files, FOLDER, SMALL, IDENTITY, mends=True, cuts=False)
    assert files.digest() == before


def test_damage_again_and_again_keeps_a_bounded_number_of_files_aside() -> None:
    files, chain = unsealed_log()
    term = 7
    for _ in range(2 * ASIDE_MAX):
        path = f"{FOLDER}/{segment_names(files)[-1]}"
        files.flip(path, 8 * (len(files.bytes_of(path)) - 70))
        store, recovered = reopened(files)
        assert recovered.hard_state.term > term
        term = recovered.hard_state.term
        chain = Chain(recovered.last_index, store.link(recovered.last_index).crc)
        store.append(chain.make([bytes(100)] * 2, term=term))
        store.sync()
        store.append(chain.make([bytes(100)] * 2, term=term))
        store.sync()
        store.end_abstention()
        store.close()
    assert sum(ASIDE_SUFFIX in name for name in files.list(FOLDER)) <= ASIDE_MAX


def test_index_that_cannot_be_read_back_is_written_again() -> None:
    files, chain = MemoryFiles(), Chain()
    store, _ = open_store(files)
    write(store, chain, 16)
    name = store.layout[0].name
    files.fail_next("pread", errno.EIO)
    with pytest.raises(IndexDamaged):
        store.seal(SegmentBuilder(name))
    # It would outlive its segment if that were dropped before it is sealed.
    assert f"{name:020d}.index" not in files.list(FOLDER)
    assert store.seal(SegmentBuilder(name)).name == name
    assert read_all(store)[0].index == 1
