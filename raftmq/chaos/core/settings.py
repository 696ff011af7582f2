"""How a simulated cluster is set up: drawn from the seed, so that seeds differ in more than faults.

A seed decides how many nodes there are, which options of consensus are on, and how small its
windows, caches and segments are: small ones meet their borders often. One seed in three has a
theme, which narrows some of these choices (`themes`). `STEADY` is the fixed set-up that speed is
measured with.

Sources: swarm testing (Groce et al., ISSTA 2012), applied to settings.
"""

from dataclasses import dataclass, replace
from random import Random

from raftmq.chaos.core.faults.themes import KIB, chosen_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One cluster."""

    nodes: int = 3
    """Founding members."""
    tick_ms: int = 100
    """Length of a tick."""
    heartbeat_ticks: int = 1
    """Ticks between heartbeats."""
    election_ticks: int = 10
    """Ticks without a leader before an election, up to twice as many."""
    pre_vote: bool = True
    """As in `raftmq.consensus.Config`, like the next ones."""
    check_quorum: bool = True
    """Leaders step down without a quorum."""
    announce_commit: bool = False
    """Followers hear at once of a commit."""
    forwards_proposals: bool = False
    """Followers send proposals on to their leader."""
    message_bytes_max: int = 1024 * KIB
    """Bytes of records in one append; 0: one record in each."""
    inflight_messages_max: int = 256
    """Appends on their way to one follower."""
    committed_bytes_max: int = 16 * 1024 * KIB
    """Bytes of records handed out and not applied."""
    cache_bytes: int = 1024 * KIB
    """Bytes of records kept in memory; other records are read back from disk."""
    segment_bytes: int = 64 * KIB
    """Size of a segment of the log; each border brings a snapshot."""
    segments_kept: int = 3
    """Newest segments that a log keeps; older ones are dropped."""
    apply_ms_max: int = 0
    """Longest lag of the machine behind consensus; 0: it applies at once, as in the broker."""
    proposals_per_second: float = 5.0
    """Rate at which all clients together begin to write; bursts come on top."""
    reads_per_second: float = 2.0
    """Rate at which all clients together begin linearizable reads; bursts come on top."""
    newest_share: float = 0.6
    """Share of the clients' calls that find the newest leader; of the others most go to any node
    that believes that it leads."""
    mends: bool = False
    """True: a rotten log is cut, and its member abstains until it holds all records again, as in
    the broker. False: the node refuses to start."""
    delay_ms: float = 0.0
    """Mean extra delay of each message, until everything heals; few are up to ten times later."""
    duplication: float = 0.0
    """Share of the messages that arrive twice, until everything heals."""
    reordering: float = 0.0
    """Share of the messages that others may overtake, until everything heals."""
    index_damage_share: float = 0.3
    """Share of the flipped bits that are in an index, if there is one."""
    index_loss_share: float = 0.0
    """Share of the index files that are gone when a process starts, as in a backup without them."""
    stall_share: float = 0.0
    """Share of the calls to a slow disk that stall."""
    jobs_first: bool = False
    """True: jobs of the disk thread that came during a pass run before the next pass, as in the
    broker. False: after it."""
    is_liveness: bool = False
    """At the heal only a random quorum comes back; the rest stays dead, and progress is due."""
    elects_slowly: bool = False
    """At the heal all nodes start again, on disks that write for about as long as the shortest
    election timeout, and a leader is due all the same. Then the disks are quick again."""

    @property
    def tick_us(self) -> int:
        """Length of a tick, in microseconds."""
        return self.tick_ms * 1000


STEADY = Settings(proposals_per_second=10.0)
"""Three nodes, heartbeats every 100 ms, 10 messages a second."""


def draw_settings(seed: int) -> Settings:
    """The set-up of a seed."""
    random = Random(f"settings {seed}")

    def share(of: float) -> bool:
        return random.random() < of

    segment_bytes = random.choice([KIB, 4 * KIB, 16 * KIB, 64 * KIB])
    drawn = Settings(
        nodes=random.choices([3, 4, 5, 7, 1], [60, 8, 24, 6, 2])[0],
        heartbeat_ticks=random.choice([1, 2, 5]),
        pre_vote=share(0.8),
        check_quorum=share(0.8),
        announce_commit=share(0.4),
        forwards_proposals=share(0.2),
        message_bytes_max=random.choice([0, 200, 1024 * KIB, 1024 * KIB]),
        inflight_messages_max=random.choice([1, 2, 256, 256]),
        committed_bytes_max=random.choice([1, 500, 16 * 1024 * KIB, 16 * 1024 * KIB]),
        cache_bytes=random.choice([2 * KIB, 8 * KIB, 1024 * KIB]),
        segment_bytes=segment_bytes,
        segments_kept=random.choice([1, 2, 4, 1000]),
        apply_ms_max=random.choice([0, 0, 0, 20]),
        proposals_per_second=random.choice([2.0, 5.0, 10.0]),
        reads_per_second=random.choice([0.5, 2.0, 4.0]),
        is_liveness=share(0.15),
        mends=share(0.6),
        elects_slowly=share(0.15),
    )
    drawn = replace(drawn, **chosen_settings(seed))
    # A member that abstains is in a term above its leader's: only with pre-votes or the check of
    # the quorum does the member tell the leader of that term.
    tells = drawn.pre_vote or drawn.check_quorum
    # A disk that stalls takes ten times as long.
    elects_slowly = drawn.elects_slowly and drawn.pre_vote and not drawn.stall_share
    return replace(drawn, mends=drawn.mends and tells, elects_slowly=elects_slowly)
