"""The files of a data folder that name nodes: whatever was read at a start stays."""

import errno
from random import Random

import pytest

from raftmq.broker import identity
from raftmq.broker.acquaintances import Acquaintances
from raftmq.broker.identity import FORMAT, Identity, WrongFolder
from raftmq.chaos.world import MemoryFiles
from raftmq.pop.catalog import Catalog

FOLDER = "/data"
OWN = Identity(format=FORMAT, cluster="c", node=1, incarnation="5f0c", replicas={1: 2})


def killed_while_saving(seed: int) -> MemoryFiles:
    """A folder whose writer died before the name of `node.json` was durable."""
    files = MemoryFiles()
    files.random = Random(seed)
    files.make_folder(FOLDER)
    files.fail_next("sync_folder", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        identity.save(files, FOLDER, OWN)
    return files


def test_name_of_a_folder_that_a_start_has_read_outlives_a_power_loss() -> None:
    for seed in range(20):
        files = killed_while_saving(seed)
        assert identity.load(files, FOLDER, cluster="c", node=1) == OWN
        files.power_loss()
        assert identity.load(files, FOLDER, cluster="c", node=1) == OWN


def test_flipped_bit_of_a_file_of_names_is_noticed_or_changes_no_name() -> None:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    identity.save(files, FOLDER, OWN)
    known = Acquaintances(files, FOLDER, Catalog)
    known._known = {2: "91ab", 3: "77cd"}
    known._save()
    for name in (identity.FILE, "peers.json"):
        path, noticed = f"{FOLDER}/{name}", 0
        bits = 8 * len(files.bytes_of(path))
        for bit in range(bits):
            files.flip(path, bit)
            try:
                assert identity.load(files, FOLDER, cluster="c", node=1) == OWN
                assert Acquaintances(files, FOLDER, Catalog)._known == known._known
            except WrongFolder:
                noticed += 1
            files.flip(path, bit)
        assert noticed > bits / 2
