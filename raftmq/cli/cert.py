"""`raftmq cert`: a private authority in a folder, and the certificates that it makes."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.broker.local_nodes import toml_text
from raftmq.cli.exits import Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import Result, Table, note, with_output
from raftmq.machine.names import why_no_name
from raftmq.tls.local_cluster import DAYS, tls_settings
from raftmq.tls.names import USER, CertificateName, node_name
from raftmq.wire.address import why_no_address

if TYPE_CHECKING:
    from raftmq.tls.authority import Authority

folder_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="certs",
    help="The folder of the authority; it is made if there is none.  [default: certs]",
)


@click.group(cls=HintedGroup)
def cert() -> None:
    """Certificates for TLS: make, revoke and show them.

    \b
    raftmq cert make --cluster production --node 1 --host 10.0.0.1
    raftmq cert make --cluster production --user alice
    """


@cert.command()
@folder_option
@click.option("--cluster", required=True, help="The cluster's id, as in the nodes' settings.")
@click.option("--node", type=click.IntRange(1), help="The number of the node that it is for.")
@click.option("--user", help="The name of the user that it is for.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A name or IP address by which clients reach the node (repeat).",
)
@click.option(
    "--days",
    type=click.FloatRange(0, 3650, min_open=True),
    default=DAYS,
    help=f"How long it is valid.  [default: {DAYS:g}]",
)
def make(
    folder: Path,
    cluster: str,
    node: int | None,
    user: str | None,
    hosts: tuple[str, ...],
    days: float,
) -> None:
    """Make a certificate for a node or a user.

    The first call makes the authority. Keep its `ca.key`: its holder can make nodes and users.
    """
    if (node is None) == (user is None):
        raise click.UsageError("give either --node N or --user NAME")
    if node is not None and not hosts:
        raise click.UsageError("clients check by which host they reach a node: give --host")
    if user is not None and hosts:
        raise click.UsageError("--host is for a node's certificate: leave it out")
    for name_given, what in ((cluster, "cluster"), (user, "user")):
        if name_given is not None and (problem := why_no_name(name_given, what)):
            raise click.UsageError(problem)
    for host in hosts:
        if problem := why_no_address(host, 1):
            raise click.UsageError(problem)
    if node is not None:
        name = node_name(cluster, node)
    else:
        name = CertificateName(cluster, USER, str(user))
    authority = _authority(folder)
    _warn_of_others(folder, cluster)
    try:
        files = authority.issue(name, hosts, days=days)
    except FileExistsError as error:
        fix = "move that file away first: its holder may be using it"
        raise Failure(f"{error.filename} exists", fix=fix) from error
    if authority.is_new:
        note(f"made an authority in {folder}: keep {folder / 'ca.key'} to yourself")
    if authority.had_key:
        note(
            f"warning: {folder / 'ca.key'} was there before. Its list of revoked certificates is "
            "empty now: where nodes have a list of that key already, keep theirs"
        )
    note(f"made {' and '.join(map(str, files))} for {name.urn}")
    if node is not None:
        click.echo(toml_text({"tls": tls_settings(folder.resolve(), node)}), nl=False)


@cert.command()
@folder_option
@click.argument("certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def revoke(folder: Path, certificate: Path) -> None:
    """Put CERTIFICATE on the list of revoked ones, `crl.pem`.

    Copy the list to each node, and to each client whose URL names one with `crl`. A node takes it
    up within a second, and ends all its connections: those that are still trusted connect again.
    """
    from raftmq.tls.authority import OwnCertificate, describe

    try:
        _authority(folder, may_begin=False).revoke(certificate)
    except OwnCertificate as error:
        raise Failure(f"{certificate} cannot be revoked: {error}", fix="") from error
    except (OSError, ValueError) as error:
        fix = "name the folder of the authority that made it, with its ca.pem and crl.pem, by --dir"
        raise Failure(f"{certificate} cannot be revoked: {error}", fix=fix) from error
    holder = ", ".join(describe(certificate).names)
    note(f"revoked {certificate}, of {holder}: copy {folder / 'crl.pem'} to each node and client")


@cert.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@with_output
def show(files: tuple[Path, ...]) -> Result:
    """Show whom certificates are for, how long they are valid, and their serial numbers.

    Of a list of revoked certificates, `crl.pem`, it shows the numbers of those that it revokes.
    """
    from raftmq.tls.authority import describe

    try:
        found = [describe(path) for path in files]
    except ValueError as error:
        raise Failure(str(error), fix="name PEM files of certificates") from error
    rows = [
        (
            it.file,
            ", ".join(it.names) or _PURPOSES[it.kind],
            ", ".join(it.hosts),
            it.until,
            ", ".join(it.serials) or "none",
        )
        for it in found
    ]
    return Result(found, [Table(["!FILE", "FOR", "HOSTS", "VALID UNTIL", "SERIAL"], rows)])


_PURPOSES = {"authority": "authority", "list": "revoked certificates", "certificate": "-"}
"""By kind: what stands for the names of a file that has none."""


def _warn_of_others(folder: Path, cluster: str) -> None:
    """Warn if the folder has certificates, and none of them is of this cluster."""
    from raftmq.tls.authority import clusters_in

    try:
        others = clusters_in(folder)
    except ValueError:
        return  # Another file of such a name is no matter of this certificate.
    if others and cluster not in others:
        names = ", ".join(map(repr, sorted(others)))
        note(f"warning: the certificates in {folder} are of cluster {names}, not {cluster!r}")


def _authority(folder: Path, *, may_begin: bool = True) -> "Authority":
    from raftmq.tls.authority import Authority

    try:
        return Authority(folder, may_begin=may_begin)
    except (OSError, ValueError) as error:
        fix = "name the folder of the authority with --dir"
        raise Failure(f"the authority in {folder} cannot be used: {error}", fix=fix) from error
