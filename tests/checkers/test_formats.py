"""Histories as files: ours, Jepsen's logs, EDN; the command that judges folders; the corpus."""

import json
import os
import random
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.checkers import (
    History,
    NotAHistory,
    Recorder,
    Verdict,
    check_linearizability,
    judge,
    read_history,
    read_parquet,
    worst,
    write_parquet,
)
from raftmq.checkers.check import main

from .writing import Script, random_log_run

CORPUS = Path(os.environ.get("RAFTMQ_CORPORA", Path(__file__).parents[4] / "shared/corpora"))
PORCUPINE = CORPUS / "porcupine"

LOG = """\
INFO  jepsen.util - 0\t:invoke\t:read\tnil
INFO  jepsen.util - 1 :invoke :cas [1 2]
INFO  jepsen.core - Worker 1 starting
INFO  jepsen.util - 0\t:ok\t:read\tnil
INFO  jepsen.util - 1 :fail :cas [1 2]
INFO  jepsen.util - :nemesis\t:info\t:start\tnil
INFO  jepsen.util - 2 :invoke :write 7
INFO  jepsen.util - 2 :info   :write :timed-out
INFO  jepsen.util - 3 :invoke :read nil
INFO  jepsen.util - 3 :fail   :read :timed-out
INFO  jepsen.util - 4 :invoke :read nil
INFO  jepsen.util - 4 :ok     :read 7
"""

EDN = """\
; a text by key, as a map a line
{:process 0, :type :invoke, :f :append, :key "4", :value "x 0 1 \\"y\\""}
{:process 1, :type :invoke, :f :get, :key "4", :value nil}
{:process 0, :type :ok, :f :append, :key "4", :value "x 0 1 \\"y\\""}
{:process 1, :type :ok, :f :get, :key "4", :value "x 0 1 \\"y\\""}
"""


