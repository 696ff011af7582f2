"""A MariaDB server of a test's own, which keeps a binary log."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

INSTALL = "apt-get install mariadb-server"
SERVER_USER = "mysql"
"""Of the system, as Debian's package makes it."""
START_SECONDS_MAX = 60.0


@contextmanager
def mariadb(*settings: str) -> Iterator[Path]:
    """The socket of a new server, where root of the database needs no password; it is gone at the
    end. `settings` are as `binlog_format=ROW`.

    As root of the system it runs as the user that Debian's package made for it, and all of it is in
    a folder of that user. It listens on a socket in there and nowhere else.
    """
    found = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
    maker = shutil.which("mariadb-install-db")
    if found is None or maker is None:
        pytest.skip(f"there is no MariaDB server here: {INSTALL}")
    folder = Path(tempfile.mkdtemp(prefix="raftmq-my-"))
    how: dict[str, Any] = {"cwd": folder}
    if os.geteuid() == 0:
        shutil.chown(folder, SERVER_USER, SERVER_USER)
        how |= {"user": SERVER_USER, "group": SERVER_USER, "extra_groups": []}
    try:
        command = [maker, "--no-defaults", f"--datadir={folder}/data", "--skip-test-db"]
        command += ["--auth-root-authentication-method=normal", "--skip-name-resolve"]
        made = subprocess.run(command, capture_output=True, text=True, **how)
        assert made.returncode == 0, made.stdout + made.stderr
        command = [found, "--no-defaults", f"--datadir={folder}/data", "--skip-networking"]
        with running([*command, *(f"--{setting}" for setting in settings)], folder, how):
            yield folder / "socket"
    finally:
        shutil.rmtree(folder)


@contextmanager
def running(command: list[str], folder: Path, how: dict[str, Any]) -> Iterator[None]:
    """Inside, a server of MariaDB or MySQL runs and answers on `folder/socket`; `how` goes to the
    process."""
    log = folder / "log"
    command = [*command, f"--socket={folder}/socket", f"--pid-file={folder}/pid"]
    command += ["--innodb-buffer-pool-size=16M", "--server-id=1"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, **how) as server:
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not _answers(folder / "socket"):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield
        finally:
            # At once: its last writes are of no use.
            server.send_signal(signal.SIGKILL)


def _answers(socket: Path) -> bool:
    import pymysql

    if not socket.exists():
        # pymysql leaves a socket open that did not connect.
        return False
    try:
        pymysql.connect(unix_socket=str(socket), user="root").close()
    except pymysql.err.OperationalError:
        return False
    return True
