"""The nodes of a cluster on one machine: the settings of each, and the process that runs it.

`raftmq up`, `raftmq.testing`, `raftmq.inprocess` and the benchmarks make their clusters with these
functions. The module imports nothing of raftmq, so that `raftmq up` starts quickly.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

Address = tuple[str, int]
"""Host and port."""

SERVE = (sys.executable, "-m", "raftmq", "serve")
"""The command of a node's process; the settings file follows as `-c FILE`."""


def node_settings(
    node: int,
    address: Address,
    *,
    cluster: str,
    data: Path,
    founders: int,
    others: Mapping[int, Address],
    key: str = "peers",
) -> dict[str, Any]:
    """The table `node` of the settings: a data group for each founder, three copies of each.

    `others` are the founders, the node itself among them. With the key `join` they are members of
    the cluster that the node joins.
    """
    own = {"id": node, "cluster": cluster, "data": str(data), "host": address[0]}
    rows = [{"id": each, "host": host, "port": port} for each, (host, port) in others.items()]
    counts = {"port": address[1], "groups": founders, "replicas": min(founders, 3)}
    return {**own, **counts, key: rows}


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of settings as TOML; a list holds texts, or tables, one a line."""
    lines: list[str] = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        for name, value in values.items():
            if isinstance(value, list):
                lines += [f"{name} = [", *(f"    {toml_value(each)}," for each in value), "]"]
            else:
                lines.append(f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A value as TOML, on one line.

    >>> print(toml_value([{"id": 1, "host": "::1"}, "text"]))
    [{ id = 1, host = "::1" }, "text"]
    """
    match value:
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case dict():
            pairs = (f"{name} = {toml_value(each)}" for name, each in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _:
            # A JSON string, number or truth value is valid TOML, too, but for JSON's escapes of
            # characters outside of the basic plane.
            return json.dumps(value, ensure_ascii=False)


def start_node(
    config: Path,
    log: Path | None,
    *,
    command: Sequence[str] = SERVE,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a node's process; it ends with this process, and with the thread that started it.

    The node's output is added to `log`; None: it goes where that of this process goes. Without
    `environment` the node has that of this process.
    """
    with nullcontext() if log is None else log.open("ab") as out:
        return subprocess.Popen(
            [*command, "-c", str(config), "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            # Ctrl-C on the terminal must reach only this process, which then stops the nodes.
            process_group=0,
        )
