"""A page as a picture: a browser prints the page, so that picture and page cannot differ.

The browser is an installed one; it gets a temporary profile, which is removed.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge")
"""Programs that can print a page without a window; the first one found is used."""

WIDTH = 1280
SECONDS_MAX = 60


class NoBrowser(Exception):
    """No browser is installed, or the browser did not print the page; the message says which."""


def installed() -> str | None:
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def picture(page: Path, to: Path, *, height: int = 1600, is_dark: bool = False) -> None:
    """Store the page as a PNG file.

    Args:
        page: an HTML file.
        to: the path of the picture.
        height: height of the window in pixels; the picture ends there.
        is_dark: show the page as on a system with a dark color scheme.

    Raises:
        NoBrowser: no browser is installed, or the browser failed.
    """
    program = installed()
    if program is None:
        raise NoBrowser(f"no browser is installed here: one of {', '.join(BROWSERS)} is needed")
    with tempfile.TemporaryDirectory(prefix="raftmq-picture-") as profile:
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}",
            f"--window-size={WIDTH},{height}", "--virtual-time-budget=3000",
            f"--screenshot={to.resolve()}",
            *(["--blink-settings=preferredColorScheme=0"] if is_dark else []),
            page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            raise NoBrowser(f"{program} did not print the page within {SECONDS_MAX} s") from None
    if done.returncode or not to.exists():
        words = " ".join(done.stderr.split()[-30:])
        raise NoBrowser(f"{program} ended with {done.returncode}: {words}")
