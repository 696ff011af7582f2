"""The hall of known bugs: the Raft of another project, with published bugs, in the core simulator.

Bugs that the authors of a harness plant themselves may be the kind that the harness finds. So the
harness also runs pysyncobj, a Raft that it was not written for: a version with bugs that others
found and published, and the newest version, in which these bugs are fixed.

Start reading at `run` (one run), then `member` (a process with pysyncobj in it), `streams` (the
connections between members), `evidence` (the records of every step), `bugs` (the published bugs).
`python -m bench.known_bugs` installs both versions, plays seeds, writes docs/chaos/known-bugs.md.

Time, network, faults and checkers are those of `raftmq.chaos`; only the transport of messages and
the reading of pysyncobj's state are written for pysyncobj.

Left out: compaction, members that change, disks (pysyncobj promises nothing after a power loss: it
never syncs), and wrong clocks (pysyncobj reads a monotonic clock).

Sources: SandTable (EuroSys 2024), which found most of these bugs with a model checker; the issues
of bakwc/PySyncObj as named in `bugs`.
"""
