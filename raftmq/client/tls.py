"""TLS of a client: the context for its connections, the handshake, and what its failures mean."""

import socket
import ssl
from pathlib import Path

import anyio

from raftmq.access.tokens import may_hold_token
from raftmq.errors import Reason, Rejected
from raftmq.tls.contexts import client_context
from raftmq.tls.sockets import Awaits, TlsSocket, begin_tls, handshake_step

from .address import ClusterUrl, tilde_hint

_SPEAKS_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"))
"""OpenSSL's reasons for bytes that begin no handshake."""

_NOT_ACCEPTED = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client's certificate: give `cert`",
    "SSLV3_ALERT_BAD_CERTIFICATE": "bad certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "unsupported certificate",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "certificate revoked: `cert` has to be another one",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "certificate expired: `cert` has to be another one",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "certificate unknown",
    "TLSV1_ALERT_UNKNOWN_CA": "unknown authority: `cert` has to be of an authority of the cluster",
    "TLSV1_ALERT_ACCESS_DENIED": "access denied",
}
"""OpenSSL's reasons for alerts about a client's certificate, in words."""

_ANOTHER_AUTHORITY = "`ca` is missing, or is the authority of another cluster"
_ANOTHER_HOST = "reach the node by a host of its certificate"
_REMEDIES = {
    3: "the file of `crl` lacks the list of an authority",
    10: "the node needs another certificate, unless the clock here is wrong",
    18: _ANOTHER_AUTHORITY,
    19: _ANOTHER_AUTHORITY,
    20: _ANOTHER_AUTHORITY,
    23: "the node needs another certificate",
    62: _ANOTHER_HOST,
    64: _ANOTHER_HOST,
}
"""What is wrong or would be right, by OpenSSL's code of the verdict on a node's certificate
(`X509_V_ERR_...`): no list of an authority, expired, self-signed (alone, in a chain), no local
issuer, revoked, mismatch of the host (name, IP address)."""


class ClientTls:
    """How a client reaches nodes under TLS.

    Args:
        ca: path of the authorities that sign the nodes' certificates (PEM); empty: the system's.
        cert: path of the client's certificate and private key (PEM); empty: it shows none.
        crl: path of the authorities' lists of revoked certificates (PEM); empty: none is revoked.

    Raises:
        Rejected: `BAD_ARGUMENT`, a file is missing or holds no such thing.
    """

    def __init__(self, ca: str = "", cert: str = "", crl: str = "") -> None:
        try:
            self._context = client_context(ca, cert, crl)
        except OSError as error:  # an SSLError is an OSError
            message = f"TLS cannot begin: {_why_unusable(error, ca, cert, crl)}"
            raise Rejected(Reason.BAD_ARGUMENT, message) from error

    async def secure(self, sock: socket.socket, host: str) -> TlsSocket:
        """Shake hands with the node at the other end; on an error the socket is closed.

        Raises:
            Rejected: `TLS`, the node speaks no TLS, or one end does not accept the other's
                certificate.
            OSError: the connection broke.
        """
        sock.setblocking(False)
        # A certificate has neither the zone of an address nor the dot that ends a name.
        name = host.partition("%")[0].rstrip(".")
        under_tls = sock
        try:
            under_tls = begin_tls(sock, self._context, host=name, is_server=False)
            await _shake_hands(under_tls)
        except BaseException as error:
            under_tls.close()
            sock.close()
            if (refusal := refused(error, host)) is not None:
                raise refusal from error
            raise
        return TlsSocket(under_tls)


def _why_unusable(error: OSError, ca: str, cert: str, crl: str) -> str:
    """Why the files of a client cannot be used, where OpenSSL's words do not say it."""
    why = str(error.strerror or error)
    # OpenSSL has read the file, and names it.
    is_of_cert = isinstance(error, ssl.SSLError) and bool(cert) and why.startswith(f"{cert}: ")
    if is_of_cert and b"PRIVATE KEY" not in Path(cert).read_bytes():
        right = "`cert` names one file with the certificate and its key"
        return f"{cert} holds no private key: {right}"
    return f"{why}{tilde_hint(ca, cert, crl)}"


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    while (awaits := handshake_step(sock)) is not Awaits.NOTHING:
        if awaits is Awaits.READABLE:
            await anyio.wait_readable(sock)
        else:
            await anyio.wait_writable(sock)


def tls_of(url: ClusterUrl, ca: str = "", cert: str = "") -> ClientTls | None:
    """The TLS that a URL asks for; None: it asks for none.

    Args:
        url: the parts of the URL.
        ca: see `ClientTls`; empty: as the URL says.
        cert: see `ClientTls`; empty: as the URL says.

    Raises:
        Rejected: `BAD_ARGUMENT`, a file cannot be used, or is given for a URL without TLS.
    """
    if any(map(may_hold_token, (ca, cert, url.ca, url.cert, url.crl))):
        # Not the text: it is a secret, and errors go to logs.
        message = (
            "`ca`, `cert` and `crl` name files, and one is a token: give raftmq.Login(token=...)"
        )
        raise Rejected(Reason.BAD_ARGUMENT, message)
    if url.is_under_tls:
        return ClientTls(ca or url.ca, cert or url.cert, url.crl)
    if ca or cert:
        message = "`ca` and `cert` are for TLS: write raftmqs:// in the URL"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return None


def refused(error: BaseException | None, where: object) -> Rejected | None:
    """The meaning of an error of TLS; None: the connection may only have broken.

    In TLS 1.3 a node judges the client's certificate after the client's handshake has ended, so its
    refusal comes with the first read.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, "")
        message = error.verify_message.rstrip(".")
        why = f"its certificate is not accepted here: {message}{remedy and f': {remedy}'}"
    elif not isinstance(error, ssl.SSLError) or not error.reason:
        return None
    elif error.reason in _SPEAKS_NO_TLS:
        why = "it speaks no TLS: write raftmq:// for a cluster without it, or see who answers there"
    elif error.reason in _NOT_ACCEPTED:
        why = f"it does not accept this client: {_NOT_ACCEPTED[error.reason]}"
    else:
        return None
    return Rejected(Reason.TLS, f"the node at {where}: {why}")
