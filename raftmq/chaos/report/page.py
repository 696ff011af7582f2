"""A case as one HTML file: the words, the tables, and the data that its script draws.

The page answers a reader's questions in order: did the promises hold, which one broke, what
happened then, how to repeat the run. All words are in the HTML itself, so that the page can be read
without its script; only the figures need the script. The page fetches nothing, and a policy in the
page forbids fetching.

Invariants:
- Every text that comes from a history or a world is escaped.
- The same case gives the same bytes.
"""

from html import escape

from raftmq import pages
from raftmq.chaos.report.case import Case, Finding
from raftmq.chaos.report.drawing import Drawing, of_case
from raftmq.checkers import INVARIANTS, Verdict
from raftmq.checkers.history import NONE, History, Integers, RowType
from raftmq.checkers.verdict import ROWS_SHOWN_MAX, minimal_rows, rows_around
from raftmq.words import counted

FINDINGS_MAX = 24
"""Findings that one page shows; the page gives the number of all findings."""

OPEN_MAX = 2
"""Findings that are unfolded: the first ones, of different names."""

WORDS = {
    Verdict.VALID: "All promises held.",
    Verdict.INVALID: "A promise was broken.",
    Verdict.UNKNOWN: "It cannot be said whether the promises held.",
}

GUIDE = """
<p>An <b>operation</b> is one call of a client. It ends <b>ok</b> (it happened), <b>fail</b> (it
did not and never will) or <b>unknown</b> (a timeout, a lost connection: it may have happened, or
may still). A bar goes from the call to the answer; <b>unanswered</b> ones go on to the end.</p>
<p>A <b>minimal sub-history</b> is a small set of operations that shows by itself that a promise
was broken: a reader who doubts the verdict has to explain only those operations.</p>
<p>A <b>fault</b> is something the harness did to a node, a disk, a clock or the network. From the
green dashed line on everything was healed, and each promise had to come true.</p>
<p>A <b>role</b> is what a node was in a group of replicas: the leader of a term takes the writes,
the others follow. Terms only rise; two leaders of one term would be a bug by themselves.</p>
"""


def page(case: Case) -> str:
    """The whole file."""
    drawing = of_case(case)
    body = [
        _verdict(case),
        _replay(case),
        _links(case),
        _findings(case, drawing),
        _figures(case, drawing),
        _checkers(case),
        _run(case),
        f'<h2 id="guide">How to read this page</h2>{GUIDE}',
    ]
    return pages.page(
        f"{case.verdict.value}: {case.title}",
        [
            *body,
            '<div id="tip"></div>',
            f'<script type="application/json" id="data">{drawing.json()}</script>',
        ],
        style=pages.asset("raftmq.chaos.report", "page.css"),
        script=pages.asset("raftmq.chaos.report", "drawing.js"),
    )


def _verdict(case: Case) -> str:
    sentence = WORDS[case.verdict]
    if case.findings:
        names: dict[str, int] = {}
        for finding in case.findings:
            names[finding.name] = names.get(finding.name, 0) + 1
        found = ", ".join(
            f"{_total(case, name, count):,} {_full(name)}" for name, count in names.items()
        )
        sentence = f"Broken: {found}."
    elif case.reason:
        sentence += f" {case.reason[:1].upper()}{case.reason[1:]}."
    return (
        f'<div class="verdict {case.verdict.value}"><h1>raftmq chaos · {escape(case.title)}</h1>'
        f'<div class="word">{case.verdict.value.upper()}</div>'
        f"<p>{escape(sentence)}</p><p class='faint'>{escape(_extent(case))}</p></div>"
    )


def _full(name: str) -> str:
    """An invariant's number with its name; an anomaly's name alone."""
    return f"{name} ({INVARIANTS[name].name})" if name in INVARIANTS else name


def _total(case: Case, name: str, count: int) -> int:
    """Number of occurrences of an anomaly: a report explains only the first ones."""
    return max([count, *(report.counts.get(name, 0) for report in case.reports)])


def _extent(case: Case) -> str:
    """Length, faults and operations of the run or history, in one line."""
    parts = []
    if case.outcome is not None:
        events = case.outcome.schedule.events
        kinds = len({event.fault for event in events})
        parts += [
            f"{case.outcome.simulated_seconds:,.0f} s in the {case.outcome.world.value} world"
        ]
        faults = f"{counted(len(events), 'fault')} of {counted(kinds, 'kind')}"
        # A run kept by an older version does not say which kinds had an effect.
        if case.outcome.compared:
            faults += f", {counted(len(case.outcome.struck), 'kind')} with an effect"
        parts += [faults if events else "no faults"]
    if case.history is not None:
        outcomes = case.history.outcomes()
        parts.append(f"{counted(len(outcomes), 'operation')}")
        parts += [
            f"{int((outcomes == kind).sum()):,} {kind.name.lower()}"
            for kind in (RowType.OK, RowType.FAIL, RowType.UNKNOWN)
        ]
    return ", ".join(parts)


