"""An error that Spark wrapped in layers comes out as one line and a remedy."""

import pickle
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.errors import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(PipelineError("no topic", "make it")))
    assert (error.message, error.fix) == ("no topic", "make it")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Traceback:\n  File x\nraftmq.errors.Unavailable: nobody leads", "Unavailable: nobody"),
        ("layer\nCaused by\n  KeyError: 'body'\nand more", "KeyError: 'body'"),
        ("[SOME_CLASS] the table is gone\nJVM stacktrace: ...", "[SOME_CLASS] the table"),
    ],
)
def test_cause_is_the_line_that_matters(text: str, message: str) -> None:
    assert cause_of(RuntimeError(text)).message.startswith(message)


def test_error_of_a_worker_comes_back_as_it_was(spark: "SparkSession") -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    @udf(useArrow=False)
    def fails(_: int) -> str:
        raise PipelineError("row 7 has no body", "give it one")

    with pytest.raises(PySparkException) as raised:
        spark.range(1).select(fails("id")).collect()
    cause = cause_of(raised.value)
    assert (cause.message, cause.fix) == ("row 7 has no body", "give it one")
