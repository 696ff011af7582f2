"""Packets of TCP over IPv4: parsed, changed and made, with correct checksums.

    segment = parse(packet)          None: another protocol, which is only forwarded
    reset(segment.ends, number)      a packet that ends a connection, as a kernel sends it

Left out: IPv6, options of IPv4, fragments: the kernels of `namespaces` send none.

Sources: RFC 791, RFC 1071, RFC 9293.
"""

import struct
from typing import NamedTuple

IP_BYTES = 20
TCP_BYTES_MIN = 20
TCP = 6
FIN, SYN, RST, ACK = 1, 2, 4, 16
LIVES = 64
"""Time to live (hops) of the packets that we make."""


class Ends(NamedTuple):
    """Addresses and ports of both ends of a connection."""

    source: bytes
    source_port: int
    target: bytes
    target_port: int

    @property
    def back(self) -> "Ends":
        """The other direction."""
        return Ends(self.target, self.target_port, self.source, self.source_port)


class Segment(NamedTuple):
    """The fields of a TCP packet."""

    ends: Ends
    number: int
    """Sequence number of the first byte."""
    wanted: int
    """Acknowledgement number: the byte that the speaker waits for, if `ACK` is set."""
    flags: int
    body_at: int
    """Position of the body in the packet."""
    body_bytes: int


def parse(packet: bytes) -> Segment | None:
    """The fields of a packet; None: not a whole TCP segment over IPv4 without options."""
    if len(packet) < IP_BYTES + TCP_BYTES_MIN or packet[0] != 0x45 or packet[9] != TCP:
        return None
    ports = struct.unpack_from(">HH", packet, IP_BYTES)
    number, wanted, words, flags = struct.unpack_from(">IIBB", packet, IP_BYTES + 4)
    body_at = IP_BYTES + (words >> 4) * 4
    ends = Ends(packet[12:16], ports[0], packet[16:20], ports[1])
    return Segment(ends, number, wanted, flags, body_at, len(packet) - body_at)


def reset(ends: Ends, number: int) -> bytes:
    """A packet that ends a connection; the target accepts it only with the number it waits for."""
    tcp = struct.pack(
        ">HHIIBBHHH", ends.source_port, ends.target_port, number, 0, 5 << 4, RST, 0, 0, 0
    )
    ip = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, IP_BYTES + len(tcp), 0, 0, LIVES, TCP, 0, ends.source, ends.target
    )
    return _sealed(bytearray(ip + tcp))


def with_bit_flipped(packet: bytes, at: int, bit: int) -> bytes:
    """The packet with one bit flipped and correct checksums."""
    changed = bytearray(packet)
    changed[at] ^= 1 << bit
    return _sealed(changed)


def cut_short(packet: bytes, length: int) -> bytes:
    """The first bytes of a packet, as a whole packet."""
    changed = bytearray(packet[:length])
    struct.pack_into(">H", changed, 2, length)
    return _sealed(changed)


def _sealed(packet: bytearray) -> bytes:
    """The packet with correct checksums."""
    struct.pack_into(">H", packet, 10, 0)
    struct.pack_into(">H", packet, 10, checksum(packet[:IP_BYTES]))
    struct.pack_into(">H", packet, IP_BYTES + 16, 0)
    tcp = packet[IP_BYTES:]
    pseudo = packet[12:20] + struct.pack(">BBH", 0, TCP, len(tcp))
    struct.pack_into(">H", packet, IP_BYTES + 16, checksum(pseudo + tcp))
    return bytes(packet)


def checksum(data: bytes | bytearray) -> int:
    """The internet checksum (RFC 1071): the complement of the sum in one's complement.

    >>> hex(checksum(bytes.fromhex("45000073000040004011" "0000" "c0a80001c0a800c7")))
    '0xb861'
    """
    if len(data) % 2:
        data = bytes(data) + b"\0"
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
