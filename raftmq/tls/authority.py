"""A private authority in a folder: it makes certificates for the nodes and users of a cluster.

| in the folder | what | who may have it |
|---|---|---|
| `ca.pem` | the authority's certificate | all nodes and clients: they trust by it |
| `ca.key` | its private key | the person who makes certificates, and no machine of the cluster |
| `crl.pem` | the list of revoked certificates | all nodes and clients |
| `node-1.pem`, `node-1.key` | certificate and private key of node 1 | node 1 |
| `user-alice.pem` | certificate and private key of the user `alice` | `alice` |

Invariants:
- A private key is written to a file that only this user reads. No key and no certificate is
  overwritten.
- The list is valid as long as the authority: an outdated one would stop the cluster.
- Two authorities have different names, and a list names the key that signed it, so that the lists
  of both can stand in one file while one takes the place of the other.

Sources: RFC 5280; NIST SP 800-57 for P-256. Needs the extra `raftmq[cert]`.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .names import NODE, USER, CertificateName, parse_urn

CA, CA_KEY, CRL = "ca.pem", "ca.key", "crl.pem"
"""Names of the authority's own files."""

_LIST = b"-----BEGIN X509 CRL-----"
"""The beginning of a list of revoked certificates in a file."""

AUTHORITY_DAYS = 3650
LEEWAY = timedelta(hours=1)
"""A certificate is valid from this long before it was made: clocks differ."""


class OwnCertificate(ValueError):
    """An authority's own certificate is not revoked."""


class Authority:
    """The authority in a folder.

    Args:
        folder: the folder; see the table of this module.
        may_begin: make an authority if the folder has none.

    Raises:
        OSError: the folder cannot be read or written, or has no authority.
        ValueError: a file holds no certificate or key.
    """

    def __init__(self, folder: Path, *, may_begin: bool = True) -> None:
        self._folder = folder
        self.is_new = may_begin and not (folder / CA).exists()
        """True if this call made it."""
        self.had_key = self.is_new and (folder / CA_KEY).exists()
        """True if this call made it with a key that was there."""
        if self.is_new:
            folder.mkdir(parents=True, exist_ok=True)
            self._found()
        self._certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        self._key = self._read_key()

    def issue(self, name: CertificateName, hosts: Sequence[str], *, days: float) -> list[Path]:
        """Make a certificate: a node's and its key in two files, a user's and its key in one.

        Args:
            name: the holder.
            hosts: names and IP addresses by which clients reach the holder.
            days: how long it is valid.

        Returns:
            The written files.

        Raises:
            FileExistsError: the holder has a certificate in this folder.
            OSError: a file cannot be written; a key that was written before stays, and blocks
                another attempt.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        is_node = name.kind == NODE
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if is_node:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        certificate = (
            self._begun(f"{name.kind} {name.name}", key.public_key(), timedelta(days=days))
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(_alternatives(name, hosts)), critical=False)
            .add_extension(self._key_identifier(), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        if not is_node:
            path = self._folder / f"user-{name.name}.pem"
            _write_new(path, pem + _pem(key))
            return [path]
        own_key, own = (self._folder / f"node-{name.name}{end}" for end in (".key", ".pem"))
        _write_new(own_key, _pem(key))
        _write_new(own, pem, mode=0o644)
        return [own_key, own]

    def revoke(self, certificate: Path) -> None:
        """Put a certificate on the list of revoked ones; nodes follow the file by themselves.

        Raises:
            OwnCertificate: it is the authority's own.
            ValueError: the file holds no certificate, or one that another authority made.
            OSError: a file cannot be read or written.
        """
        revoked = x509.load_pem_x509_certificate(certificate.read_bytes())
        if revoked == self._certificate:
            # Every node would refuse every certificate that it made, and nothing takes this back.
            raise OwnCertificate(
                "it is the authority's own; to replace that, change `ca` on all nodes and clients"
            )
        try:
            revoked.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, TypeError, ValueError) as error:
            raise ValueError("another authority has made it") from error
        before = x509.load_pem_x509_crl((self._folder / CRL).read_bytes())
        row = (
            x509.RevokedCertificateBuilder()
            .serial_number(revoked.serial_number)
            .revocation_date(datetime.now(UTC))
            .build()
        )
        rows = [*(it for it in before if it.serial_number != row.serial_number), row]
        number = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        self._write_list(rows, number=number + 1)

    def _read_key(self) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key((self._folder / CA_KEY).read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{self._folder / CA_KEY} holds a key of another kind")
        return key

    def _found(self) -> None:
        # The certificate is written last. A call that ended before has left a key, which is used.
        if not (self._folder / CA_KEY).exists():
            _write_new(self._folder / CA_KEY, _pem(ec.generate_private_key(ec.SECP256R1())))
        self._key = self._read_key()
        public = self._key.public_key()
        digest = x509.SubjectKeyIdentifier.from_public_key(public).digest.hex()
        name = f"raftmq authority {digest[:16]}"
        begun = self._begun(name, public, timedelta(days=AUTHORITY_DAYS))
        self._certificate = (
            begun.issuer_name(x509.Name([_common(name)]))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_KEY_USAGE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._write_list([], number=1)
        pem = self._certificate.public_bytes(serialization.Encoding.PEM)
        (self._folder / CA).write_bytes(pem)

    def _begun(
        self, common: str, public: ec.EllipticCurvePublicKey, lasting: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([_common(common)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - LEEWAY)
            .not_valid_after(now + lasting)
        )

    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())

    def _write_list(self, rows: Sequence[x509.RevokedCertificate], *, number: int) -> None:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(datetime.now(UTC) - LEEWAY)
            .next_update(self._certificate.not_valid_after_utc)
            .add_extension(self._key_identifier(), critical=False)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for row in rows:
            builder = builder.add_revoked_certificate(row)
        pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        # Renamed into place, as a node may read it at any moment.
        new = self._folder / f"{CRL}.new"
        new.write_bytes(pem)
        new.rename(self._folder / CRL)


class Description(NamedTuple):
    """The facts about a certificate, or about lists of revoked ones."""

    file: str
    names: list[str]
    """The nodes and users that it is for, as URIs."""
    hosts: list[str]
    """The names and addresses by which clients may reach its holder."""
    until: str
    """The end of its validity, in UTC."""
    kind: str
    """`certificate`, `authority` or `list`."""
    serials: list[str]
    """The certificate's serial number, or those that the lists revoke, in hexadecimal digits."""


