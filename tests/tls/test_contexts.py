"""Contexts follow their files, and half a change leaves the ones before in place."""

import os
import socket
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from raftmq.client.tls import refused
from raftmq.errors import Reason, Rejected
from raftmq.tls.authority import Authority, describe
from raftmq.tls.contexts import Files, NodeContexts, client_context
from raftmq.tls.names import USER, CertificateName, names_in, node_name, parse_urn
from raftmq.tls.sockets import Awaits, begin_tls, handshake_step
from tests.tls.certificates import contexts, make_node


def test_contexts_take_versions_from_1_2_and_no_weak_cipher(tmp_path: Path) -> None:
    for context in (*contexts(tmp_path, 1).pair, client_context(str(tmp_path / "ca.pem"))):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        names = [cipher["name"] for cipher in context.get_ciphers()]
        assert names
        assert all("GCM" in name or "CHACHA20" in name for name in names)
        assert all(name.startswith(("TLS_", "ECDHE")) for name in names)


def test_changed_files_count_from_the_next_connection_on(tmp_path: Path) -> None:
    files = make_node(tmp_path, 1)
    own = NodeContexts(files)
    before = own.pair
    assert own.reload() == frozenset()
    assert own.pair is before
    Authority(tmp_path).revoke(Path(files.cert))
    assert own.reload() == {"crl"}
    assert own.pair is not before


def test_files_in_the_middle_of_a_change_leave_the_contexts_before(tmp_path: Path) -> None:
    files = make_node(tmp_path, 1)
    own = NodeContexts(files)
    before = own.pair
    other = make_node(tmp_path, 2)
    os.replace(other.cert, files.cert)
    assert own.reload() == frozenset()
    assert files.cert in own.problem
    assert "mismatch" in own.problem.lower()
    assert own.pair is before
    os.replace(other.key, files.key)
    assert own.reload() == {"cert", "key"}
    assert own.problem == ""
    os.remove(files.ca)
    assert own.reload() == frozenset()
    assert files.ca in own.problem


def test_a_node_takes_no_certificate_of_another(tmp_path: Path) -> None:
    files, holder = make_node(tmp_path, 1), node_name("c", 1)
    own = NodeContexts(files, holder=holder)
    assert own.ends_ms == pytest.approx(1000 * (time.time() + 86_400), abs=60_000)
    other, before = make_node(tmp_path, 2), own.pair
    with pytest.raises(OSError, match="names urn:raftmq:c:node:2, and this node is") as refused:
        NodeContexts(other, holder=holder)
    assert other.cert in str(refused.value)
    # Nor does one that runs: it would be refused by all others at its next start.
    for mine, theirs in ((files.cert, other.cert), (files.key, other.key)):
        os.replace(theirs, mine)
    assert own.reload() == frozenset()
    assert own.pair is before
    assert "node:2" in own.problem


def test_a_certificate_that_the_own_files_refuse_is_taken_and_doubted(tmp_path: Path) -> None:
    files, others = make_node(tmp_path / "a", 1), make_node(tmp_path / "b", 1)
    own = NodeContexts(files, holder=node_name("c", 1))
    assert own.doubt == ""
    # The authority that signed it is given up: what it vouched for must end at once.
    os.replace(others.ca, files.ca)
    os.replace(others.crl, files.crl)
    assert own.reload() == {"ca", "crl"}
    assert "unable to get local issuer certificate" in own.doubt


def test_a_certificate_that_the_own_list_revokes_is_doubted(tmp_path: Path) -> None:
    files = make_node(tmp_path, 1)
    Authority(tmp_path).revoke(Path(files.cert))
    assert "certificate revoked" in NodeContexts(files, holder=node_name("c", 1)).doubt


ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@pytest.mark.parametrize("usage", ENDS)
def test_a_certificate_for_one_end_of_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: x509.ObjectIdentifier
) -> None:
    whole = x509.ExtendedKeyUsage
    monkeypatch.setattr(x509, "ExtendedKeyUsage", lambda _: whole([usage]))
    files = make_node(tmp_path, 1)
    with pytest.raises(OSError, match="for both ends of a link"):
        NodeContexts(files, holder=node_name("c", 1))


