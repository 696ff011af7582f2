"""`raftmq pipeline prepare`: have Spark start in less time on this machine."""

import click

from raftmq.cli.output import note

from .starter import explaining


@click.command()
@click.option("--again", is_flag=True, help="Replace a file that exists.")
def prepare(again: bool) -> None:
    """Keep Spark's classes in a file that Java maps: the first query comes some seconds sooner.

    Runs Spark once on a small cluster of its own, for about a minute. The file (0.2 GB) is for this
    Java and this Spark alone, and every job uses it from then on. Does nothing if it is there.
    """
    from anyio.from_thread import start_blocking_portal

    from raftmq import testing
    from raftmq.pipeline import class_archive, java, spark_home
    from raftmq.pipeline.folders import cache_folder

    with explaining():
        cache = cache_folder()
        found, home = java.find(cache), spark_home.find(cache)
        file = class_archive.kept(found, home, cache)
        if again or not file.exists():
            note("running Spark once, to write its classes down: about a minute")
            with (
                start_blocking_portal("trio") as portal,
                portal.wrap_async_context_manager(testing.cluster(1)) as nodes,
            ):
                class_archive.keep(found, home, cache, nodes.url)
    note(f"kept: {file} ({file.stat().st_size / 1e6:.0f} MB)")
