"""The demo's output without a terminal."""

import io

from rich.console import Console

from demo.screen import PLAIN_STEPS, Screen


def test_progress_is_told_until_the_slowest_group_has_read() -> None:
    shown = io.StringIO()
    screen = Screen(Console(file=shown, force_terminal=False))
    with screen.progress(100, ["slow"]):
        for acked in range(0, 101, 2):
            screen.show(acked, {"slow": acked // 4})
        lines = shown.getvalue().count("acked")
        for read in range(26, 101):
            screen.show(100, {"slow": read})
    # All was said while messages were sent, and then nothing for minutes.
    assert lines < shown.getvalue().count("acked") <= PLAIN_STEPS + 1
    assert "acked 100 of 100, read by slow 100" in shown.getvalue()