def test_a_certificate_whose_time_is_over_is_taken_and_its_end_is_known(tmp_path: Path) -> None:
    files = make_node(tmp_path, 1, days=1e-5)
    time.sleep(1)
    own = NodeContexts(files, holder=node_name("c", 1))
    assert 0 < own.ends_ms < 1000 * time.time()


@pytest.mark.parametrize("field", ["cert", "key", "ca", "crl"])
def test_a_missing_or_wrong_file_is_named(tmp_path: Path, field: str) -> None:
    files = make_node(tmp_path, 1)
    wrong = tmp_path / "wrong"
    with pytest.raises(OSError, match="wrong"):
        NodeContexts(files._replace(**{field: str(wrong)}))
    wrong.write_text("no certificate")
    with pytest.raises(OSError, match="wrong"):
        NodeContexts(files._replace(**{field: str(wrong)}))


def test_an_authority_keeps_keys_to_itself_and_overwrites_none(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "a")
    assert authority.is_new
    alice = CertificateName("my: cluster/1", USER, "alice")
    (path,) = authority.issue(alice, (), days=1)
    node = authority.issue(node_name("my: cluster/1", 1), ["db", "::1"], days=1)
    for secret in (path, node[0], tmp_path / "a" / "ca.key"):
        assert secret.stat().st_mode & 0o777 == 0o600
        assert "PRIVATE KEY" in secret.read_text()
    again = Authority(tmp_path / "a")
    assert not again.is_new
    with pytest.raises(FileExistsError):
        again.issue(alice, (), days=1)
    assert describe(path).names == [alice.urn]
    assert describe(node[1]).hosts == ["db", "::1"]
    assert parse_urn(alice.urn) == alice
    with pytest.raises(ValueError, match="holds no certificate"):
        describe(node[0])


def test_lists_of_two_authorities_stand_in_one_file(tmp_path: Path) -> None:
    """As while one authority takes the place of the other."""
    old, new = make_node(tmp_path / "old", 1), make_node(tmp_path / "new", 2)
    both = Files(old.cert, old.key, str(tmp_path / "ca.pem"), str(tmp_path / "crl.pem"))
    (tmp_path / "ca.pem").write_text(Path(old.ca).read_text() + Path(new.ca).read_text())
    lists = tmp_path / "crl.pem"
    lists.write_text(Path(old.crl).read_text() + Path(new.crl).read_text())
    assert are_friends(NodeContexts(both), NodeContexts(new._replace(ca=both.ca, crl=both.crl)))
    Authority(tmp_path / "new").revoke(Path(new.cert))
    lists.write_text(Path(old.crl).read_text() + Path(new.crl).read_text())
    theirs = NodeContexts(new._replace(ca=both.ca, crl=""))
    assert not are_friends(NodeContexts(both), theirs)
    other = make_node(tmp_path / "old", 3)._replace(ca=both.ca, crl=both.crl)
    assert are_friends(NodeContexts(both), NodeContexts(other))


def are_friends(one: NodeContexts, other: NodeContexts) -> bool:
    """Whether each accepts the certificate of the other."""
    client, server = socket.socketpair()
    for end in (client, server):
        end.setblocking(False)
    near = begin_tls(client, other.pair.connecting, host=None, is_server=False)
    far = begin_tls(server, one.pair.accepting, host=None, is_server=True)
    waits = {near: Awaits.READABLE, far: Awaits.READABLE}
    try:
        while set(waits.values()) != {Awaits.NOTHING}:
            for sock, awaits in waits.items():
                if awaits is not Awaits.NOTHING:
                    waits[sock] = handshake_step(sock)
    except ssl.SSLError:
        return False
    finally:
        near.close()
        far.close()
    return True