def describe(path: Path) -> Description:
    """The facts about the certificate in a file, or about its lists of revoked ones.

    Raises:
        ValueError: the file holds neither; the message names it.
    """
    pem = path.read_bytes()
    try:
        if _LIST in pem:
            return _describe_lists(str(path), pem)
        found = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ValueError(f"{path} holds no certificate: {error}") from error
    names: list[str] = []
    hosts: list[str] = []
    kind = "certificate"
    for extension in found.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            for each in extension.value:
                texts = names if isinstance(each, x509.UniformResourceIdentifier) else hosts
                texts.append(str(each.value))
        elif isinstance(extension.value, x509.BasicConstraints) and extension.value.ca:
            kind = "authority"
    serials = [f"{found.serial_number:x}"]
    return Description(str(path), names, hosts, _utc(found.not_valid_after_utc), kind, serials)


def _describe_lists(file: str, pem: bytes) -> Description:
    lists = [x509.load_pem_x509_crl(_LIST + text) for text in pem.split(_LIST)[1:]]
    serials = [f"{each.serial_number:x}" for found in lists for each in found]
    ends = [found.next_update_utc for found in lists if found.next_update_utc is not None]
    return Description(file, [], [], _utc(min(ends)) if ends else "", "list", serials)


def _utc(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")


def clusters_in(folder: Path) -> set[str]:
    """The clusters of the nodes and users that have certificates in a folder.

    Raises:
        ValueError: a file of a node or user holds no certificate.
    """
    files = sorted((*folder.glob(f"{NODE}-*.pem"), *folder.glob(f"{USER}-*.pem")))
    names = [parse_urn(urn) for file in files for urn in describe(file).names]
    return {name.cluster for name in names if name is not None}


_KEY_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""The uses of the authority's key."""


def _common(text: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, text)


def _alternatives(name: CertificateName, hosts: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = [x509.UniformResourceIdentifier(name.urn)]
    for host in hosts:
        try:
            found.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_new(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a new file, by default one that only this user reads."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(data)
