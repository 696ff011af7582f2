"""The page: verdict first, escaped, alone, and drawn by a browser without an error."""

import re
import struct
import subprocess
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from raftmq.chaos.report import (
    NoBrowser,
    NotAnOutcome,
    browser,
    of_history,
    of_outcome,
    page,
    picture,
    read_outcome,
    write_outcome,
)
from raftmq.chaos.report.browser import installed
from raftmq.checkers import ANOMALIES, Verdict
from raftmq.checkers.history import Recorder
from tests.chaos.report.made_up import history, outcome

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Tags(HTMLParser):
    """Holds that elements nest, and collects ids and attributes that could fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetches: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.fetches += [f"{tag} {name}" for name in ("src", "data", "action") if name in found]
        if tag == "link" or (found.get("href") or "#")[0] != "#":
            self.fetches.append(f"{tag} href")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} ends what it did not begin"


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


@pytest.fixture(scope="module")
def bad_page() -> str:
    return page(of_outcome(outcome()))


def test_verdict_comes_before_everything_else(bad_page: str) -> None:
    body = bad_page[bad_page.index("<body>") :]
    order = ["INVALID", "raftmq chaos replay", 'id="broken"', 'id="timeline"', 'id="checkers"']
    places = [body.index(text) for text in order]
    assert places == sorted(places)


def test_page_names_each_anomaly_with_its_meaning_and_the_replay_line(bad_page: str) -> None:
    assert "lost-middle" in bad_page
    assert ANOMALIES["lost-middle"] in bad_page
    assert "state machine safety: no two nodes apply different entries" in bad_page
    assert "raftmq chaos replay --world sim" in bad_page


def test_page_nests_has_no_id_twice_and_fetches_nothing(bad_page: str) -> None:
    tags = parsed(bad_page)
    assert len(set(tags.ids)) == len(tags.ids)
    assert tags.fetches == []
    assert "default-src 'none'" in bad_page
    # The name of SVG's namespace is no address that is fetched.
    assert set(re.findall(r"https?://[\w./]+", bad_page)) == {"http://www.w3.org/2000/svg"}


def test_same_run_gives_the_same_bytes(bad_page: str) -> None:
    assert page(of_outcome(outcome())) == bad_page


def test_texts_of_a_history_cannot_become_markup() -> None:
    recorder = Recorder()
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    recorder.ok(recorder.invoke(0, "send", key=evil, value=evil))
    recorder.ok(recorder.invoke(0, "send", key=evil, value="b"))
    recorder.ok_many(recorder.invoke(1, "poll", key=evil), [(evil, "<b>nobody's</b>", None)])
    text = page(of_history(recorder.history(), evil))
    tags = parsed(text)
    assert tags.fetches == []
    assert "alert(1)</script>" not in text
    assert text.count("<script") == 2


def test_page_of_a_good_run_says_valid_and_lists_no_finding() -> None:
    text = page(of_outcome(outcome(lost=0)))
    parsed(text)
    assert "VALID" in text
    assert 'id="broken"' not in text


def test_verdict_of_a_run_stays_whatever_the_checkers_say_of_its_history() -> None:
    run = outcome(lost=2)
    case = of_outcome(run)
    assert case.verdict is run.verdict is Verdict.INVALID
    assert {finding.name for finding in case.findings} == {one.name for one in run.violations}


def test_page_of_an_empty_history_says_unknown_and_why() -> None:
    text = page(of_history(Recorder().history(), "nothing"))
    parsed(text)
    assert "UNKNOWN" in text
    assert "the history is empty" in text


def test_folder_of_a_run_gives_back_the_same_run(tmp_path: Path) -> None:
    run = outcome()
    report = write_outcome(run, tmp_path / "seed-1234")
    assert report.read_text() == page(of_outcome(run))
    back = read_outcome(tmp_path / "seed-1234")
    assert page(of_outcome(back)) == report.read_text()
    for name in (
        *("world", "schedule", "verdict", "violations", "counts", "coverage", "timeline"),
        *("compared", "struck"),
    ):
        assert getattr(back, name) == getattr(run, name), name
    assert (tmp_path / "seed-1234/replay.txt").read_text() == run.replay_line() + "\n"


def test_page_says_how_many_kinds_of_faults_had_an_effect_and_what_was_compared() -> None:
    text = page(of_outcome(outcome()))
    assert ", 1 kind with an effect" in text
    assert "412 comparisons by 1 check" in text
    assert "with an effect" not in page(of_outcome(replace(outcome(), compared={})))


def test_folder_without_an_outcome_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(NotAnOutcome, match=str(tmp_path)):
        read_outcome(tmp_path)


def needs_browser() -> None:
    if installed() is None:
        pytest.skip("no browser is installed here: `apt install chromium` brings one")


def test_browser_draws_every_figure(tmp_path: Path, bad_page: str) -> None:
    needs_browser()
    # The script's own errors would leave its figures empty; they are kept in the title.
    told = bad_page.replace(
        "<head>", "<head><script>onerror = (text) => { document.title = 'ERROR ' + text; }</script>"
    )
    file = tmp_path / "page.html"
    file.write_text(told)
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                installed() or "", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                f"--user-data-dir={profile}", "--disable-dev-shm-usage", file.as_uri(),
            ],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    drawn = done.stdout
    assert "<title>invalid" in drawn, re.findall(r"<title>[^<]*", drawn)
    figures = dict(re.findall(r'<svg id="([\w-]+)"[^>]*>(.*?)</svg>', drawn, re.DOTALL))
    assert {"faults", "nodes", "operations", "latency-0", "rate-0"} <= set(figures)
    assert figures["nodes"].count('class="leader"') == 5
    assert figures["faults"].count('class="band"') == 5
    assert figures["operations"].count("data-tip") >= history(lost=2).operation_count
    assert "send" in figures["close-0"]


def test_picture_is_what_a_browser_shows(tmp_path: Path, bad_page: str) -> None:
    needs_browser()
    file = tmp_path / "page.html"
    file.write_text(bad_page)
    picture(file, tmp_path / "page.png", height=900)
    head = (tmp_path / "page.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24]) == (1280, 900), "width and height"


def test_machine_without_a_browser_is_told_which_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "BROWSERS", ("no-such-browser",))
    with pytest.raises(NoBrowser, match="no-such-browser"):
        picture(tmp_path / "page.html", tmp_path / "page.png")


def test_time_of_a_history_counts_from_the_start_of_its_run_whatever_its_clock_shows() -> None:
    run = outcome()
    assert run.history is not None
    late = replace(run.history, time=run.history.time + 7 * 10**18)
    assert of_outcome(run).origin_ns == 0
    shifted = of_outcome(replace(run, history=late))
    last_ns = int(late.time.max()) - shifted.origin_ns
    assert last_ns == int(run.simulated_seconds * 1e9)
    assert shifted.end_ms - of_outcome(run).end_ms <= 1


def test_what_a_checker_tolerates_is_no_finding() -> None:
    recorder = Recorder()
    for value in range(3):
        recorder.ok(recorder.invoke(0, "send", value=value))
    recorder.ok_many(recorder.invoke(1, "poll"), [(None, value, None) for value in (0, 2, 2)])
    case = of_history(recorder.history(), "twice")
    assert {finding.name for finding in case.findings} == {"lost-middle"}
    assert case.reports[0].counts["duplicated"] == 1
