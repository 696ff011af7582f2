"""The installer of peers: what is pinned, fetched once, refused, and said in one line."""

import os
import shutil
from pathlib import Path

import pytest

from bench.peers import install
from bench.peers.install import Jars

MAVEN = """#!/bin/sh
for argument in "$@"; do case "$argument" in -DoutputDirectory=*) to="${argument#*=}" ;; esac; done
echo fetching from central
mkdir -p "$to" && printf one > "$to/one-1.0.jar" && echo run >> "$to/../../runs"
"""
# sha256 of the line "one-1.0.jar SHA-256 of one".
DIGEST = "230340dc94d3f84bc69ce7537bb6bf3e7345c34c64ca674a0cb8d0dcdaf0871b"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Peers' programs go here, and `mvn` is a script that brings one jar."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mvn").write_text(MAVEN)
    (programs / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(install, "FOLDER", tmp_path / "peers")
    monkeypatch.setitem(install.JARS, "kafka", Jars(("group:one:1.0",), DIGEST))
    return tmp_path / "peers"


def test_second_run_fetches_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["kafka"]) == 0
    assert install.main(["kafka"]) == 0
    assert (folder / "runs").read_text() == "run\n"
    assert capsys.readouterr().out.splitlines() == [
        f"kafka: is in {folder / 'kafka'}",
        "kafka: is there",
    ]
    assert (
        "<artifactId>one</artifactId><version>1.0</version>"
        in (folder / "kafka" / "pom.xml").read_text()
    )


def test_another_version_is_fetched_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install.main(["kafka"]) == 0
    monkeypatch.setitem(install.JARS, "kafka", Jars(("group:one:1.1",), DIGEST))
    assert "is not installed" in str(install.why_missing("kafka"))
    assert install.main(["kafka"]) == 0
    assert (folder / "runs").read_text() == "run\n" * 2


def test_jars_with_another_digest_are_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(install.JARS, "kafka", Jars(("group:one:1.0",), "0" * 64))
    assert install.main(["kafka"]) == 1
    assert f"the digest of its 1 jars is {DIGEST}: other files came" in capsys.readouterr().out
    assert not (folder / "kafka" / "installed").exists()


def test_failing_client_is_one_line_and_exit_status_1(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "programs" / "mvn").write_text("#!/bin/sh\necho '[ERROR] no such artifact'\nexit 3")
    assert install.main(["kafka"]) == 1
    assert capsys.readouterr().out == (
        "kafka: could not be had: mvn ended with 3: [ERROR] no such artifact\n"
    )


def test_absent_client_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert install.main(["kafka"]) == 1
    assert "could not be had: mvn is not on this machine" in capsys.readouterr().out
    assert "needs Java" in str(install.why_missing("kafka"))


def test_unknown_name_is_refused_before_anything_is_fetched(folder: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        install.main(["kafka", "pulsar"])
    assert raised.value.code == 2
    assert not folder.exists()


def test_every_pin_has_a_checksum() -> None:
    assert all(len(jars.digest) == 64 for jars in install.JARS.values())
    assert all(module.sum.startswith("h1:") for module in install.MODULES)
    assert all(
        (install.SOURCES / n).exists() for jars in install.JARS.values() for n in jars.sources
    )
