"""The steps in deploy/ install raftmq and run three nodes, on a machine without an index.

The wheel is made of the files that the Dockerfile copies, and of no others. The wheels of what it
needs are packed from this environment, so nothing is downloaded here. Then the command lines of the
compose file and of the systemd unit run as they stand, with paths and addresses of this machine.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from raftmq.cli.node.playground import choose_ports
from tests.cli.local_cluster import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HOSTS = {f"node{n}": f"127.0.0.{n}" for n in (1, 2, 3)}
"""Names of the compose file's network → addresses of this machine."""


def pack(name: str, wheelhouse: Path) -> None:
    """Put an installed distribution back into a wheel."""
    found = metadata.distribution(name)
    tags = re.findall(r"^Tag: (\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    parts = [sorted({tag.split("-")[at] for tag in tags}) for at in range(3)]
    if not all(parts) or found.files is None:
        pytest.skip(f"{name} was not installed from a wheel: there is no way to pack one")
    stem = f"{found.name.replace('-', '_')}-{found.version}"
    records = []
    path = wheelhouse / f"{stem}-{'-'.join('.'.join(part) for part in parts)}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in found.files:
            # Scripts and byte code are made by the installer.
            is_made = ".." in file.parts or file.suffix == ".pyc" or file.name == "direct_url.json"
            if is_made or file.name == "RECORD":
                continue
            data = file.read_binary()
            digest = urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
            wheel.writestr(str(file), data)
            records.append(f"{file},sha256={digest},{len(data)}\n")
        folder = next(file.parts[0] for file in found.files if file.name == "WHEEL")
        wheel.writestr(f"{folder}/RECORD", "".join([*records, f"{folder}/RECORD,,\n"]))


def needed(requirements: list[str]) -> set[str]:
    """All distributions that these requirements lead to, here and now."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name not in names:
            names.add(name)
            waiting += map(Requirement, metadata.requires(name) or ())
    return names


@pytest.fixture(scope="module")
def raftmq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed as deploy/ says."""
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pytest.skip("uv is not in this environment: run the tests with `make test`")
    folder = tmp_path_factory.mktemp("deployed")
    wheelhouse, context, venv = folder / "wheelhouse", folder / "context", folder / "venv"
    wheelhouse.mkdir()
    for line in re.findall(r"^COPY (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        *sources, target = line.split()
        into = context / target.removeprefix("/source").strip("/")
        into.parent.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, into, ignore=ignored)
            else:
                into.mkdir(exist_ok=True)
                shutil.copy(ROOT / source, into)
    build = [str(uv), "build", "--wheel", "--quiet", "--out-dir", str(wheelhouse), str(context)]
    subprocess.run(build, check=True, timeout=120)
    (made,) = wheelhouse.glob("raftmq-*.whl")
    with zipfile.ZipFile(made) as wheel:
        (about,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        requires = re.findall(r"^Requires-Dist: (.+)$", wheel.read(about).decode(), re.MULTILINE)
    for name in sorted(needed(requires)):
        pack(name, wheelhouse)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    install = [str(uv), "pip", "install", "--quiet", "--python", str(venv / "bin/python")]
    unit = (DEPLOY / "raftmq.service").read_text()
    (options,) = re.findall(r"pip install (.*)$", unit, re.MULTILINE)
    subprocess.run([*install, *options.split()], check=True, cwd=folder)
    return venv / "bin/raftmq"


@contextmanager
def running(commands: list[list[str]], folder: Path) -> Iterator[None]:
    """Run nodes as processes, and end each with SIGTERM, after which it must exit with 0."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAFTMQ"))}
    with (folder / "nodes.log").open("wb") as log:
        nodes = [
            subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
            for command in commands
        ]
        try:
            yield
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            assert [node.wait(60) for node in nodes] == [0, 0, 0]
        finally:
            for node in nodes:
                node.kill()
                node.wait()


def exchange(raftmq: Path, addresses: list[str], folder: Path) -> None:
    """Wait until three nodes are well, and send a message through them."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(raftmq), *words, "--url", f"raftmq://{','.join(addresses)}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)

    is_well = "three nodes are well"
    wait_until(lambda: call("cluster", "status").returncode == 0, what=is_well, seconds=150)
    for words in (["topic", "create", "orders"], ["produce", "orders", "hello"]):
        done = call(*words)
        assert done.returncode == 0, done.stderr
    assert call("consume", "orders", "-n", "1").stdout == "hello\n"


def test_nodes_of_the_compose_file_run(raftmq: Path, tmp_path: Path) -> None:
    port = str(choose_ports(1, 20_000, any_port=True)[0])

    def here(text: str) -> str:
        for host, address in HOSTS.items():
            text = text.replace(host, address)
        return text.replace("7400", port)

    settings = tmp_path / "node.toml"
    settings.write_text(here((DEPLOY / "node.docker.toml").read_text()))
    assert f'ENTRYPOINT ["{raftmq.name}"]' in (DEPLOY / "Dockerfile").read_text()
    lines = re.findall(r"^ +(serve -c .*)$", (DEPLOY / "compose.yaml").read_text(), re.MULTILINE)
    commands = []
    for number, line in enumerate(lines, 1):
        words = here(line.replace("/etc/raftmq/node.toml", str(settings))).split()
        more = [f"node.data={tmp_path / str(number)}", f"node.port={port}"]
        commands.append([str(raftmq), *words, "--set", more[0], "--set", more[1]])
    with running(commands, tmp_path):
        exchange(raftmq, [f"{address}:{port}" for address in HOSTS.values()], tmp_path)


def test_nodes_of_the_systemd_unit_run(raftmq: Path, tmp_path: Path) -> None:
    ports = choose_ports(3, 20_000, any_port=True)
    unit = (DEPLOY / "raftmq.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    sample = (DEPLOY / "node.toml").read_text()
    for old, port in zip((7400, 7401, 7402), ports, strict=True):
        sample = sample.replace(f"port = {old} }}", f"port = {port} }}")
    commands = []
    for number, port in enumerate(ports, 1):
        # As its heading says: "then set node.id, host and peers".
        settings = tmp_path / f"node-{number}.toml"
        text = sample.replace("\nid = 1\n", f"\nid = {number}\n")
        text = text.replace("# port = 7400", f"port = {port}")
        settings.write_text(text.replace("/var/lib/raftmq", str(tmp_path / str(number))))
        words = line.replace("/etc/raftmq/node.toml", str(settings)).split()
        assert words[0] == "/opt/raftmq/bin/raftmq"
        commands.append([str(raftmq), *words[1:]])
    with running(commands, tmp_path):
        exchange(raftmq, [f"127.0.0.1:{port}" for port in ports], tmp_path)
