"""The page of a folder's results: its Markdown and its picture, from the JSON files there."""

import json
from pathlib import Path

from bench import picture, report, results

RESULT, GAPS = "benchmarks.json", "benchmarks-failover.json"
"""Names of the files with a `results.Result` and with `results.Gaps`; the second may be missing."""
PAGE = "benchmarks.md"
"""Name of the page."""


def write(folder: Path) -> None:
    """Write the page of the results in `folder`, and its picture."""
    result = results.Result(**json.loads((folder / RESULT).read_text()))
    gaps = folder / GAPS
    text = report.markdown(result, json.loads(gaps.read_text()) if gaps.exists() else None)
    (folder / PAGE).write_text(text)
    picture.draw(result.rows, folder / report.PICTURE)
