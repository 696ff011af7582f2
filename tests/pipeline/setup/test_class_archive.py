"""Classes that are kept speed a start up, and whatever is in their file, Spark starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.pipeline import PipelineError, class_archive, java, spark_home
from raftmq.pipeline.folders import cache_folder
from tests.cli.command_line import CommandLine

_PROGRAM = (
    "from pathlib import Path\n"
    "from raftmq.pipeline import session\n"
    "with session() as spark:\n"
    "    print(spark.range(5).count())\n"
    "    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()\n"
    "    print('.jsa' in Path(f'/proc/{java}/maps').read_text())\n"
)


def _ran(program: str) -> tuple[str, str]:
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    return ran.stdout, ran.stderr


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # A session of this process has set it.
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return cache_folder()


@pytest.fixture
def found(cache: Path) -> java.Java:
    return java.find(cache)


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_java_maps_the_classes_that_are_kept(tmp_path: Path) -> None:
    cache = cache_folder()
    file = class_archive.kept(java.find(cache), spark_home.find(cache), cache)
    if not file.exists():
        pytest.skip("no classes are kept: `raftmq pipeline prepare`")
    if not _is_mapped(file, tmp_path / "said"):
        pytest.fail((tmp_path / "said").read_text())


def _is_mapped(file: Path, said: Path) -> bool:
    """Whether a new Java maps the file; what it says of such files goes into `said`."""
    told = f"class_archive.QUIET += ' -Xlog:cds=info,class+path=info:file={said}'\n"
    # Only a kept file has a name of our own; Java's base archive is `classes.jsa` in its home.
    program = "from raftmq.pipeline import class_archive\n" + told + _PROGRAM
    out, errors = _ran(program.replace(".jsa", file.name))
    assert (out.splitlines()[0], errors) == ("5", "")
    return out.splitlines()[1] == "True"


def test_links_to_spark_leave_out_what_python_would_compile_each_time(cache: Path) -> None:
    found = spark_home.find(cache)
    assert (found / "bin" / "spark-submit").exists()
    assert any((found / "jars").glob("spark-core_*.jar"))
    assert not (found / "python").exists()
    assert spark_home.find(cache) == found


def test_spark_home_that_is_set_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home.find(cache) == Path("/opt/spark")


@pytest.mark.timeout(300)
def test_file_that_holds_no_classes_is_passed_over_without_a_word(
    cache: Path, found: java.Java
) -> None:
    file = class_archive.kept(found, spark_home.find(cache), cache)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no classes" * 1000)
    assert str(file) in class_archive.flags(file)
    out, errors = _ran(_PROGRAM.replace(".jsa", file.name))
    assert (out.splitlines()[0], errors) == ("5", "")


def test_nothing_is_passed_to_java_where_no_classes_are_kept(cache: Path, found: java.Java) -> None:
    assert class_archive.flags(class_archive.kept(found, spark_home.find(cache), cache)) == ""


def test_other_java_or_spark_has_another_file(
    cache: Path, found: java.Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = java.Java(found.home, "99.0.1", found.origin)
    before = class_archive.kept(found, spark_home.find(cache), cache)
    assert class_archive.kept(newer, spark_home.find(cache), cache) != before
    monkeypatch.setattr("pyspark.__version__", "99.1")
    assert class_archive.kept(found, spark_home.find(cache), cache) != before


def test_jars_that_are_installed_again_have_another_file(
    cache: Path, found: java.Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "spark" / "jars" / "spark.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"classes")
    before = class_archive.kept(found, tmp_path / "spark", cache)
    assert class_archive.kept(found, tmp_path / "spark", cache) == before
    os.utime(jar, (1, 1))
    after = class_archive.kept(found, tmp_path / "spark", cache)
    assert after != before

    before.parent.mkdir(parents=True)
    before.write_bytes(b"outdated")
    other = before.with_name("0123-4567.jsa")
    other.write_bytes(b"of another Java")
    # The run of Spark writes the file that is its last argument.
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nfor a do :; done\necho classes > "$a"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    class_archive.keep(found, tmp_path / "spark", cache, "raftmq://127.0.0.1:1")
    assert sorted(cache.glob("classes/*")) == sorted([after, other])


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Boom: no memory' >&2; echo '   at deep.inside' >&2; exit 1", "Boom: no memory"),
        ("exit 0", "does not write the archive of its classes"),
    ],
)
def test_failure_leaves_no_file_and_says_why(
    script: str, said: str, cache: Path, found: java.Java,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(PipelineError, match=said):
        class_archive.keep(found, spark_home.find(cache), cache, "raftmq://127.0.0.1:1")
    assert list((cache / "classes").iterdir()) == []


def test_prepare_makes_the_file_once(
    raftmq: CommandLine, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def keep(of: java.Java, spark_home: Path, folder: Path, url: str) -> Path:
        assert url.startswith("raftmq://127.0.0.1:")
        file = class_archive.kept(of, spark_home, folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"classes")
        made.append(file)
        return file

    monkeypatch.setattr(class_archive, "keep", keep)
    for arguments, times in [((), 1), ((), 1), (("--again",), 2)]:
        ended = raftmq("pipeline", "prepare", *arguments)
        assert (ended.code, len(made)) == (0, times)
        assert str(made[0]) in ended.stderr