def _replay(case: Case) -> str:
    line = case.replay or (case.outcome.replay_line() if case.outcome is not None else "")
    if not line:
        return ""
    return (
        '<p class="faint">This line plays it again:</p>'
        f'<div class="replay"><pre id="replay">{escape(line)}</pre>'
        '<button data-copy="replay">copy</button></div>'
    )


def _links(case: Case) -> str:
    links = [("broken", "What was broken")] if case.findings else []
    links += [("timeline", "Timeline")]
    links += [("checkers", "Checkers")] if case.reports else []
    links += [("run", "The run")] if case.outcome is not None else []
    links += [("guide", "How to read this page")]
    return "<p>" + " · ".join(f'<a href="#{name}">{text}</a>' for name, text in links) + "</p>"


# -- what was broken -----------------------------------------------------------------------------


def _findings(case: Case, drawing: Drawing) -> str:
    if not case.findings:
        return ""
    parts = ['<h2 id="broken">What was broken</h2>']
    shown: set[str] = set()
    for place, finding in enumerate(case.findings[:FINDINGS_MAX]):
        is_open = finding.name not in shown and len(shown) < OPEN_MAX
        shown.add(finding.name)
        inner = _finding(case, drawing, place, finding)
        seconds = f"at {finding.at_ms / 1000:.3f} s" if finding.at_ms >= 0 else ""
        parts.append(
            f'<details class="finding"{" open" if is_open else ""}><summary>'
            f'<b class="name">{escape(finding.name)}</b> <span class="faint">{seconds}</span> '
            f"{escape(finding.fact)}</summary>{inner}</details>"
        )
    more = len(case.findings) - FINDINGS_MAX
    if more > 0:
        parts.append(f"<p class='faint'>{counted(more, 'more finding')} not shown.</p>")
    return "\n".join(parts)


def _finding(case: Case, drawing: Drawing, place: int, finding: Finding) -> str:
    parts = []
    parts += [f"<p>{escape(finding.meaning)}</p>"] if finding.meaning else []
    close_up = drawing.close_ups[place]
    if close_up.steps:
        core = sum(step.is_core for step in close_up.steps)
        text = f"The {counted(core, 'operation')} that show it (outlined)"
        text += ", and what was around them (pale)" if core < len(close_up.steps) else ""
        left_out = f"; {close_up.left_out:,} more are in the table" if close_up.left_out else ""
        parts.append(f"<p class='faint'>{text}{left_out}:</p>")
        parts.append(f'<svg id="close-{place}"></svg>')
    if close_up.steps or finding.at_ms >= 0:
        parts.append(f'<p><button data-finding="{place}">show this in the timeline</button></p>')
    parts.append(_rows_of(case, finding))
    return "\n".join(part for part in parts if part)


def _rows_of(case: Case, finding: Finding) -> str:
    """The rows of a finding as tables, folded, and the log entries that held its values."""
    anomaly, history = finding.anomaly, case.history
    if anomaly is None or history is None:
        return _before(case, finding)
    rows = minimal_rows(history, anomaly)
    parts = []
    if len(rows):
        parts.append(pages.fold("Its rows in the history", _rows(case, history, rows)))
    around = rows_around(history, rows)
    if len(around):
        parts.append(pages.fold("Rows around them", _rows(case, history, around)))
    if anomaly.entries:
        entries = "".join(f"<li class='mono'>{escape(str(one))}</li>" for one in anomaly.entries)
        parts.append(pages.fold("Log entries that held its values", f"<ul>{entries}</ul>"))
    return "\n".join(parts)


def _before(case: Case, finding: Finding) -> str:
    """The last things that happened before a violation that no history shows."""
    if case.outcome is None or finding.at_ms < 0:
        return ""
    earlier = [one for one in case.outcome.timeline if one.at_ms <= finding.at_ms][-12:]
    if not earlier:
        return ""
    rows = [(f"{at / 1000:.3f}", node or "", what) for at, node, what in earlier]
    return pages.fold("What happened just before", pages.table(["#s", "#node", "what"], rows))


def _rows(case: Case, history: History, rows: Integers) -> str:
    cells = []
    for row in rows[:ROWS_SHOWN_MAX]:
        key, value, offset = (
            int(column[row]) for column in (history.key, history.value, history.offset)
        )
        cells.append(
            (
                int(row),
                f"{(int(history.time[row]) - case.origin_ns) / 1e9:.6f}",
                int(history.operation[row]),
                int(history.process[row]),
                RowType(history.type[row]).name.lower(),
                history.functions[int(history.function[row])],
                "" if key == NONE else history.keys[key],
                "" if value == NONE else repr(history.values[value]),
                "" if offset == NONE else offset,
            )
        )
    more = len(rows) - ROWS_SHOWN_MAX
    note = f"<p class='faint'>{counted(more, 'more row')} not shown.</p>" if more > 0 else ""
    names = ["#row", "#s", "#operation", "#process", "type", "function", "key", "value", "#offset"]
    return pages.table(names, cells) + note


