"""The pages of the pipeline, played in a process that has one Spark for all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

PLAYED = Path(__file__).with_name("played_pages.py")


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.timeout(1200)
def test_pages_of_the_pipeline_play() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLAYED)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
