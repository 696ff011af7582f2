"""The error that a user of the pipeline can mend, and the cause of an error of Spark's.

Errors travel from Spark's Python workers through Java to the driver as text, so the message holds
the remedy, too. On the way four or five layers wrap an error; `cause_of` finds the one line that
matters.
"""

import re

from raftmq.errors import RaftmqError

from .folders import log_path


class PipelineError(RaftmqError):
    """Something that the user of a pipeline can mend: what is wrong, and the remedy."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message}. Fix: {fix}")
        self.message = message
        """The problem, without a full stop at the end."""
        self.fix = fix
        """The remedy: one sentence, often a command to type."""

    def __reduce__(self) -> tuple[type["PipelineError"], tuple[str, str]]:
        return type(self), (self.message, self.fix)


# The last line of a Python traceback: an exception's name, in full or not, and its words.
_RAISED = re.compile(
    r"^\s*(?:[a-z_][\w.]*\.)*(\w*(?:Error|Exception)|Rejected|Unavailable|OutcomeUnknown): (.+)$",
    re.MULTILINE,
)
_OURS = re.compile(r"PipelineError: (.+?)\. Fix: (.+)")
_LENGTH_MAX = 400


def cause_of(error: BaseException) -> PipelineError:
    """The cause of an error inside Spark, as one error to show.

    An error that our own code raised in a worker comes back as it was. Of any other error the
    message is the last line of the innermost Python traceback, or the first line of Spark's text.

    >>> text = "Job aborted:\\n  raftmq.pipeline.errors.PipelineError: no topic. Fix: make it"
    >>> cause_of(RuntimeError(text)).fix
    'make it'
    """
    if isinstance(error, PipelineError):
        return error
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        return PipelineError(ours[1], ours[2].strip())
    raised = _RAISED.findall(text)
    said = f"{raised[-1][0]}: {raised[-1][1]}" if raised else text.strip().partition("\n")[0]
    return PipelineError(said[:_LENGTH_MAX].rstrip("."), f"Spark's output is in {log_path()}")
