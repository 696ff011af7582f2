"""The files of a data folder that name nodes: whatever was read at a start stays."""

import errno
from random import Random

import msgspec
import pytest

from raftmq.broker.cluster import identity
from raftmq.broker.cluster.identity import FORMAT, Identity, WrongFolder
from raftmq.broker.cluster.peer_identities import PeerIdentities
from raftmq.chaos.world import MemoryFiles
from raftmq.machine.catalog.catalog import Catalog

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
    known = PeerIdentities(files, FOLDER, Catalog)
    known._known = {2: "91ab", 3: "77cd"}
    known._save()
    for name in (identity.FILE, "peers.json"):
        path, noticed = f"{FOLDER}/{name}", 0
        bits = 8 * len(files.bytes_of(path))
        for bit in range(bits):
            files.flip(path, bit)
            try:
                assert identity.load(files, FOLDER, cluster="c", node=1) == OWN
                assert PeerIdentities(files, FOLDER, Catalog)._known == known._known
            except WrongFolder:
                noticed += 1
            files.flip(path, bit)
        assert noticed > bits / 2


def test_folder_that_re_entered_under_old_member_ids_is_refused_with_what_to_do() -> None:
    files = MemoryFiles()
    files.make_folder("/data")
    # Before replica generations, `node.json` had no `replicas`.
    old = msgspec.to_builtins(Identity(1, "c", 2, "aa", generation=1))
    del old["replicas"]
    file = files.create("/data/node.json")
    file.append([msgspec.json.encode(old)])
    file.close()
    with pytest.raises(WrongFolder, match=r"re-entered under older software.*docs/operations\.md"):
        identity.load(files, "/data", cluster="c", node=2)


def test_folder_of_before_replica_generations_that_never_re_entered_is_taken() -> None:
    files = MemoryFiles()
    files.make_folder("/data")
    file = files.create("/data/node.json")
    file.append([b'{"format": 1, "cluster": "c", "node": 2, "incarnation": "aa"}'])
    file.close()
    assert identity.load(files, "/data", cluster="c", node=2) == Identity(1, "c", 2, "aa")
