"""The command `raftmq`: one module a command group, loaded when its command is called.

Start reading at `app` (the table of commands, and the handling of errors), then `session` (a
command's connection to a cluster), `output` (results as tables or JSON, progress), `options` (a
command's parameters as a dataclass), and any command's module.
`up` consists of `playground` (a local cluster's folder) and `supervisor` (its processes).

Invariants:
- No command imports trio, anyio, numpy or rich before it runs: `raftmq --help`, `raftmq topic
  create --help` and a usage error answer in less than 120 ms.
- Data goes to stdout; progress, summaries and errors go to stderr.
- Exit codes are those of `exits.ExitCode`, and every error names what to do about it.
"""

from .app import main

__all__ = ["main"]
