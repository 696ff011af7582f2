"""The page shows what was counted, in a bounded picture, and reads no message as HTML."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raftmq.chaos.report.browser import installed
from raftmq.pipeline.live import Feed, PageServer
from raftmq.pipeline.live.page import ROWS_MAX, ROWS_WINDOWS, WINDOWS_SHOWN, Picture
from raftmq.pipeline.live.windows import Partial, Windows
from tests.pipeline.live.messages import BOARD, LENGTH, Message, partials

BROWSER_SECONDS = 120.0
FACTS = {"counted": 7, "late": 2, "unusable": 1}


def draw(picture: Picture, windows: Windows) -> dict[str, Any]:
    drawn = picture.draw(windows, FACTS, created=1_500, stored=2_500)
    found: dict[str, Any] = json.loads(drawn)
    return found


def test_picture_has_open_and_closed_windows_with_their_groups() -> None:
    windows, picture = Windows(BOARD), Picture(BOARD)
    rows = [Message(0, n, n * LENGTH, "ab"[n % 2], 10, n + 1) for n in range(6)]
    added = windows.add(partials(rows))
    picture.close(added.closed)
    found = draw(picture, windows)
    assert [window["start"] for window in found["windows"]] == [0, 100, 200, 300, 400, 500]
    assert [window["open"] for window in found["windows"]] == [False] * 3 + [True] * 3
    assert found["windows"][1] == {
        "start": 100, "open": False, "values": [1, 10, 1], "rows": [[["b"], [1, 10, 1]]]
    }  # fmt: skip
    assert found["watermark"] == 300
    assert (found["counted"], found["late"], found["unusable"]) == (7, 2, 1)
    assert (found["created"], found["stored"]) == (1.5, 2.5)


def test_picture_is_bounded_however_much_is_counted() -> None:
    board = replace(BOARD, lateness_ms=30_000)
    windows, picture = Windows(board), Picture(board)
    rows = [
        Message(0, n, n // 40 * LENGTH, str(n % 40), 1, 1) for n in range(40 * 2 * WINDOWS_SHOWN)
    ]
    picture.close(windows.add(partials(rows)).closed)
    found = draw(picture, windows)
    assert len(found["windows"]) == WINDOWS_SHOWN
    assert sum("rows" in window for window in found["windows"]) == ROWS_WINDOWS
    assert all(len(window.get("rows", [])) <= ROWS_MAX for window in found["windows"])


def test_value_that_json_has_no_word_for_is_null() -> None:
    windows, picture = Windows(BOARD), Picture(BOARD)
    codes = (np.array([65], np.int32),)
    windows.add([Partial(("t", 0), 0, ("a",), 1, (float("inf"),), codes, 0, 0, 1)])
    assert draw(picture, windows)["windows"][0]["values"][1] is None


def dump(url: str, profile: Path) -> str:
    """The page's DOM in a browser as soon as it is loaded, with or without a first event."""
    program = installed()
    assert program is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--no-first-run", f"--user-data-dir={profile}", "--timeout=10000"]
    done = subprocess.run(
        [program, *options, "--dump-dom", url], capture_output=True, text=True, check=True
    )
    return done.stdout


def shown_in(profile: Path, show: Callable[[Feed], None], wanted: str) -> str:
    """The page in a browser, which is asked again until it shows what is wanted, or two minutes are
    over; each time `show` gives it a picture."""
    until = time.monotonic() + BROWSER_SECONDS
    while True:
        feed = Feed()
        show(feed)
        with PageServer(feed) as page:
            text = dump(page.url, profile)
        if wanted in text or time.monotonic() > until:
            return text


@pytest.mark.skipif(installed() is None, reason="no browser is here: apt-get install chromium")
def test_browser_shows_groups_as_text_and_figures_of_the_last_full_window(tmp_path: Path) -> None:
    windows, picture = Windows(BOARD), Picture(BOARD)
    hostile = "<img src=x onerror=document.title='taken'>"
    rows = [Message(0, n, n * LENGTH, hostile, 12_345, n + 1) for n in range(3)]
    picture.close(windows.add(partials(rows)).closed)
    drawn = picture.draw(windows, FACTS, created=0, stored=0)
    shown = shown_in(tmp_path, lambda feed: feed.show(drawn), "<title>t · live</title>")
    assert "<title>t · live</title>" in shown
    assert "&lt;img src=x onerror" in shown
    assert "<img" not in shown
    assert '<td class="number">12,345</td>' in shown
    assert '<main id="main">' in shown


@pytest.mark.skipif(installed() is None, reason="no browser is here: apt-get install chromium")
@pytest.mark.parametrize(("idle_ms", "rate"), [(0, "75"), (70_000, "0")])
def test_browser_shows_no_rate_after_silence(tmp_path: Path, idle_ms: int, rate: str) -> None:
    windows, picture = Windows(BOARD), Picture(BOARD)
    windows.add(partials([Message(0, 1, 1, "a", 1, 1)]))
    found = draw(picture, windows) | {"rate": 75.0}

    def show(feed: Feed) -> None:
        feed.show(json.dumps(found | {"drawn": time.time() * 1000 - idle_ms}).encode())

    wanted = f'messages a second</div><div class="value">{rate}</div>'
    shown = shown_in(tmp_path, show, wanted)
    assert wanted in shown
    assert ("no news for 7" in shown) == bool(idle_ms)
