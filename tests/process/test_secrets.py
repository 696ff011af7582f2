"""Secrets of a secure cluster in all that it writes and says: logs, errors, tables, files."""

import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import cbor2
import pytest

from raftmq.access.tokens import digest_of, parts_of
from raftmq.log.files import RealFiles
from raftmq.log.inspect import RecordItem, inspect_folder
from raftmq.log.record import Kind
from raftmq.machine.catalog.access import KEY_BYTES
from tests.cli.command_line import Ended, process
from tests.cli.local_cluster import LocalCluster, wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

PASSWORD, OTHER, WRONG = "correct horse battery", "staple under moon", "not the password"


class Said:
    """A cluster whose words are all kept."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.url = cluster.start("-n", "1", "--secure")
        self.folder = folder
        self.texts: list[str] = []

    def run(self, *arguments: str, data: str = "", login: Path | None = None) -> Ended:
        """Run a command as the administrator, or by a login."""
        url = self.url if login is None else re.sub(r"\bcert=[^&]*", f"login={login}", self.url)
        ended = process(arguments, data=data.encode(), environment={"RAFTMQ_URL": url})
        self.texts += [ended.stdout, ended.stderr]
        return ended

    def login(self, name: str, **content: str) -> Path:
        """A login file."""
        path = self.folder / f"{name}.toml"
        path.write_text("".join(f'{key} = "{text}"\n' for key, text in content.items()))
        return path


@pytest.fixture
def said(tmp_path: Path) -> Iterator[Said]:
    (tmp_path / "logins").mkdir()
    with LocalCluster(tmp_path / "cluster") as cluster:
        yield Said(cluster, tmp_path / "logins")


def forms(key: bytes) -> set[str]:
    """A key as programs write keys."""
    return {key.hex(), b64encode(key).decode().rstrip("="), repr(key)[2:-1], str(list(key))}


def test_no_secret_is_in_what_a_cluster_says_and_writes(said: Said, tmp_path: Path) -> None:
    assert said.run("user", "add", "bob", "--password-stdin", data=PASSWORD).code == 0
    made = said.run("token", "make", "bob", "--note", "of the tests")
    token = made.stdout.strip()
    # Its one place: whoever makes a token sees it once.
    said.texts.remove(made.stdout)
    id_, secret = parts_of(token)
    right = said.login("right", user="bob", password=PASSWORD)
    wrong = said.login("wrong", user="bob", password=WRONG)
    by_token = said.login("token", token=token)
    by_none = said.login("none", token=f"raftmq_{id_}_{'A' * 43}")
    broken = said.login("broken", user="bob", passwort=PASSWORD)
    for login in (right, wrong, by_token, by_none, broken):
        said.run("topic", "list", login=login)
        assert said.run("topic", "create", "t", login=login).code == 1
    said.run("user", "password", "bob", "--password-stdin", "--keep-old", "1h", data=OTHER)
    for what in (("user", "list"), ("acl", "list"), ("token", "list"), ("cluster", "status")):
        said.run(*what, "-o", "json")
        said.run(*what)
    said.run("doctor")
    log = said.cluster.folder / "node-1.log"
    wait_until(lambda: "logins failed" in log.read_text(), what="the node notes failed logins")
    data = said.cluster.folder / "node-1"
    for output in ("table", "json"):
        said.run("inspect", str(data), "--records", "-o", output)
    process(["down", "--data", str(said.cluster.folder)])
    said.texts += [
        path.read_text(errors="replace")
        for path in said.cluster.folder.rglob("*")
        if path.is_file()
        and path.suffix in (".log", ".toml", ".json")
        and not path.is_relative_to(data)
    ]
    text = "\n".join(said.texts)
    keys = set(keys_in(data))
    assert digest_of(secret) in keys
    assert len(keys) >= 5, "the digest, and two keys of each password"
    private = private_lines(said.cluster.folder)
    assert len(private) > 3
    secrets = {PASSWORD, OTHER, WRONG, secret, *private}.union(*map(forms, keys))
    assert [each for each in sorted(secrets) if each in text] == []
    assert "put_user" in text, "the inspection shows the commands"
    in_the_data = [
        (path, each)
        for path in data.rglob("*")
        if path.is_file()
        for each in (PASSWORD, OTHER, secret)
        if each.encode() in path.read_bytes()
    ]
    assert in_the_data == []


def keys_in(data: Path) -> Iterator[bytes]:
    """Keys of passwords, digests of tokens and the catalog's key, as the node's logs hold them."""
    for log in sorted(data.glob("groups/*")):
        for item in inspect_folder(RealFiles(), str(log)):
            if isinstance(item, RecordItem) and item.record.kind == Kind.COMMANDS:
                yield from keys_among(cbor2.loads(bytes(item.record.payload)))


def keys_among(value: object) -> Iterator[bytes]:
    if isinstance(value, bytes) and len(value) == KEY_BYTES and any(value):
        yield value
    for each in value if isinstance(value, list | tuple) else ():
        yield from keys_among(each)


def private_lines(folder: Path) -> list[str]:
    """The lines of all private keys."""
    keys = "".join(
        block
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in (".key", ".pem")
        for block in re.findall(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.+?)-----END", path.read_text(), re.DOTALL
        )
    )
    return keys.split()