def test_a_certificate_among_the_lists_is_trusted_by_no_context(tmp_path: Path) -> None:
    files, other = make_node(tmp_path / "a", 1), make_node(tmp_path / "b", 1)
    with pytest.raises(OSError, match="lists are wanted"):
        NodeContexts(files._replace(crl=other.ca))


def test_an_encrypted_key_is_an_error_and_no_question(tmp_path: Path) -> None:
    files = make_node(tmp_path, 1)
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    Path(files.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(OSError, match=r"node-1\.key"):
        NodeContexts(files)


def test_an_authority_that_was_begun_by_half_is_finished(tmp_path: Path) -> None:
    Authority(tmp_path)
    key = (tmp_path / "ca.key").read_bytes()
    (tmp_path / "ca.pem").unlink()
    assert Authority(tmp_path).is_new
    assert (tmp_path / "ca.key").read_bytes() == key


def test_only_an_authority_itself_revokes_its_certificates(tmp_path: Path) -> None:
    files = make_node(tmp_path / "a", 1)
    make_node(tmp_path / "b", 1)
    with pytest.raises(ValueError, match="another authority"):
        Authority(tmp_path / "b").revoke(Path(files.cert))


def test_names_are_only_those_of_raftmq() -> None:
    alternatives = (
        ("DNS", "urn:raftmq:c:node:1"),
        ("URI", "spiffe://c/node/1"),
        ("URI", "urn:raftmq:c:node:1:2"),
        ("URI", "urn:raftmq:c:king:1"),
        ("URI", "urn:raftmq:%63:node:4"),
        ("URI", "urn:raftmq:c:%6eode:5"),
        ("URI", "urn:raftmq:c%ff:node:6"),
        ("URI", "urn:raftmq:c:node:2"),
    )
    assert names_in({"subjectAltName": alternatives}) == {node_name("c", 2)}
    assert names_in(None) == names_in({}) == frozenset()


def test_client_with_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    import raftmq

    with pytest.raises(Rejected, match="nowhere") as refused:
        raftmq.connect("raftmqs://db", ca=str(tmp_path / "nowhere.pem"))
    assert refused.value.reason is Reason.BAD_ARGUMENT
    with pytest.raises(Rejected, match="raftmqs://"):
        raftmq.connect("raftmq://db", ca=str(tmp_path / "nowhere.pem"))
    assert Files("a", "b", "c").crl == ""


def test_expired_certificate_of_a_node_is_told_with_what_to_do() -> None:
    expired = ssl.SSLCertVerificationError()
    expired.verify_code, expired.verify_message = 10, "certificate has expired"
    told = str(refused(expired, "db:7400"))
    assert told.startswith("the node at db:7400: its certificate is not accepted here: ")
    assert "has expired: the node needs another certificate, unless the clock here is" in told


def test_client_file_without_a_private_key_and_a_path_with_a_tilde_are_told(tmp_path: Path) -> None:
    import raftmq

    files = make_node(tmp_path, 1)
    (alone,) = Authority(tmp_path).issue(CertificateName("c", USER, "alice"), (), days=1)
    for wrong in (files.cert, files.ca):
        with pytest.raises(Rejected, match=r"holds no private key: `cert` names one file") as error:
            raftmq.connect("raftmqs://db", ca=files.ca, cert=wrong)
        assert wrong in str(error.value)
    with pytest.raises(Rejected, match=r"node-1\.key: NO_CERTIFICATE"):
        raftmq.connect("raftmqs://db", ca=files.key, cert=str(tmp_path / "nowhere.pem"))
    with pytest.raises(Rejected, match="`~` is not expanded"):
        raftmq.connect("raftmqs://db?ca=~/ca.pem")
    raftmq.connect("raftmqs://db", ca=files.ca, cert=str(alone))
