"""The hall of known bugs: somebody else's Raft, with published bugs, in the core simulator.

A harness that finds what its own authors planted may have learned their taste. So it is pointed at
pysyncobj, a Raft that it was not written for: at a version with bugs that others found and
published, and at today's, in which those are mended.

Start reading at `run` (one run), then `member` (a process with pysyncobj in it), `streams` (the
connections between them), `evidence` (what is noted at every step), `bugs` (what was published).
`python -m bench.known_bugs` installs both versions, plays seeds, writes docs/chaos/known-bugs.md.

Time, network, faults and checkers are those of `raftmq.chaos`; only what moves messages and looks
inside is written for pysyncobj.

Left out: compaction, members that change, disks (pysyncobj promises nothing after a power loss: it
never syncs), and clocks that are wrong (it reads a monotonic one).

Sources: SandTable (EuroSys 2024), which found most of these bugs with a model checker; the issues
of bakwc/PySyncObj as named in `bugs`.
"""
