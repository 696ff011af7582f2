"""Conformance: etcd-io/raft's own data files, replayed against our core.

The files are not part of this repository. They are looked for in the folder that the environment
variable RAFTMQ_CORPORA names, else in ../shared/corpora beside the repository.
"""

import os
from pathlib import Path

import pytest

from tests.consensus.datadriven import Argument, Directive, parse, parse_command
from tests.consensus.etcd_replay import WAIVED_SHARE_MAX, main, replay

ROOT = Path(__file__).parents[2]
CORPORA = Path(os.environ.get("RAFTMQ_CORPORA", ROOT.parent / "shared" / "corpora"))
FOLDER = CORPORA / "etcd-raft"
FILES = sorted(FOLDER.rglob("*.txt"))


def name(path: Path) -> str:
    return str(path.relative_to(FOLDER))


@pytest.mark.skipif(not FILES, reason=f"etcd-io/raft's data files are not in {FOLDER}")
def test_corpus_holds_quorum_membership_and_interaction_files() -> None:
    assert {"quorum", "confchange", "interaction"} <= {path.parent.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_replay_prints_what_etcd_prints(path: Path) -> None:
    verdict = replay(path, name(path))
    assert verdict.total > 0
    assert not verdict.failures, [(one.line, one.command) for one, _ in verdict.failures]
    assert len(verdict.waived) <= verdict.total * WAIVED_SHARE_MAX


def test_replay_fails_on_a_wrong_expectation(tmp_path: Path) -> None:
    (tmp_path / "vote.txt").write_text("vote cfg=(1,2) votes=(y,_)\n----\nVoteWon\n")
    assert main([str(tmp_path)]) == 1


def test_replay_fails_on_a_wrong_message_even_though_log_lines_may_differ(tmp_path: Path) -> None:
    text = "add-nodes 1 voters=(1) index=2\n----\nok\n\ncampaign 1\n----\nok\n\n"
    text += "process-ready 1\n----\nReady MustSync=true:\nLead:0 State:StateCandidate\n"
    state = "HardState Term:{} Vote:1 Commit:2\n"
    for term, status in ((1, 0), (2, 1)):
        (tmp_path / "one.txt").write_text(text + state.format(term))
        assert main([str(tmp_path)]) == status


def test_parser_reads_comments_arguments_input_and_blank_lines_in_output() -> None:
    text = "# note\nrun 1 a=b c=(d, e) \\\n  f\nmore\n----\n----\none\n\ntwo\n----\n----\n"
    text += "\nlast\n----\nok\n"
    first, last = parse(text)
    arguments = (Argument("1"), Argument("a", ("b",)), Argument("c", ("d", "e")), Argument("f"))
    assert first == Directive(2, "run", arguments, "more", "one\n\ntwo\n")
    assert (last.command, last.expected) == ("last", "ok\n")
    assert parse_command("x y=()") == ("x", (Argument("y", ()),))
