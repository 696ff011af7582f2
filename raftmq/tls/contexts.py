"""The contexts of a node and of a client: which versions, which certificates, whom to trust.

A node's contexts follow its files: after `reload` a new certificate, authority or list of revoked
certificates counts for the next connections, without a restart. Files that cannot be used, as in
the middle of a change, leave the contexts before in place, and `problem` says why.

Invariants:
- TLS 1.2 is the lowest version, with forward secrecy and authenticated ciphers; no compression, no
  renegotiation.
- Without a certificate that an authority of `ca` signed, no process is taken for a node.

Sources: RFC 9325 (recommendations for TLS), RFC 5280 §5 (revocation lists).
"""

import errno
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from .names import CertificateName, names_in

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2; the ciphers of 1.3 are all of this kind."""

_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which `ssl` does not name."""

Stamp = tuple[int, int, int]
"""Time of change, size and inode of a file."""


class Files(NamedTuple):
    """The PEM files of a node."""

    cert: str
    """Path of the node's certificate, followed by those of intermediate authorities, if any."""
    key: str
    """Path of the certificate's private key."""
    ca: str
    """Path of the authorities whose certificates nodes and clients show."""
    crl: str = ""
    """Path of the lists of revoked certificates, one of each authority in a chain; empty: none is
    revoked."""


class Pair(NamedTuple):
    """The two contexts of a node."""

    accepting: ssl.SSLContext
    """For connections that others open."""
    connecting: ssl.SSLContext
    """For connections to other nodes."""


class NodeContexts:
    """The contexts of a node, which follow their files.

    Args:
        files: the PEM files.
        holder: the node; another one's certificate is not taken. None: any is.
        clients_need_certificates: refuse, in the handshake, a client that shows no certificate.

    Raises:
        OSError, ssl.SSLError: a file is missing, or holds no such thing; the message names it.
    """

    def __init__(
        self,
        files: Files,
        *,
        holder: CertificateName | None = None,
        clients_need_certificates: bool = False,
    ) -> None:
        self._files = files
        self._holder = holder
        self._needs = clients_need_certificates
        self._stamps = self._look()
        self.doubt = ""
        """Why peers may refuse the node's certificate, for people; empty: there is no doubt."""
        self.ends_ms = 0
        """When the certificate ends, milliseconds since 1970; 0: not known, without a holder."""
        self.pair = self._load()
        """The contexts for the next connections."""
        self.problem = ""
        """Why the files as they are now are not in use, for people; empty: they are."""

    def reload(self) -> frozenset[str]:
        """Take up files that have changed.

        Returns:
            The fields of `Files` whose files have changed; none: no file has, or they cannot be
            used.
        """
        try:
            stamps = self._look()
            changed = frozenset(dict(stamps.items() ^ self._stamps.items()))
            if changed:
                self.pair = self._load()
        except OSError as error:  # an SSLError is an OSError
            self.problem = str(error)
            return frozenset()
        self._stamps, self.problem = stamps, ""
        return changed

    def _look(self) -> dict[str, Stamp]:
        """The stamps of the files, by field."""
        paths = {field: path for field, path in self._files._asdict().items() if path}
        found = {field: os.stat(path) for field, path in paths.items()}
        return {field: (it.st_mtime_ns, it.st_size, it.st_ino) for field, it in found.items()}

    def _load(self) -> Pair:
        accepting = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        accepting.verify_mode = ssl.CERT_REQUIRED if self._needs else ssl.CERT_OPTIONAL
        # A resumed session shows no certificate. Sessions of TLS 1.2 can be resumed without a
        # ticket as well: `sockets.handshake_step` refuses those.
        accepting.num_tickets = 0
        accepting.options |= ssl.OP_NO_TICKET
        connecting = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        # A node is known by its number and its cluster (`names`), wherever it runs.
        connecting.check_hostname = False
        files = self._files
        for context in (accepting, connecting):
            _load_own(context, files.cert, files.key)
            _load_trusted(context, files.ca, files.crl)
        if self._holder is not None:
            self._check_own(self._holder)
        return Pair(accepting, connecting)

    def _check_own(self, holder: CertificateName) -> None:
        """Look at the node's own certificate as its peers will."""
        files = self._files
        try:
            certificate = _own_certificate(files, trusted=files.cert)
        except ssl.SSLCertVerificationError as error:
            text = f"{files.cert}: no certificate for both ends of a link ({error.verify_message})"
            raise OSError(text) from error
        names = names_in(certificate)
        if holder not in names:
            named = ", ".join(sorted(name.urn for name in names)) or "no node"
            raise OSError(f"{files.cert}: it names {named}, and this node is {holder.urn}")
        self.ends_ms = 1000 * int(ssl.cert_time_to_seconds(certificate["notAfter"]))
        try:
            _own_certificate(files, trusted=files.ca, crl=files.crl)
        except ssl.SSLCertVerificationError as error:
            # Peers may have other authorities, and lists: only they can tell.
            self.doubt = f"by {files.ca} and the lists here it is refused: {error.verify_message}"
        else:
            self.doubt = ""


def client_context(ca: str = "", cert: str = "", crl: str = "") -> ssl.SSLContext:
    """The context of a client. Host names are checked.

    Args:
        ca: path of the authorities that sign the nodes' certificates; empty: those of the system.
        cert: path of the client's own certificate and its private key; empty: none.
        crl: path of the authorities' lists of revoked certificates; empty: none is revoked.

    Raises:
        OSError, ssl.SSLError: a file is missing, or holds no such thing; the message names it.
    """
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    if not ca:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _load_trusted(context, ca, crl)
    if cert:
        _load_own(context, cert, None)
    return context


def _own_certificate(files: Files, *, trusted: str, crl: str = "") -> dict[str, Any]:
    """The node's certificate as its peers receive it, by a handshake of the node with itself, in
    which each end shows it. One that has expired is accepted.

    Args:
        files: the node's files.
        trusted: path of what both ends trust.
        crl: path of the lists of revoked certificates that both look at; empty: none.

    Raises:
        ssl.SSLCertVerificationError: one end refuses it.
    """
    client = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    client.check_hostname = False
    server = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    server.verify_mode = ssl.CERT_REQUIRED
    for context in (client, server):
        _load_own(context, files.cert, files.key)
        _load_trusted(context, trusted, crl)
        # Partial chains: the certificate itself may be what is trusted.
        context.verify_flags |= _NO_CHECK_TIME | ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(back, there)
    far = server.wrap_bio(there, back, server_side=True)
    # A handshake of TLS 1.2 takes five steps, one of 1.3 four: each end stops where it waits.
    for end in (near, far, near, far, near):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return near.getpeercert() or {}


def _hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _load_own(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    with _named(cert, key):
        # Without a password OpenSSL would ask for that of an encrypted key at the terminal.
        context.load_cert_chain(cert, key, password="")


def _load_trusted(context: ssl.SSLContext, ca: str, crl: str) -> None:
    if ca:
        with _named(ca):
            context.load_verify_locations(ca)
    if crl:
        with _named(crl), open(crl, "rb") as lists:
            if b"BEGIN CERTIFICATE" in lists.read():
                # The same call takes certificates, and would trust them as authorities.
                raise OSError(errno.EINVAL, "it holds a certificate, and lists are wanted")
            context.load_verify_locations(crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


@contextmanager
def _named(*paths: str | None) -> Iterator[None]:
    """Name the files in an error, which OpenSSL does not."""
    try:
        yield
    except OSError as error:
        named = " and ".join(path for path in paths if path)
        why = getattr(error, "reason", None) or error.strerror or error
        raise type(error)(error.errno, f"{named}: {why}") from error
