"""The real worker: which jobs run on the loop, and which on its thread."""

import threading
import time
from collections.abc import Callable

import pytest
import trio
import trio.testing

from raftmq.broker import system_world
from raftmq.broker.system_world import RealWorld, ThreadWorker


def _in_loop(check: Callable[[ThreadWorker], None]) -> None:
    async def main() -> None:
        worker = ThreadWorker("test")
        try:
            check(worker)
        finally:
            worker.close()

    trio.run(main)


def test_quick_job_runs_on_the_loop_and_reports_what_came_of_it() -> None:
    def check(worker: ThreadWorker) -> None:
        assert worker.try_now(threading.get_ident) == (threading.get_ident(), None)
        outcome = worker.try_now(lambda: 1 // 0)
        assert outcome is not None
        assert isinstance(outcome[1], ZeroDivisionError)

    _in_loop(check)


def test_no_job_runs_on_the_loop_beside_one_on_the_thread() -> None:
    async def main() -> None:
        worker = ThreadWorker("test")
        may_end, is_over = threading.Event(), trio.Event()
        worker.submit(may_end.wait, lambda result, error: is_over.set())
        assert worker.try_now(lambda: 1) is None
        may_end.set()
        await is_over.wait()
        assert worker.try_now(lambda: 1) == (1, None)
        worker.close()

    trio.run(main)


def test_jobs_of_a_closed_worker_are_done_and_not_reported() -> None:
    """The node that asked may have ended: a report would act on what is gone."""

    async def main() -> None:
        worker = ThreadWorker("test")
        done: list[str] = []
        worker.submit(lambda: done.append("job"), lambda result, error: done.append("report"))
        worker.close()
        await trio.sleep(0.05)
        assert done == ["job"]

    trio.run(main)


def test_jobs_are_not_reported_once_the_nursery_of_their_node_is_cancelled() -> None:
    async def main() -> None:
        done: list[str] = []
        may_end, has_ended = threading.Event(), threading.Event()

        def job() -> None:
            may_end.wait()
            done.append("job")

        with trio.CancelScope() as outer:
            async with trio.open_nursery() as nursery:
                worker = RealWorld().worker("test", nursery)
                worker.submit(job, lambda result, error: done.append("report"))
                worker.submit(has_ended.set, lambda result, error: done.append("report"))
                await trio.testing.wait_all_tasks_blocked()
                outer.cancel()
        may_end.set()
        has_ended.wait()
        await trio.sleep(0.05)
        assert done == ["job"]
        worker.close()

    trio.run(main)


def test_slow_job_sends_the_next_ones_to_the_thread_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds

    def check(worker: ThreadWorker) -> None:
        for wary_seconds in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            assert worker.try_now(lambda: take(1.0)) is not None
            take(wary_seconds - 0.01)
            assert worker.try_now(lambda: None) is None
            take(0.02)
        assert worker.try_now(lambda: None) is not None
        assert worker.try_now(lambda: take(system_world.QUICK_SECONDS * 2)) is not None
        take(system_world.QUICK_SECONDS * 2 * system_world.WARY_TIMES_MIN - 0.001)
        assert worker.try_now(lambda: None) is None
        take(0.002)
        assert worker.try_now(lambda: None) is not None, "a quick one has made up for it"

    _in_loop(check)
