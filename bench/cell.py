"""One cell of the result table: one system in one scenario, in a process of its own.

    python -m bench.cell floor single-200B --seconds 3

It prints JSON lines: `{"phase": "starting"}`, `{"phase": "running"}`, and for each row of the
scenario the row, as soon as it is measured, or `{"scenario": name, "unsupported": reason}`. A cell
of consume has two rows: the produce that fills the log, and the consume.

A process of its own, so that the runner's progress bar does not steal the load's processor, one
peer's crash costs one cell, and no client inherits another's event loop.

SIGTERM and Ctrl-C stop the servers and remove their folder before it ends.
"""

import argparse
import json
import signal
import sys
from types import FrameType

from bench.counting.usage import Usage, memory
from bench.scenarios import SCENARIOS, SYSTEMS
from bench.system import Sample, System, Unsupported

SHARE_MIN = 0.01
"""A read that takes a smaller part of its time is no measurement: the client had most messages when
it counted the first one."""


def main(arguments: list[str]) -> None:
    """Run the cell that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m bench.cell", description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the amount, where it grows")
    chosen = parser.parse_args(arguments)
    # A shell starts a background job with SIGINT ignored, and Python does not change that.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    run(chosen.system, chosen.scenario, chosen.seconds, chosen.scale)


def run(system_name: str, scenario_name: str, seconds: float, scale: float = 1.0) -> None:
    """Start the system, measure, and stop it; print each phase and each row."""
    system = SYSTEMS[system_name].make()
    scenario = SCENARIOS[scenario_name]
    left = list(scenario.rows)
    _say({"phase": "starting"})
    try:
        with system, Usage(system.server_pids) as usage:
            _say({"phase": "running"})
            for sample in scenario.run(system, seconds, scale):
                name = left.pop(0)
                if sample.seconds < SHARE_MIN * seconds:
                    _say({"scenario": name, "unsupported": _too_short(sample)})
                else:
                    _say({"scenario": name, **_measured(system, sample, usage)})
            _say({"phase": "stopping"})
    except Unsupported as reason:
        for name in left:
            _say({"scenario": name, "unsupported": str(reason)})


def _too_short(sample: Sample) -> str:
    """The reason why a read that ended so soon has no row.

    >>> _too_short(Sample(4312, 10_000, 0.0095, None, None, 0.0))
    '4,312 messages came within 10 ms: too few were stored to measure this'
    """
    milliseconds = 1000 * sample.seconds
    return (
        f"{sample.messages:,} messages came within {milliseconds:.0f} ms: too few were stored to "
        "measure this"
    )


def _measured(system: System, sample: Sample, usage: Usage) -> dict[str, object]:
    """The fields of a row, right after its measurement: memory is that of this moment."""
    cpu_seconds = usage.seconds(sample.began, sample.began + sample.seconds)
    resident = max(memory(pid).resident for pid in system.server_pids)
    figures = dict(sample.figures)
    if sample.rest is not None:
        began, ended = sample.rest
        figures["CPU at rest %"] = round(100 * usage.seconds(began, ended) / (ended - began), 1)
    return {
        "system": system.name,
        "version": system.version,
        "settings": "; ".join(filter(None, (system.settings, sample.settings))),
        "messages": sample.messages,
        "seconds": round(sample.seconds, 3),
        "messages_per_s": round(sample.messages_per_s, 1),
        "mb_per_s": round(sample.mb_per_s, 3),
        "p50_ms": _rounded(sample.p50_ms),
        "p99_ms": _rounded(sample.p99_ms),
        "server_cpu_s_per_million": round(cpu_seconds / sample.messages * 1e6, 3),
        "server_mib": round(resident, 1),
        **({"figures": figures, "note": sample.note} if figures else {}),
    }


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def _stop(number: int, _: FrameType | None) -> None:
    # A second signal must not interrupt the clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main(sys.argv[1:])
