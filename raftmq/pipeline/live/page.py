"""The page's data: the last windows of a board as JSON, made again after each batch.

    {"windows": [{"start": 1764000000000, "open": true, "values": [812], "rows": [...]}], ...}

The last windows are those with messages, open or closed; the rows of `ROWS_WINDOWS` of them go
along, `ROWS_MAX` each. So the size of a picture is bounded.
"""

import json
import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from .board import Board
from .store import Final
from .windows import BEGINNING, Group, Number, Window, Windows, ranked

WINDOWS_SHOWN = 60
ROWS_WINDOWS = 30
"""Latest windows that are shown with their groups."""
ROWS_MAX = 20
RATE_SECONDS = 10.0
"""Seconds that the shown rate is a mean of."""

_Rows = list[tuple[Group, tuple[Number, ...]]]


class Picture:
    """The page's data of a board, kept in memory."""

    def __init__(self, board: Board, closed: Iterable[Final] = ()) -> None:
        self._board = board
        self._totals: dict[int, tuple[Number, ...]] = {}
        self._rows: dict[int, _Rows] = {}
        self._counts: deque[tuple[float, int]] = deque()
        for final in closed:
            if final.group is None:
                self._totals[final.start] = final.values
                self._rows[final.start] = []
            else:
                self._rows[final.start].append((final.group, final.values))
        self._forget()

    def close(self, windows: Iterable[Window]) -> None:
        """Keep these closed windows, until later ones push them off the page."""
        for window in windows:
            self._totals[window.start] = window.total.values()
            self._rows[window.start] = ranked(window, self._board)[:ROWS_MAX]
        self._forget()

    def count(self, messages: int) -> None:
        """Count the messages of one batch."""
        now = time.monotonic()
        self._counts.append((now, messages))
        while self._counts and self._counts[0][0] < now - RATE_SECONDS:
            self._counts.popleft()

    def draw(self, windows: Windows, facts: dict[str, int], *, created: int, stored: int) -> bytes:
        """The page's data as JSON.

        Args:
            windows: the open ones.
            facts: those of the store.
            created: when the oldest message of the last batch was made, µs since 1970; 0: none.
            stored: when it was stored.
        """
        board = self._board
        starts = sorted({*self._totals, *windows.open})[-WINDOWS_SHOWN:]
        drawn = [self._window(start, windows) for start in starts]
        for window in drawn[-ROWS_WINDOWS:]:
            window["rows"] = self._window_rows(window["start"] * 1000, windows)
        shown = {
            "topics": board.topics,
            "groups": board.groups,
            "measures": board.measures,
            "order": board.order,
            "window_ms": board.window_ms,
            "lateness_ms": board.lateness_ms,
            "watermark": None if windows.watermark == BEGINNING else windows.watermark // 1000,
            "counted": facts["counted"],
            "late": facts["late"],
            "unusable": facts["unusable"],
            "rate": self._rate(),
            "created": created / 1000,
            "stored": stored / 1000,
            "drawn": time.time() * 1000,
            "windows": drawn,
        }
        return json.dumps(shown, allow_nan=False, separators=(",", ":")).encode()

    def _window(self, start: int, windows: Windows) -> dict[str, Any]:
        is_open = start in windows.open
        values = windows.open[start].total.values() if is_open else self._totals[start]
        return {"start": start // 1000, "open": is_open, "values": _finite(values)}

    def _window_rows(self, start: int, windows: Windows) -> list[Any]:
        found = windows.open.get(start)
        rows = self._rows[start] if found is None else ranked(found, self._board)
        return [[group, _finite(values)] for group, values in rows[:ROWS_MAX]]

    def _rate(self) -> float:
        if len(self._counts) < 2:
            return 0.0
        # The messages of the first batch came before the time that the rate is measured from.
        seconds = time.monotonic() - self._counts[0][0]
        return sum(count for _, count in list(self._counts)[1:]) / max(seconds, 0.1)

    def _forget(self) -> None:
        for start in sorted(self._totals)[:-WINDOWS_SHOWN]:
            del self._totals[start], self._rows[start]


def _finite(values: tuple[Number, ...]) -> list[Number | None]:
    # JSON has no infinity and no NaN.
    return [value if math.isfinite(value) else None for value in values]
