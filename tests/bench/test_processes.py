"""Servers and loads of a cluster: which of them are measured, and may end."""

import resource

import pytest

from bench.processes import Cluster, files_max


def test_load_may_end_and_is_not_measured() -> None:
    with Cluster("test") as cluster:
        server = cluster.start(["sleep", "60"], name="server")
        cluster.start(["true"], name="load", is_server=False).wait(30)
        cluster.check_alive()
        assert list(cluster.pids.values()) == [server.pid]
    assert not cluster.folder.exists()


def test_server_that_ended_is_an_error() -> None:
    with Cluster("test") as cluster:
        cluster.start(["false"], name="server").wait(30)
        with pytest.raises(RuntimeError, match=r"'false'.* ended with 1"):
            cluster.check_alive()


def test_queues_leave_a_server_files_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 20_000))
    assert files_max() == 18_000
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert files_max() > 1_000_000
