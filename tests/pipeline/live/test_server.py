"""The page is served to this machine, and its data is pushed at each browser's own pace."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.live import Feed, PageServer, server


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def page(feed: Feed) -> Iterator[PageServer]:
    with PageServer(feed) as page:
        yield page


def ask(page: PageServer, path: str, host: str = "") -> http.client.HTTPResponse:
    address = urlsplit(page.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
    connection.request("GET", path, headers={"Host": host or address.netloc})
    return connection.getresponse()


def next_event(events: http.client.HTTPResponse) -> bytes:
    """The next line of data, past comments and blank lines."""
    while True:
        line = events.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            return line[6:-1]


def test_page_needs_nothing_from_elsewhere(page: PageServer) -> None:
    with closing(ask(page, "/")) as answer:
        text = answer.read().decode()
    assert answer.status == 200
    assert "default-src 'none'" in text
    assert "EventSource" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_what_is_shown_reaches_each_browser(feed: Feed, page: PageServer) -> None:
    feed.show(b'{"n":1}')
    with closing(ask(page, "/events")) as one, closing(ask(page, "/events")) as other:
        assert one.getheader("Content-Type") == "text/event-stream"
        assert next_event(one) == next_event(other) == b'{"n":1}'
        feed.show(b'{"n":2}')
        assert next_event(one) == next_event(other) == b'{"n":2}'
    with closing(ask(page, "/data.json")) as answer:
        assert json.loads(answer.read()) == {"n": 2}


def test_browser_that_reads_nothing_holds_nobody_up_and_misses_pictures_in_between(
    feed: Feed, page: PageServer
) -> None:
    address = urlsplit(page.url)
    slow = socket.create_connection((address.hostname, address.port), timeout=10)
    slow.sendall(f"GET /events HTTP/1.0\r\nHost: {address.netloc}\r\n\r\n".encode())
    filling = b"x" * 200_000
    with slow, closing(ask(page, "/events")) as quick:
        for number in range(100):
            data = b"%d %b" % (number, filling)
            feed.show(data)
            assert next_event(quick) == data
        stream = slow.makefile("rb")
        seen: list[int] = []
        while not seen or seen[-1] != 99:
            line = stream.readline()
            if line.startswith(b"data: "):
                seen.append(int(line[6:].split()[0]))
    assert seen == sorted(set(seen))
    assert len(seen) < 100


def test_end_is_told_to_browsers(feed: Feed) -> None:
    feed.show(b"1")
    with PageServer(feed) as page:
        events = ask(page, "/events")
        assert next_event(events) == b"1"
    with closing(events):
        assert events.readline() == b"\n"
        assert events.readline() == b"event: over\n"


def test_there_is_a_bound_of_browsers(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BROWSERS_MAX", 2)
    monkeypatch.setattr(server, "QUIET_SECONDS", 0.05)
    feed.show(b"1")
    with PageServer(feed) as page:
        one, other = ask(page, "/events"), ask(page, "/events")
        assert next_event(one) == next_event(other) == b"1"
        with closing(ask(page, "/events")) as refused:
            assert refused.status == 503
        # A reader that left makes room, once a write to it fails.
        one.close()
        deadline = time.monotonic() + 10
        while (answer := ask(page, "/events")).status == 503:
            assert time.monotonic() < deadline
        assert answer.status == 200
        answer.close()
        other.close()


def test_name_of_a_stranger_is_refused(page: PageServer) -> None:
    with closing(ask(page, "/data.json", host="evil.example:80")) as answer:
        assert answer.status == 403
    with closing(ask(page, "/data.json", host="localhost:1")) as answer:
        assert answer.status == 200
    with closing(ask(page, "/nowhere")) as answer:
        assert answer.status == 404


def test_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PipelineError, match=f"port {port}"), PageServer(Feed(), port):
            pass
