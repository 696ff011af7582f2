"""Replays etcd-io/raft's data files against our core: `python -m tests.consensus.etcd_replay DIR`.

The folder holds files of three kinds, told apart by their commands: quorum (`committed`, `vote`),
membership (`simple`, `enter-joint`, `leave-joint`) and interaction (all others). One line a file:

    PASS 34/34 quorum/joint_vote.txt

A directive holds if its output is equal byte for byte. One that does work, rather than dump a
state, also holds if its lines other than log lines are equal as tuples of words: then the file's
line says how many held so. A directive in `WAIVERS` may differ; its reason is printed. With `-v`
the differences are shown. The exit status is 0 only if no file fails, and at most 5 % is waived.

Source: the data files are etcd-io/raft's (Apache-2.0); they are not part of this repository.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from raftmq.consensus import quorum
from raftmq.consensus.membership import Changer, InvalidChange, Members, Membership
from raftmq.consensus.membership import describe as describe_membership
from tests.consensus import etcd_describe as describe
from tests.consensus.datadriven import Argument, Directive, parse
from tests.consensus.etcd_env import Environment
from tests.consensus.etcd_node import CommandFailed, parse_changes

WAIVERS: dict[tuple[str, int], str] = {}
"""(file name, line) of a directive that may differ, and why."""
WAIVED_SHARE_MAX = 0.05

STATE_DUMPS = frozenset(
    {"raft-log", "raft-state", "status", "compact", "committed", "vote", "simple", "enter-joint",
     "leave-joint"}
)  # fmt: skip
"""Commands whose output is a state: it must be equal to the byte."""


@dataclass
class Verdict:
    """How one file fared."""

    path: str
    total: int = 0
    exact: int = 0
    by_tuples: int = 0
    waived: list[str] = field(default_factory=list)
    failures: list[tuple[Directive, str]] = field(default_factory=list)

    @property
    def word(self) -> str:
        """PASS, FAIL or WAIVED."""
        return "FAIL" if self.failures else "WAIVED" if self.waived else "PASS"

    def __str__(self) -> str:
        text = f"{self.word} {self.exact + self.by_tuples}/{self.total} {self.path}"
        if self.by_tuples:
            text += f" ({self.by_tuples} equal as tuples, log lines differ)"
        return text + "".join(f" [waived: {reason}]" for reason in self.waived)


def replay(path: Path, name: str) -> Verdict:
    """Run one file from a fresh state and compare each output."""
    verdict = Verdict(name)
    directives = list(parse(path.read_text(encoding="utf-8")))
    handle = _handler({directive.command for directive in directives})
    for directive in directives:
        verdict.total += 1
        try:
            actual = handle(directive)
        except Exception as error:
            actual = f"{type(error).__name__}: {error}"
        if not actual.endswith("\n"):
            actual += "\n"
        if actual == directive.expected:
            verdict.exact += 1
        elif directive.command not in STATE_DUMPS and _tuples(actual) == _tuples(
            directive.expected
        ):
            verdict.by_tuples += 1
        elif (path.name, directive.line) in WAIVERS:
            verdict.waived.append(WAIVERS[path.name, directive.line])
        else:
            verdict.failures.append((directive, actual))
    return verdict


def _tuples(text: str) -> list[tuple[str, ...]]:
    lines = [tuple(line.split()) for line in text.splitlines()]
    silent = {*describe.LEVELS, "ok"}  # a command that prints log lines only does not print ok
    return [words for words in lines if words and words[0] not in silent]


def _handler(commands: set[str]) -> Callable[[Directive], str]:
    if commands <= {"committed", "vote"}:
        return handle_quorum
    if commands <= {"simple", "enter-joint", "leave-joint"}:
        return Changes().handle
    return Environment().handle


# Quorum files


def handle_quorum(directive: Directive) -> str:
    """`committed cfg=(1,2) cfgj=(3) idx=(5,_,7)` or `vote cfg=(1,2) votes=(y,_)`."""
    named = {argument.key: argument.values for argument in directive.arguments}
    incoming = [int(one) for one in named.get("cfg", ())]
    is_joint = "cfgj" in named
    outgoing = [int(one) for one in named.get("cfgj", ()) if one != "zero"]
    given = named.get("votes" if directive.command == "vote" else "idx", ())
    voters = list(dict.fromkeys(incoming + outgoing))
    if len(voters) != len(given):
        return f"error: mismatched input (explicit or _) for voters {voters}: {list(given)}"
    known = {voter: one for voter, one in zip(voters, given, strict=True) if one != "_"}
    if directive.command == "vote":
        votes = {voter: one == "y" for voter, one in known.items()}
        return _vote(set(incoming), set(outgoing), votes, is_joint=is_joint)
    matched = {voter: int(one) for voter, one in known.items()}
    return _committed(set(incoming), set(outgoing), matched, is_joint=is_joint)


_RESULTS = {
    quorum.VoteResult.PENDING: "VotePending",
    quorum.VoteResult.LOST: "VoteLost",
    quorum.VoteResult.WON: "VoteWon",
}


def _vote(incoming: set[int], outgoing: set[int], votes: dict[int, bool], *, is_joint: bool) -> str:
    if not is_joint:
        return f"{_RESULTS[quorum.vote_result(incoming, votes)]}\n"
    result = quorum.joint_vote_result(incoming, outgoing, votes)
    mirrored = quorum.joint_vote_result(outgoing, incoming, votes)
    text = "" if mirrored is result else f"{_RESULTS[mirrored]} <-- via symmetry\n"
    return f"{text}{_RESULTS[result]}\n"


def _committed(
    incoming: set[int], outgoing: set[int], matched: dict[int, int], *, is_joint: bool
) -> str:
    text = _bars(incoming | outgoing, matched)
    joint = quorum.joint_committed_index
    one, two = _reached(incoming, matched), _reached(outgoing, matched)
    if is_joint:
        index = joint(one, two)
        checks = {"symmetry": joint(two, one)}
    else:
        index = quorum.majority_index(one)
        checks = {
            "alternative computation": _committed_by_counting(incoming, matched),
            "zero-joint quorum": joint(one, []),
            "self-joint quorum": joint(one, list(one)),
        }
        checks |= dict(_lowered(incoming, matched, index))
    for name, other in checks.items():
        if other != index:
            text += f"{_index(other)} <-- via {name}\n"
    return f"{text}{_index(index)}\n"


def _reached(voters: set[int], matched: dict[int, int]) -> list[int]:
    return [matched.get(voter, 0) for voter in voters]


def _lowered(voters: set[int], matched: dict[int, int], index: int) -> Iterator[tuple[str, int]]:
    """A voter below the committed index does not hold it up: lowering the voter changes nothing."""
    for voter in sorted(voters):
        own = matched.get(voter, 0)
        if index > own > 0:
            for lower in (own - 1, 0):
                reached = _reached(voters, matched | {voter: lower})
                lowered = quorum.majority_index(reached)
                yield f"overlaying {voter}->{lower}", lowered


def _committed_by_counting(voters: set[int], matched: dict[int, int]) -> int:
    if not voters:
        return quorum.INFINITE
    reached = [matched.get(voter, 0) for voter in voters]
    held = {index: sum(one >= index for one in reached) for index in reached}
    return max((index for index, count in held.items() if 2 * count > len(voters)), default=0)


def _index(value: int) -> str:
    return "∞" if value == quorum.INFINITE else str(value)


def _bars(voters: set[int], matched: dict[int, int]) -> str:
    """A bar for each voter, the longer the further it is compared to the others."""
    if not voters:
        return "<empty majority quorum>"
    count = len(voters)
    ranked = sorted(voters, key=lambda voter: (matched.get(voter, 0), voter))
    bars = dict.fromkeys(voters, 0)
    for place in range(1, count):
        before, voter = ranked[place - 1], ranked[place]
        is_ahead = matched.get(before, 0) < matched.get(voter, 0)
        bars[voter] = place if is_ahead else bars[before]
    lines = [" " * count + "    idx\n"]
    for voter in sorted(voters):
        bar = bars[voter]
        head = "x" * bar + ">" + " " * (count - bar) if voter in matched else "?" + " " * count
        lines.append(f"{head} {matched.get(voter, 0):5d}    (id={voter})\n")
    return "".join(lines)


# Membership files


class Changes:
    """One membership, changed by command; each command also moves the last index on by one."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.members: Members = {}
        self.last_index = 0

    def handle(self, directive: Directive) -> str:
        """`simple`, `enter-joint autoleave=true` or `leave-joint`, with a line like `v1 r2`."""
        changer = Changer(
            self.membership,
            self.members,
            self.last_index,
            inflight_messages_max=10,
            inflight_bytes_max=2**62,
        )
        self.last_index += 1
        try:
            self.membership, self.members = self._change(changer, directive)
        except CommandFailed as failure:
            return str(failure)
        except InvalidChange as refusal:
            return f"{refusal}\n"
        return f"{describe_membership(self.membership)}\n{describe.progress_map(self.members)}"

    def _change(self, changer: Changer, directive: Directive) -> tuple[Membership, Members]:
        changes = list(parse_changes(directive.input))
        if directive.command == "simple":
            return changer.simple(changes)
        if directive.command == "enter-joint":
            auto_leave = Argument("autoleave", ("true",)) in directive.arguments
            return changer.enter_joint(changes, auto_leave=auto_leave)
        if changes:
            raise InvalidChange("this command takes no input")
        return changer.leave_joint()


