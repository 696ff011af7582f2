"""Settings as `serve` reads them, and the sample files in deploy/."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftmq.broker.settings import NodeSettings, Peer, Settings, listens_elsewhere, load
from raftmq.cli.exits import Failure
from raftmq.cli.node.settings_file import read_settings

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
SAMPLE = DEPLOY / "node.toml"


def uncommented() -> str:
    """The sample with every setting switched on."""
    return re.sub(r"^# (\w+ = )", r"\1", SAMPLE.read_text(), flags=re.MULTILINE)


def fields(kind: Any) -> dict[str, Any]:
    return {field.name: field for field in msgspec.structs.fields(kind)}


def test_sample_is_loadable_as_it_stands() -> None:
    assert load(SAMPLE.read_bytes()).node.id == 1


def test_sample_names_every_setting_and_nothing_else() -> None:
    import tomllib

    tables = tomllib.loads(uncommented())
    assert set(tables) == set(fields(Settings))
    for table, field in fields(Settings).items():
        assert set(tables[table]) == set(fields(field.type)), table


def test_sample_shows_the_defaults() -> None:
    settings = load(uncommented().encode())
    for table in fields(Settings):
        part = getattr(settings, table)
        for name, field in fields(type(part)).items():
            if field.required or name == "peers":
                continue
            default = field.default_factory() if field.default is msgspec.NODEFAULT else None
            expected = field.default if default is None else default
            assert getattr(part, name) == expected, f"{table}.{name}"


def test_sample_explains_every_setting() -> None:
    lines = SAMPLE.read_text().splitlines()
    settings = [at for at, line in enumerate(lines) if re.match(r"(# )?\w+ = ", line)]
    for at in settings:
        above = lines[at - 1]
        assert above.startswith("# "), lines[at]
        assert not re.match(r"# \w+ = ", above), f"{lines[at]}: no words above it"


def test_set_replaces_settings_of_the_file() -> None:
    settings = read_settings(SAMPLE, ("node.id=2", "raft.tick_ms = 50", "node.host=10.0.0.2"))
    assert (settings.node.id, settings.raft.tick_ms, settings.node.host) == (2, 50, "10.0.0.2")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("node.id=0", "--set node.id=0: Expected `int` >= 1"),
        (
            "node.prot=1",
            "--set node.prot=1: there is no setting in [node] prot; did you mean port?",
        ),
        ("nod.port=1", "--set nod.port=1: there is no table nod; did you mean node?"),
        ("raft.tick_ms=fast", "--set raft.tick_ms=fast: Expected `int`, got `str`"),
        ("raft.election_ticks=3", "raft.heartbeat_ticks"),
        ("node.id=9", "node.peers"),
        ("port=7400", "TABLE.NAME=VALUE"),
        ("node.port", "TABLE.NAME=VALUE"),
    ],
)
def test_wrong_setting_is_refused_and_named(override: str, words: str) -> None:
    with pytest.raises(Failure) as caught:
        read_settings(SAMPLE, (override,))
    assert words in str(caught.value)
    assert "docs/reference/settings.md" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[acces]\nis_on = true\n", "there is no table acces; did you mean access?"),
        ("[access]\nis_onn = true\n", "no setting in [access] is_onn; did you mean is_on?"),
        ("[tls]\nzzz = 1\n", "no setting in [tls] zzz; there are cert, key, ca, crl,"),
        ("id = 1\n", "there is no table id; there are node, raft,"),
        ("tls = 1\n", "Expected `object`, got `int` - at `$.tls`"),
    ],
)
def test_wrong_name_in_the_file_is_refused_with_the_one_that_is_meant(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text + '[node]\nid = 1\ncluster = "c"\ndata = "d"\n')
    with pytest.raises(Failure) as caught:
        read_settings(path, ())
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("[node\n")
    with pytest.raises(Failure, match="line 1"):
        read_settings(path, ())


def test_compose_nodes_load_with_their_overrides() -> None:
    commands = re.findall(
        r"^ +serve -c (\S+) (.*)$", (DEPLOY / "compose.yaml").read_text(), re.MULTILINE
    )
    assert len(commands) == 3
    nodes = []
    for _, options in commands:
        overrides = tuple(re.findall(r"--set (\S+)", options))
        nodes.append(read_settings(DEPLOY / "node.docker.toml", overrides).node)
    assert [node.id for node in nodes] == [1, 2, 3]
    assert [peer.host for peer in nodes[0].peers] == [node.host for node in nodes]
    assert {node.data for node in nodes} == {"/var/lib/raftmq"}


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "raftmq.service"
    text = (DEPLOY / "raftmq.service").read_text()
    # With the line for TLS, whose copy the page of security names.
    text = text.replace("#LoadCredential=node.key:", "LoadCredential=node.key:")
    assert "\nLoadCredential=" in text
    page = (DEPLOY.parent / "docs/security.md").read_text()
    assert '`key = "/run/credentials/raftmq.service/node.key"`' in page
    unit.write_text(text.replace("/opt/raftmq/bin/raftmq", sys.executable))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert "raftmq.service" not in done.stderr, done.stderr


def test_serve_refuses_python_without_assertions() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "raftmq", "serve", "-c", str(SAMPLE)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "assertions" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("[limits]\nframe_bytes_max = 8_388_608\n", ("limits.frame_bytes_max", "batch_bytes_max")),
        (
            "[raft]\nmessage_bytes_max = 41_943_040\n",
            ("limits.frame_bytes_max", "raft.message_bytes_max"),
        ),
        (
            "[raft]\ninflight_bytes_max = 1_000_000\n",
            ("raft.inflight_bytes_max", "raft.message_bytes_max"),
        ),
        ("[limits]\nbatch_bytes_max = 1024\nframe_bytes_max = 655_360\n", ("frame_bytes_max",)),
    ],
)
def test_sizes_that_would_let_no_follower_catch_up_are_refused(
    table: str, names: tuple[str, ...]
) -> None:
    text = SAMPLE.read_text()
    (name,) = re.findall(r"\[\w+\]\n", table)
    assert name in text
    with pytest.raises(ValueError, match=".*".join(map(re.escape, names))):
        load(text.replace(name, table).encode())


@pytest.mark.parametrize(
    ("founders", "replicas", "is_taken"),
    [(1, 3, True), (2, 3, True), (3, 4, False), (3, 5, False), (5, 5, True), (5, 6, False)],
)
def test_more_copies_than_founders_are_refused(
    founders: int, replicas: int, *, is_taken: bool
) -> None:
    """The default of three stands for one of each founder if these are fewer."""
    peers = ", ".join(f'{{ id = {n}, host = "h", port = {n} }}' for n in range(1, founders + 1))
    text = f'[node]\nid = 1\ncluster = "c"\ndata = "d"\nhost = "h"\nport = 1\npeers = [{peers}]\n'
    if is_taken:
        load(f"{text}replicas = {replicas}\n".encode())
    else:
        with pytest.raises(ValueError, match=rf"node.replicas \({replicas}\).*node.peers"):
            load(f"{text}replicas = {replicas}\n".encode())


@pytest.mark.parametrize(
    ("host", "port", "is_told"),
    [("h", 1, False), ("0.0.0.0", 1, False), ("::", 1, False), ("i", 1, True), ("h", 2, True)],
)
def test_founder_that_listens_elsewhere_than_its_row_is_told(
    host: str, port: int, *, is_told: bool
) -> None:
    own = NodeSettings(1, "c", "d", host, port, peers=[Peer(1, "h", 1), Peer(2, "h", 3)])
    assert bool(listens_elsewhere(own)) is is_told
    assert not listens_elsewhere(msgspec.structs.replace(own, peers=[], join=own.peers))
