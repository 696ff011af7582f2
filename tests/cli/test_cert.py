"""`raftmq cert`: certificates in one command each, and refusals that say what would be right."""

import re
from pathlib import Path

import pytest

from raftmq.broker.settings import Access, NodeSettings, Peer, Settings, Tls
from raftmq.cli.node.settings_file import read_settings
from tests.cli.command_line import CommandLine


def test_three_nodes_and_a_user_take_a_command_each(tmp_path: Path, raftmq: CommandLine) -> None:
    folder = tmp_path / "certs"
    common = ("cert", "make", "--dir", str(folder), "--cluster", "production")
    for node in ("1", "2", "3"):
        made = raftmq.ok(*common, "--node", node, "--host", f"10.0.0.{node}", "--host", "db")
        config = tmp_path / f"{node}.toml"
        own = f'[node]\nid = {node}\ncluster = "production"\ndata = "/d"\n'
        others = f'peers = [{{ id = {node}, host = "10.0.0.{node}", port = 7400 }}]\n'
        config.write_text(own + others + made.stdout)
        settings = read_settings(config, ())
        assert isinstance(settings, Settings)
        assert settings.tls.cert == str(folder / f"node-{node}.pem")
        assert Path(settings.tls.crl).exists()
        assert ("made an authority" in made.stderr) is (node == "1")
    raftmq.ok(*common, "--user", "alice", "--days", "30")
    files = sorted(str(path) for path in folder.glob("*.pem"))
    shown = raftmq.ok("cert", "show", *files, "-o", "json").json
    names = {Path(each["file"]).stem: each["names"] for each in shown}
    assert names == {
        "user-alice": ["urn:raftmq:production:user:alice"],
        "ca": [],
        "crl": [],
        **{f"node-{n}": [f"urn:raftmq:production:node:{n}"] for n in (1, 2, 3)},
    }
    assert shown[2]["hosts"] == ["10.0.0.1", "db"]
    table = raftmq.ok("cert", "show", *files).stdout
    assert "10.0.0.1, db" in table
    assert re.search(r"ca\.pem +authority +20\d\d-", table)
    assert re.search(r"crl\.pem +revoked certificates +20\d\d-.* none$", table, re.MULTILINE)
    revoked = raftmq.ok("cert", "revoke", "--dir", str(folder), str(folder / "user-alice.pem"))
    assert "of urn:raftmq:production:user:alice: copy" in revoked.stderr
    assert "crl.pem to each node" in revoked.stderr
    (alice,) = (each["serials"] for each in shown if "user-alice" in each["file"])
    crl = str(folder / "crl.pem")
    assert raftmq.ok("cert", "show", crl, "-o", "json").json[0]["serials"] == alice
    assert alice[0] in raftmq.ok("cert", "show", crl).stdout
    assert "warning" not in revoked.stderr + made.stderr
    misspelt = raftmq.ok(
        "cert", "make", "--dir", str(folder), "--cluster", "prodution", "--user", "b"
    )
    assert "certs are of cluster 'production', not 'prodution'" in misspelt.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--node", "1", "--user", "a", "--host", "db"), "either --node N or --user NAME"),
        ((), "either --node N or --user NAME"),
        (("--node", "1"), "give --host"),
        (("--node", "1", "--host", "a..b"), "is no host"),
        (("--user", "../x"), "is not a user name"),
        (("--user", ""), "is not a user name"),
        (("--user", "a", "--host", "db"), "--host is for a node's certificate"),
        (("--node", "0", "--host", "db"), "0 is not in the range"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_right(
    tmp_path: Path, raftmq: CommandLine, arguments: tuple[str, ...], words: str
) -> None:
    ended = raftmq("cert", "make", "--dir", str(tmp_path / "c"), "--cluster", "c", *arguments)
    assert ended.code == 2
    assert words in ended.stderr
    assert not (tmp_path / "c").exists()


def test_certificates_are_never_overwritten_nor_revoked_by_others(
    tmp_path: Path, raftmq: CommandLine
) -> None:
    common = ("--cluster", "c", "--node", "1", "--host", "db")
    one, two = str(tmp_path / "1"), str(tmp_path / "2")
    raftmq.ok("cert", "make", "--dir", one, *common)
    before = (tmp_path / "1" / "node-1.key").read_bytes()
    again = raftmq("cert", "make", "--dir", one, *common)
    assert again.code == 1
    assert "exists" in again.stderr
    assert "move that file away" in again.stderr
    assert (tmp_path / "1" / "node-1.key").read_bytes() == before
    raftmq.ok("cert", "make", "--dir", two, *common)
    foreign = raftmq("cert", "revoke", "--dir", two, f"{one}/node-1.pem")
    assert foreign.code == 1
    assert "another authority has made it" in foreign.stderr
    before = (tmp_path / "1" / "crl.pem").read_bytes()
    own = raftmq("cert", "revoke", "--dir", one, f"{one}/ca.pem")
    assert own.code == 1
    assert "it is the authority's own" in own.stderr
    assert (tmp_path / "1" / "crl.pem").read_bytes() == before
    (tmp_path / "2" / "crl.pem").unlink()
    without = raftmq("cert", "revoke", "--dir", two, f"{two}/node-1.pem")
    assert without.code == 1
    assert "with its ca.pem and crl.pem" in without.stderr
    (tmp_path / "2" / "ca.pem").unlink()
    again = raftmq.ok("cert", "make", "--dir", two, "--cluster", "c", "--user", "alice")
    assert "warning: " in again.stderr
    assert "ca.key was there before" in again.stderr
    nowhere = raftmq("cert", "revoke", "--dir", str(tmp_path / "3"), f"{one}/node-1.pem")
    assert nowhere.code == 1
    assert not (tmp_path / "3").exists()
    broken = raftmq("cert", "show", f"{one}/node-1.key")
    assert broken.code == 1
    assert "node-1.key holds no certificate" in broken.stderr


@pytest.mark.parametrize(
    "tls",
    [Tls(cert="c"), Tls(cert="c", key="k"), Tls(ca="a"), Tls(crl="r"), Tls(client_certs=True)],
)
def test_half_a_table_of_tls_is_refused(tls: Tls) -> None:
    own = NodeSettings(1, "c", "/d", peers=[Peer(1, "db", 7400)])
    Settings(own, tls=Tls(cert="c", key="k", ca="a")).validate()
    with pytest.raises(ValueError, match=r"all of tls\.cert, tls\.key and tls\.ca"):
        Settings(own, tls=tls).validate()


@pytest.mark.parametrize(
    ("access", "is_under_tls", "why"),
    [
        (Access(is_on=True, admins=["alice"]), False, "needs TLS"),
        (Access(is_on=True), True, r"needs access\.admins"),
        (Access(admins=["alice"]), True, r"do nothing without access\.is_on"),
        (Access(is_open=True), False, r"do nothing without access\.is_on"),
        (Access(is_on=True, admins=["a b"]), True, "'a b' is not a user name"),
    ],
)
def test_half_a_table_of_access_is_refused(access: Access, is_under_tls: bool, why: str) -> None:
    own = NodeSettings(1, "c", "/d", peers=[Peer(1, "db", 7400)])
    tls = Tls(cert="c", key="k", ca="a") if is_under_tls else Tls()
    with pytest.raises(ValueError, match=why):
        Settings(own, tls=tls, access=access).validate()