# -- figures -------------------------------------------------------------------------------------


def _figures(case: Case, drawing: Drawing) -> str:
    if not (drawing.spans or drawing.bands or drawing.sample):
        return ""
    parts = ['<h2 id="timeline">Timeline</h2>', _tools(drawing), '<div id="figures">']
    if case.outcome is not None:
        parts.append('<svg id="faults"></svg>')
    if drawing.spans:
        parts.append('<svg id="nodes"></svg>')
    if drawing.sample is not None:
        parts.append("<h3>Operations of clients</h3>")
        parts.append(f"<p class='faint'>{escape(drawing.sample.sentence())}</p>")
        parts.append('<svg id="operations"></svg>')
    if drawing.curves:
        parts.append("<h3>Latency and rates</h3>")
        parts.append(
            "<p class='faint'>Latency of operations that ended ok, on a logarithmic scale: "
            "<span style='color:var(--leader)'>median</span>, "
            "<span style='color:var(--candidate)'>99th percentile</span>, dots are the longest. "
            "A poll's latency has its waiting in it.</p>"
        )
    parts += [
        f'<svg id="latency-{place}"></svg><svg id="rate-{place}"></svg>'
        for place in range(len(drawing.curves))
    ]
    parts.append('<div id="cursor"><span></span></div></div>')
    parts.append("<noscript><p>The figures need the page's script.</p></noscript>")
    return "\n".join(parts)


def _tools(drawing: Drawing) -> str:
    entries = []
    if drawing.spans:
        roles = dict.fromkeys(span.role for span in drawing.spans)
        entries += [(f"var(--{role.removeprefix('pre-')})", role) for role in roles]
    if drawing.sample is not None:
        entries += [("var(--ok)", "ok"), ("var(--fail)", "fail")]
        entries += [("var(--unknown)", "unknown or unanswered")]
    entries += [("var(--fault)", "fault")] if drawing.bands else []
    legend = "".join(
        f"<span><i class='swatch' style='background:{color}'></i>{text}</span>"
        for color, text in entries
    )
    if drawing.heal_ms >= 0:
        legend += "<span style='color:var(--calm)'>┆ all healed</span>"
    if any(one.at_ms >= 0 for one in drawing.close_ups):
        legend += "<span style='color:var(--bad)'>┆ a broken promise shows</span>"
    return (
        '<div class="tools"><button data-all>whole run</button><span id="shown"></span>'
        '<span class="faint">drag across a figure to look closer, double click to go back</span>'
        f'</div><div class="tools legend"><div>{legend}</div></div>'
    )


# -- what the verdict rests on -------------------------------------------------------------------


def _checkers(case: Case) -> str:
    if not case.reports:
        return ""
    rows = [
        (
            report.checker,
            report.verdict.value,
            ", ".join(f"{name} {count:,}" for name, count in report.counts.items() if count)
            or report.reason,
        )
        for report in case.reports
    ]
    table = pages.table(["checker", "verdict", "counted"], rows)
    return f'<h2 id="checkers">Checkers of the history</h2>{table}'


def _run(case: Case) -> str:
    outcome = case.outcome
    if outcome is None:
        return ""
    parts = ['<h2 id="run">The run</h2>']
    events = [
        (
            f"{event.at_ms / 1000:.3f}", event.fault, ", ".join(map(str, event.nodes)),
            f"{event.lasts_ms / 1000:.3f}" if event.lasts_ms else "",
            f"{event.level:g}" if event.level else "",
        )
        for event in outcome.schedule.events
    ]  # fmt: skip
    table = pages.table(["#at s", "fault", "nodes", "#for s", "#level"], events)
    parts.append(pages.fold(f"Schedule: {counted(len(events), 'fault')}", table))
    counts = pages.table(["what", "#how often"], sorted(outcome.counts.items()))
    parts.append(pages.fold("Counts", counts))
    if outcome.compared:
        made = counted(sum(outcome.compared.values()), "comparison")
        table = pages.table(["check", "#comparisons"], sorted(outcome.compared.items()))
        parts.append(pages.fold(f"{made} by {counted(len(outcome.compared), 'check')}", table))
    if outcome.coverage:
        cells = [(*situation, count) for situation, count in sorted(outcome.coverage.items())]
        table = pages.table(["role", "term", "progress", "fault", "#times"], cells)
        parts.append(pages.fold(f"Situations that faults struck in: {len(cells):,}", table))
    if outcome.trace_hash:
        parts.append(f"<p class='faint'>Trace <code>{escape(outcome.trace_hash)}</code></p>")
    return "\n".join(parts)
