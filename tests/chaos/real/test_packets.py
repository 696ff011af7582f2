"""Packets: forged ones have the checksums that a kernel demands."""

import struct

from raftmq.chaos.real.network.packets import (
    ACK,
    FIN,
    IP_BYTES,
    RST,
    SYN,
    TCP,
    Ends,
    checksum,
    cut_short,
    parse,
    reset,
    with_bit_flipped,
)

ENDS = Ends(bytes((198, 18, 7, 1)), 4001, bytes((198, 18, 7, 2)), 4002)


def packet(body: bytes, *, number: int = 5, flags: int = ACK) -> bytes:
    """A segment with four bytes of options and no checksums."""
    tcp = struct.pack(">HHIIBBHHH", 4001, 4002, number, 9, 6 << 4, flags, 100, 0, 0) + bytes(4)
    size = IP_BYTES + len(tcp) + len(body)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, TCP, 0, ENDS.source, ENDS.target)
    return ip + tcp + body


def is_sound(sealed: bytes) -> bool:
    """Whether a kernel takes it: over data with its checksum the sum is all ones."""
    tcp = sealed[IP_BYTES:]
    pseudo = sealed[12:20] + struct.pack(">BBH", 0, TCP, len(tcp))
    length = int.from_bytes(sealed[2:4], "big")
    return not checksum(sealed[:IP_BYTES]) and not checksum(pseudo + tcp) and length == len(sealed)


def test_segment_is_read() -> None:
    read = parse(packet(b"hello"))
    assert read is not None
    assert read.ends == ENDS
    assert (read.number, read.wanted, read.flags) == (5, 9, ACK)
    assert (read.body_at, read.body_bytes) == (44, 5)


def test_what_is_no_segment_is_not_read() -> None:
    udp = bytearray(packet(b"hello"))
    udp[9] = 17
    assert parse(bytes(udp)) is None
    assert parse(packet(b"")[:39]) is None


def test_reset_is_for_the_number_that_its_target_waits_for() -> None:
    made = reset(ENDS.back, 77)
    read = parse(made)
    assert read is not None
    assert is_sound(made)
    assert (read.ends, read.number, read.flags & RST) == (ENDS.back, 77, RST)


def test_changed_packets_have_checksums_that_do_not_show_it() -> None:
    flipped = with_bit_flipped(packet(b"hello"), 44, 0)
    assert is_sound(flipped)
    assert flipped[44:] == b"iello"
    short = cut_short(packet(b"hello"), 47)
    assert is_sound(short)
    assert short[44:] == b"hel"


def test_ends_of_a_direction_turn_round() -> None:
    assert ENDS.back.back == ENDS
    assert ENDS.back.target_port == 4001
    assert SYN != FIN
