"""The test of the tests: each rule of a member that abstains is left out, and a test notices.

The core simulator hunts them too (mutants 132 to 134); here it is shown that the tests of consensus
see each by itself.
"""

from collections.abc import Callable

import pytest

from raftmq.consensus import abstaining, types
from raftmq.consensus.core import Core
from tests.consensus import test_abstaining as tests_of_abstaining


def counts_in_any_term(core: Core) -> bool:
    log = core.log
    is_durable = log.unstable.snapshot is None and log.committed < log.unstable.offset
    return core.leader != types.NONE and is_durable


def counts_at_once(core: Core) -> bool:
    return True


def never_counts(core: Core) -> bool:
    return False


NOTICED_BY: list[tuple[Callable[[Core], bool], Callable[[], None]]] = [
    (
        counts_in_any_term,
        tests_of_abstaining.test_commit_index_on_a_record_of_an_older_term_does_not_end_the_abstention,
    ),
    (
        counts_at_once,
        tests_of_abstaining.test_lost_acknowledgement_is_not_outvoted_by_who_never_had_the_record,
    ),
    (
        never_counts,
        tests_of_abstaining.test_member_counts_again_once_a_record_of_the_new_leaders_term_is_committed_and_here,
    ),
]


@pytest.mark.parametrize(("rule", "test"), NOTICED_BY, ids=lambda one: one.__name__)
def test_wrong_end_of_an_abstention_is_noticed(
    rule: Callable[[Core], bool], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    monkeypatch.setattr(abstaining, "may_count_again", rule)
    with pytest.raises(AssertionError):
        test()
