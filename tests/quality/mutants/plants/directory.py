"""Plants of `tests.quality.mutants.brokers.directory`: the patched code needs the event loop."""

from raftmq.broker.node import Node
from raftmq.broker.serve.connection import Connection
from raftmq.chaos.mutant import Patch
from raftmq.directory.epoch import Epoch
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FrameKind

_MESSAGES = (FrameKind.PRODUCE, FrameKind.FETCH, FrameKind.POP)


def waits_for_the_directory(patch: Patch) -> None:
    """390"""
    handle = Node.handle

    def only_while_it_is_whole(self: Node, connection: Connection, frame: Frame) -> None:
        directory = self.presence.directory if self.is_serving else None
        if directory is not None and not directory.whole_seconds and frame.kind in _MESSAGES:
            refusal = ErrorReply("unavailable", "the directory is being built", retry_ms=100)
            connection.refuse(frame.correlation, refusal)
        else:
            handle(self, connection, frame)

    patch.set(Node, "handle", only_while_it_is_whole)


def hears_no_boots(patch: Patch) -> None:
    """391"""
    patch.set(Epoch, "learn", lambda self, heard: False)
