"""Frames that no client would send, by the million, against a node that knows its users.

    python -m tests.quality.frames --frames 100000              a node in a simulated world
    python -m tests.quality.frames --world real    a process under TLS

Start reading at `attack`. `corpus` makes requests of every kind about things that exist, or that
somebody else owns; `mutations` makes them wrong; `stage` has the cluster, with planted secrets;
`judge` looks at every answer; `simulated` and `real` are the two worlds.

An attack is made in one of three states: as a stranger without a login, as a user with few rights,
and as an administrator. It is drawn from a seed, and in the simulated world the same seed gives the
same run.

| judged | by |
|---|---|
| the node lives | it runs after each burst, and serves a bystander at the end |
| each answer has its type | `judge` |
| nothing of others is told | planted texts in all answers, but names that the request named |
| the loop is free | processor time of each frame, and of each step of a task (simulated world) |
| others are served meanwhile | the longest wait of a bystander, which is shown (process) |
| memory is bounded | the process's resident size |
| nothing stays behind | connections and bytes after the last connection was closed |

Left out: frames between nodes after a node's certificate, which `raftmq.chaos` bends on their way.
"""
