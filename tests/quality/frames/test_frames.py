"""Frames that no client would send: the corpus has all kinds, and a node stands all of them."""

from random import Random

import cbor2
import pytest

from raftmq.errors import ProtocolError
from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.codec import unpack
from raftmq.wire.frame import FrameParser
from raftmq.wire.messages import FrameKind

from .corpus import ANSWERS, HEADERS, KINDS, Things, request
from .mutations import mutated
from .simulated import play
from .stage import FEW, STRANGER

FRAMES = 7_000
"""Of each state: some seconds."""


def test_every_kind_has_a_request_and_an_answer() -> None:
    assert set(HEADERS) == set(FrameKind) - {FrameKind.ERROR}
    assert set(ANSWERS) == set(HEADERS) - {FrameKind.RAFT, FrameKind.FORGET, FrameKind.DIRECTORY}


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_the_corpus_are_well_formed(kind: FrameKind) -> None:
    random, things = Random(1), Things()
    for _ in range(50):
        number, header, _ = request(kind, things, random)
        assert number == kind
        if (type_ := HEADERS[kind]) is not None:
            unpack(type_, cbor2.dumps(header))


def test_mutations_are_of_many_kinds_and_come_again_from_their_seed() -> None:
    drawn = [mutated(Things(), random, 1) for random in (Random(7), Random(7))]
    assert drawn[0] == drawn[1]
    random = Random(1)
    many = [mutated(Things(), random, number) for number in range(5_000)]
    assert len({sent.mutation for sent in many}) > 20
    readable = 0
    for sent in many:
        parser = FrameParser(1 << 22)
        parser.feed(sent.data)
        try:
            readable += len(list(parser.frames()))
        except ProtocolError:
            assert sent.may_end, sent
    assert readable > 4_000


@pytest.mark.parametrize("user", [STRANGER, FEW, ADMIN])
def test_a_node_stands_frames_that_no_client_would_send(user: str) -> None:
    outcome, meter = play(user, 1, FRAMES)
    assert not outcome.findings, "\n".join(outcome.findings)
    assert outcome.frames >= FRAMES
    assert outcome.answers > FRAMES / 3
    # Most kinds get past the checks at times, where the user has a right to anything.
    assert len(outcome.by_kind) >= (2 if user == STRANGER else 20), outcome.by_kind
    assert meter.worst