# The program


def replay_folder(folder: Path) -> list[Verdict]:
    """All files below `folder`, in order of their names."""
    files = sorted(folder.rglob("*.txt"))
    return [replay(path, str(path.relative_to(folder))) for path in files]


def main(arguments: list[str] | None = None) -> int:
    """Print a verdict a file and a sum; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.consensus.etcd_replay")
    parser.add_argument("folder", type=Path, help="where the data files are")
    parser.add_argument("-v", "--verbose", action="store_true", help="show differences")
    options = parser.parse_args(arguments)
    verdicts = replay_folder(options.folder)
    if not verdicts:
        print(f"no data files (*.txt) below {options.folder}", file=sys.stderr)
        return 2
    for verdict in verdicts:
        print(verdict)
        if options.verbose:
            for directive, actual in verdict.failures:
                print(_difference(directive, actual))
    total = sum(verdict.total for verdict in verdicts)
    waived = sum(len(verdict.waived) for verdict in verdicts)
    failed = sum(len(verdict.failures) for verdict in verdicts)
    print(f"{total - failed - waived}/{total} directives hold, {waived} waived, {failed} fail")
    return 0 if not failed and waived <= total * WAIVED_SHARE_MAX else 1


def _difference(directive: Directive, actual: str) -> str:
    lines = difflib.unified_diff(
        directive.expected.splitlines(), actual.splitlines(), "expected", "actual", lineterm=""
    )
    return "\n".join([f"line {directive.line}: {directive.command}", *lines])


if __name__ == "__main__":
    sys.exit(main())
