"""The page's server: one HTML file, and its data pushed as server-sent events.

| path | answer |
|---|---|
| `/` | the page |
| `/events` | `text/event-stream`: the data now, and again whenever it changes |
| `/data.json` | the data now |

Each browser has a thread that waits until there is something new and then writes the newest data.
A slow browser misses pictures in between, and does not delay other browsers.

Invariants:
- Showing never waits for a browser.
- There are at most `BROWSERS_MAX` browsers, and one picture in memory.
- The server listens on this machine alone, and refuses requests for any host name but this
  machine's: a page from elsewhere cannot reach the data by a name that resolves to this machine.
"""

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from raftmq import pages
from raftmq.pipeline.errors import PipelineError

BROWSERS_MAX = 32
QUIET_SECONDS = 5.0
"""Time without news after which a comment is sent, which notices a browser that left."""
WRITE_SECONDS = 30.0
"""Time after which a browser that takes no data is given up."""
HOST = "127.0.0.1"
_NAMES = (HOST, "localhost", "[::1]")


class Feed:
    """The newest data; threads can wait for newer data."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._data = b"null"
        self._number = 0
        self._is_over = False

    def show(self, data: bytes) -> None:
        """Replace the newest data: JSON, one line."""
        with self._changed:
            self._data = data
            self._number += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Note that no data follows, and wake all that wait."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_newer(self, number: int, timeout: float) -> tuple[int, bytes] | None:
        """Number and data of the newest data, once its number is not this one; None: none follows.

        After `timeout` seconds the number may be this one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._number != number, timeout)
            if self._is_over and self._number == number:
                return None
            return self._number, self._data


class PageServer:
    """The server; use it as a context. At the end no thread of it is left running.

    Raises:
        PipelineError: on entering: the port is taken.
    """

    def __init__(self, feed: Feed, port: int = 0) -> None:
        self._feed = feed
        self._port = port
        self._server: _Server

    def __enter__(self) -> Self:
        try:
            self._server = _Server((HOST, self._port), self._feed)
        except OSError as error:
            raise PipelineError(f"cannot serve the page on port {self._port}: {error.strerror}",
                                "take another with --page, or 0 for any") from error  # fmt: skip
        # The server looks every 0.05 s whether it is to end.
        serving = threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True)
        serving.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.end()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The page's URL."""
        return f"http://{HOST}:{self._server.server_address[1]}/"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A browser that takes no data must not delay the end.
    block_on_close = False

    def __init__(self, address: tuple[str, int], feed: Feed) -> None:
        self.feed = feed
        self.seats = threading.BoundedSemaphore(BROWSERS_MAX)
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a browser may close its connection at any time."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = WRITE_SECONDS

    def do_GET(self) -> None:
        """Answer one request."""
        if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in _NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, "this page is for this machine")
            return
        match self.path:
            case "/":
                self._answer("text/html; charset=utf-8", _page().encode())
            case "/data.json":
                found = self.server.feed.wait_newer(-1, 0)
                self._answer("application/json", found[1] if found else b"null")
            case "/events":
                self._events()
            case _:
                self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, *_: Any) -> None:
        """Log no requests."""

    def _answer(self, kind: str, content: bytes) -> None:
        self._head(kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _head(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")

    def _events(self) -> None:
        if not self.server.seats.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many browsers look at this page")
            return
        try:
            self._head("text/event-stream")
            self.end_headers()
            number = 0
            while (found := self.server.feed.wait_newer(number, QUIET_SECONDS)) is not None:
                is_new, (number, data) = found[0] != number, found
                self.wfile.write(b"data: " + data + b"\n\n" if is_new else b": quiet\n\n")
            self.wfile.write(b"event: over\ndata: null\n\n")
        finally:
            self.server.seats.release()


def _page() -> str:
    body, style, script = (pages.asset(__package__, f"page.{end}") for end in ("html", "css", "js"))
    # The icon keeps browsers from asking for one.
    icon, allowed = '<link rel="icon" href="data:,">', "connect-src 'self'; img-src data:"
    return pages.page("live", [body], style=style, script=script, head=icon, allowed=allowed)
