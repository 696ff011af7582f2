"""Plants of `tests.quality.mutants.brokers.settings`: the patched code needs the event loop."""

from raftmq.broker.dynamic.topic_retention import TopicRetention
from raftmq.chaos.mutant import Patch
from raftmq.client.routing.pushed_settings import PushedSettings
from raftmq.machine.catalog.settings import PutSettings, SettingsState
from raftmq.results import Result
from raftmq.wire.settings import FoundSettings


def looks_at_no_version(patch: Patch) -> None:
    """388"""
    apply = SettingsState.apply

    def carry_out(self: SettingsState, command: PutSettings, *, now: int, user: str) -> Result:
        return apply(self, PutSettings(command.settings), now=now, user=user)

    patch.set(SettingsState, "apply", carry_out)


def hears_once(patch: Patch) -> None:
    """389"""
    take = PushedSettings._take

    def only_the_first(self: PushedSettings, found: FoundSettings) -> None:
        if not self._version:
            take(self, found)
        self._version = self._after = found.version

    patch.set(PushedSettings, "_take", only_the_first)


def keeps_by_nodes_alone(patch: Patch) -> None:
    """393"""
    patch.set(TopicRetention, "times", lambda self: {})