def written(folder: Path, text: str, name: str = "one.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def rows(history: History) -> list[str]:
    return [history.describe(row) for row in range(len(history))]


def test_jepsen_log_is_read_with_its_refusals_and_timeouts(tmp_path: Path) -> None:
    history = read_history(written(tmp_path, LOG))
    assert history.operation_count == 5
    assert "process 1 ok cas value=False" in "\n".join(rows(history))
    assert "process 2 unknown write value=7" in "\n".join(rows(history))
    assert "process 3 fail read" in "\n".join(rows(history))
    # The write without a known end explains the last read.
    assert check_linearizability(history).verdict is Verdict.VALID


@pytest.mark.parametrize("prefix", ["", "2024-05-01 12:00:00,001 INFO [worker 0] jepsen.util: "])
def test_jepsen_log_of_other_ages_is_read(tmp_path: Path, prefix: str) -> None:
    lines = ["0\t:invoke\t:write\t1", "0\t:ok\t:write\t1", "1 :invoke :read nil", "1 :ok :read 2"]
    text = "".join(f"{prefix}{line}\n" for line in lines)
    history = read_history(written(tmp_path, text, "history.txt"))
    assert check_linearizability(history).verdict is Verdict.INVALID


@pytest.mark.parametrize("around", ["{}", "[{}]", "[\n{}\n]\n"])
def test_edn_is_read_as_lines_or_as_one_vector(tmp_path: Path, around: str) -> None:
    history = read_history(written(tmp_path, around.replace("{}", EDN), "kv.txt"))
    assert history.keys == ["4"]
    assert history.values == ['x 0 1 "y"']
    assert check_linearizability(history).verdict is Verdict.VALID


def test_edn_of_knossos_with_tags_times_and_a_nemesis_is_read(tmp_path: Path) -> None:
    text = """
    {:type :invoke, :f :write, :value 3, :process 0, :time 10.5, :index 0}
    {:type :info, :f :kill, :value #{"n1" "n2"}, :process :nemesis}
    #jepsen.history.Op{:type :ok, :f :write, :value 3, :process 0, :error [:a {:b 1}]}
    {:type :invoke, :f :cas, :value [3 4], :process 1}
    {:type :ok, :f :cas, :value [3 4], :process 1}
    {:type :invoke, :f :read, :value nil, :process 0} {:type :ok, :f :read, :value 3, :process 0}
    """
    history = read_history(written(tmp_path, text, "h.edn"))
    assert check_linearizability(history).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello\n", "line 1 is no operation"),
        (LOG + "0 what is this\n", "line 13 is no operation"),
        ("a - b\nc - d\n", "no line is an operation"),
        ("0 :ok :read 1\n", "ends no such operation"),
        ("0 :invoke :read nil\n0 :invoke :read nil\n", "busy already"),
        ("{:process 0, :type :invoke", "never closed"),
        ("{:process 0 :type :maybe :f :read}", "is unknown"),
        ("{:a 1}", "no map with"),
        ("[1 2]", "no map with"),
        ("{1 2 3}", "not EDN"),
        ('{"json": [1, 2]}', "not EDN"),
    ],
)
def test_file_of_another_kind_is_refused_with_the_place(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(NotAHistory, match=said):
        read_history(written(tmp_path, text))


def test_bytes_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    (tmp_path / "b.log").write_bytes(b"\xff\xfe\x00")
    for name in ("a.parquet", "b.log"):
        with pytest.raises(NotAHistory):
            read_history(tmp_path / name)


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_parquet_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    history = random_log_run(random.Random(seed))
    path = tmp_path_factory.mktemp("histories") / "one.parquet"
    write_parquet(history, path)
    assert rows(read_parquet(path)) == rows(history)


def test_parquet_keeps_values_of_all_kinds(tmp_path: Path) -> None:
    script = Script()
    values = [1, True, 1.5, "1", "", (1, (2, None)), 0, False, None]
    for value in values:
        script.sent(-5, value)
    write_parquet(script.history(), tmp_path / "one.parquet")
    again = read_parquet(tmp_path / "one.parquet")
    assert rows(again) == rows(script.history())
    assert [type(one) for one in again.values] == [type(one) for one in values if one is not None]


def test_parquet_of_an_empty_history_is_vacuous(tmp_path: Path) -> None:
    write_parquet(Recorder().history(), tmp_path / "one.parquet")
    (report,) = judge(read_parquet(tmp_path / "one.parquet"))
    assert report.verdict is Verdict.UNKNOWN
    assert report.reason.startswith("vacuous")


def test_parquet_whose_operation_has_no_invoke_is_refused(tmp_path: Path) -> None:
    script = Script()
    script.sent(0, "a", 0)
    script.sent(0, "b", 1)
    history = script.history()
    write_parquet(history.select(np.array([0, 1, 3])), tmp_path / "one.parquet")
    with pytest.raises(NotAHistory, match="row 2 has no invoke"):
        read_parquet(tmp_path / "one.parquet")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def fill(folder: Path) -> None:
    written(folder, "0 :invoke :write 1\n0 :ok :write 1\n", "good.log")
    written(folder, "0 :invoke :read nil\n0 :ok :read 1\n", "bad.log")
    written(folder, "", "empty.log")
    written(folder, "Read me.", "README.md")
    written(folder, "{}", "verdicts.json")
    script = Script()
    script.sent(0, "a", 0)
    script.polled(1)
    write_parquet(script.history(), folder / "queue.parquet")


def test_folder_is_judged_as_one_json_object(tmp_path: Path) -> None:
    fill(tmp_path)
    result = run(tmp_path, "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "bad.log": "invalid",
        "empty.log": "unknown",
        "good.log": "valid",
        "queue.parquet": "invalid",
    }
    assert "vacuous" in result.stderr


def test_histories_of_folders_below_are_named_from_the_folder_on(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    fill(tmp_path / "deep")
    assert "deep/bad.log" in json.loads(run(tmp_path, "-o", "json").stdout)
    several = run(tmp_path / "deep" / "bad.log", tmp_path / "deep" / "good.log", "-o", "json")
    assert set(json.loads(several.stdout)) == {
        str(tmp_path / "deep" / name) for name in ("bad.log", "good.log")
    }


def test_strict_check_of_an_invalid_history_exits_with_5(tmp_path: Path) -> None:
    fill(tmp_path)
    assert run(tmp_path, "--strict").exit_code == 5
    assert run(tmp_path / "good.log", "--strict").exit_code == 0


def test_explained_check_shows_the_anomaly_beside_the_verdict(tmp_path: Path) -> None:
    fill(tmp_path)
    result = run(tmp_path / "bad.log", "--explain")
    assert result.stdout == "bad.log  invalid\n"
    assert "phantom-read: a read returned 1, whose write had not begun" in result.stderr
    assert "process 0 ok read value=1" in result.stderr


def test_unknown_format_exits_with_2_and_the_rest_is_judged(tmp_path: Path) -> None:
    fill(tmp_path)
    written(tmp_path, "Dear diary,\n", "diary.txt")
    result = run(tmp_path, "-o", "json")
    assert result.exit_code == 2
    assert "diary.txt, line 1 is no operation" in result.stderr
    assert len(json.loads(result.stdout)) == 4


def test_folder_without_histories_exits_with_2(tmp_path: Path) -> None:
    written(tmp_path, "raftmq chaos replay '{}'", "replay.txt")
    written(tmp_path, "peer reached\n", "node-1.log")
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "no history" in result.stderr


@pytest.mark.parametrize(
    "events",
    ["0 :invoke :cas 1\n0 :ok :cas 1\n", "0 :invoke :append 1\n0 :ok :append 1\n"],
)
def test_arguments_that_the_model_does_not_know_are_unknown(tmp_path: Path, events: str) -> None:
    result = run(written(tmp_path, events))
    assert result.exit_code == 0
    assert "unknown" in result.stdout
    assert "is nothing that a" in result.stderr


def test_functions_that_no_model_knows_are_unknown(tmp_path: Path) -> None:
    result = run(written(tmp_path, "0 :invoke :fly 1\n0 :ok :fly 1\n"))
    assert result.exit_code == 0
    assert "unknown" in result.stdout
    assert "fly" in result.stderr


def test_every_recorded_history_gets_its_verdict() -> None:
    if not PORCUPINE.is_dir():
        pytest.skip(f"no {PORCUPINE}: put recorded histories there or set RAFTMQ_CORPORA")
    expected = msgspec.json.decode((PORCUPINE / "verdicts.json").read_bytes(), type=dict[str, bool])
    start = time.process_time()
    verdicts = {
        name: worst(report.verdict for report in judge(read_history(PORCUPINE / name)))
        for name in expected
    }
    assert len(expected) >= 52
    assert verdicts == {
        name: Verdict.VALID if is_good else Verdict.INVALID for name, is_good in expected.items()
    }
    assert time.process_time() - start < 10
