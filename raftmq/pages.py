"""Parts of pages for people: one HTML file that fetches nothing, light or dark as the reader is.

    pages.page("report", [pages.fold("Counts", pages.table(["what", "#times"], rows))])

`pages.css` has the colours and the look of text, tables and figures; a page adds its own style and,
if there is one, its script. The reports of runs (`raftmq.chaos.report`), the pipeline's report and
its live page are made with it.

Invariants:
- A cell, a title and a summary are text, and are escaped; only `Html` is put in as it is.
- A policy in the page forbids fetching, but for what the page asks for (`allowed`).

Left out: a template engine and a library of charts. The pages are lists of parts, not texts with
holes, and most figures are bars in time, with faults as bands, which such libraries do not draw.
"""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


def page(
    title: str,
    body: Iterable[str],
    *,
    style: str = "",
    script: str = "",
    head: str = "",
    allowed: str = "",
) -> str:
    """The whole file.

    Args:
        title: text.
        body: parts that are HTML; empty ones are left out.
        style: CSS of this page alone.
        script: runs after the body is there.
        head: HTML for the head.
        allowed: more of the policy, such as `connect-src 'self'`.
    """
    policy = ["default-src 'none'", "style-src 'unsafe-inline'"]
    policy += ["script-src 'unsafe-inline'"] if script else []
    policy += [allowed] if allowed else []
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        head,
        f"<style>{asset('raftmq', 'pages.css')}{style}</style></head><body>",
        *body,
        f"<script>{script}</script>" if script else "",
        "</body></html>",
    ]
    return "\n".join([*filter(None, lines), ""])


def asset(package: str, name: str) -> str:
    """A text that lies beside the modules of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def fold(title: str, inner: str, *, is_open: bool = False) -> str:
    """Something under a line that unfolds it."""
    mark = " open" if is_open else ""
    return f"<details{mark}><summary>{_text(title)}</summary>{inner}</details>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; a column whose heading starts with # holds numbers.

    >>> table(["what", "#times"], [("<b>", 2)]).partition("<tbody>")[2]
    '<tr><td>&lt;b&gt;</td><td class="number">2</td></tr></tbody></table></div>'
    """
    marks = [' class="number"' if column.startswith("#") else "" for column in columns]

    def line(tag: str, cells: Iterable[object]) -> str:
        parts = zip(marks, cells, strict=True)
        return f"<tr>{''.join(f'<{tag}{mark}>{_text(cell)}</{tag}>' for mark, cell in parts)}</tr>"

    head = line("th", (column.lstrip("#") for column in columns))
    body = "".join(line("td", row) for row in rows)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _text(cell: object) -> str:
    return cell if isinstance(cell, Html) else escape(str(cell))
