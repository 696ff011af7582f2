"""The peers' programs: fetched into `build/peers`, each once.

    python -m bench.peers.install [kafka rocketmq nats rabbitmq perf-test]

| name | what it is | comes from | checked against |
|---|---|---|---|
| kafka | brokers, Kafka's load tools | Maven Central | Maven's checksums, the digest below |
| rocketmq | brokers, name servers, client; our load, compiled | Maven Central | the same |
| perf-test | RabbitMQ's load tool | Maven Central | the same |
| nats | nats-server, `nats bench` | Go's module proxy | Go's checksum database, the sums below |
| rabbitmq | nodes | Debian, for the whole machine | apt's signatures |

The table names the versions that this file pins. A Maven artifact's pom names the artifacts that it
needs; `digest` covers all of them: it is the SHA-256 of the lines `NAME SHA-256` of the jars.
The environment's RAFTMQ_PEERS names another folder.

Progress goes to stderr, one line for each name to stdout. Exit status: 0 all are there, 1 at least
one could not be had, 2 usage. A second run fetches only what is missing or has another version.

Invariants:
- A name whose recipe changed, or whose digest differs, is not used: its stamp is missing.
- Nothing is fetched but by the ordinary client of each registry.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("RAFTMQ_PEERS", ROOT / "build" / "peers"))
SOURCES = Path(__file__).parent / "java"
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
RABBITMQ_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
_COLUMNS = 90

Say = Callable[[str], None]


class CouldNotBeHad(Exception):
    """The reason why a peer is not there, in one line."""


class Jars(NamedTuple):
    """Artifacts of Maven Central, and the programs of ours that are compiled with them."""

    artifacts: Sequence[str]
    """`group:artifact:version`; the artifacts that they need come along."""
    digest: str
    """The digest of all jars; see the module heading."""
    sources: Sequence[str] = ()
    """Java files of ours."""


class Module(NamedTuple):
    """A program that Go builds."""

    path: str
    version: str
    sum: str
    """Hash of the module's content, as `go.sum` has it. Its go.mod names the modules it needs."""
    package: str = ""
    """Path of the program below the module's."""


SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of programs that no message passes: they start sooner without the second compiler."""
JARS = {
    "kafka": Jars(
        (
            "org.apache.kafka:kafka_2.13:4.4.0",
            "org.apache.kafka:kafka-tools:4.4.0",
            "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5",
        ),
        "322fda72b2e2e888c3b807cd999034086f3929839b3b1f7ebd534e230aac105e",
    ),
    # 5.5.1 is on Maven Central without rocketmq-auth and rocketmq-filter, which its broker needs.
    "rocketmq": Jars(
        tuple(
            f"org.apache.rocketmq:rocketmq-{part}:5.5.0"
            for part in ("namesrv", "broker", "controller", "tools", "client")
        ),
        "f213ca07fbb8cd8b80a6d6778885e9b6b0ddb44e2596911d7bddb521568ccfef",
        ("Many.java", "Meter.java", "Ordered.java", "RocketLoad.java", "WarmUp.java"),
    ),
    "perf-test": Jars(
        ("com.rabbitmq:perf-test:2.22.1",),
        "4e2e5b70e9d8ef92c241645a0a3104b199399cd868937976d2b32ea19738a0ef",
    ),
}
MODULES = (
    Module(
        "github.com/nats-io/nats-server/v2",
        "v2.15.2",
        "h1:yLsgt2kslgymvxvjFq1WGWck5hkat2YYfbXvQ145tzU=",
    ),
    Module(
        "github.com/nats-io/natscli",
        "v0.5.0",
        "h1:3DTd7Lt3GmaOxrB9V1upxE28JSu9bqa3QmsvadOsAkM=",
        "/nats",
    ),
)
NAMES = ("kafka", "rocketmq", "nats", "rabbitmq", "perf-test")


def program(name: str) -> str | None:
    """Path of a program: of the folder, else of the machine; None: neither has it."""
    return shutil.which(name, path=f"{FOLDER / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")


def class_path(name: str) -> str:
    """Java's class path for an entry of `JARS`."""
    return f"{FOLDER / name / 'classes'}:{FOLDER / name / 'jars'}/*"


def why_missing(name: str) -> str | None:
    """None if an entry of `JARS` is installed and can run, else one line that says what to do."""
    if shutil.which("java") is None:
        return f"{name} needs Java: apt-get install -y --no-install-recommends default-jdk-headless"
    if not _is_stamped(name, _recipe(name)):
        return f"{name} is not installed: .venv/bin/python -m bench.peers.install {name}"
    return None


def main(arguments: list[str]) -> int:
    """Install the named peers, or all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.install", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(NAMES):
        parser.error(f"unknown {sorted(unknown)}; there are {', '.join(NAMES)}")
    errors = Console(stderr=True)
    missing = 0
    for name in chosen.names or NAMES:
        try:
            with errors.status(name) as status:
                line = install(name, lambda text, n=name: status.update(f"{n} · {escape(text)}"))  # type: ignore[misc]
        except CouldNotBeHad as reason:
            missing += 1
            line = f"could not be had: {reason}"
        print(f"{name}: {line}", flush=True)
    return 1 if missing else 0


def install(name: str, say: Say) -> str:
    """Bring one peer here; returns one line about it. Raises `CouldNotBeHad`."""
    if name == "rabbitmq":
        return _install_rabbitmq(say)
    recipe = _recipe(name)
    if _is_stamped(name, recipe):
        return "is there"
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    if name == "nats":
        for module in MODULES:
            _build(module, say)
    else:
        _fetch_jars(folder, JARS[name], say)
    (folder / "installed").write_text(recipe)
    return f"is in {folder}"


def _recipe(name: str) -> str:
    """All that decides about the installed files; a changed recipe installs them again."""
    if name == "nats":
        return f"{MODULES}"
    return "\n".join([f"{JARS[name]}", *((SOURCES / n).read_text() for n in JARS[name].sources)])


def _is_stamped(name: str, recipe: str) -> bool:
    stamp = FOLDER / name / "installed"
    return stamp.exists() and stamp.read_text() == recipe


def _fetch_jars(folder: Path, wanted: Jars, say: Say) -> None:
    (folder / "pom.xml").write_text(_pom(folder.name, wanted.artifacts))
    jars = folder / "jars"
    shutil.rmtree(jars, ignore_errors=True)
    command = ["mvn", "-B", "--strict-checksums", "-f", str(folder / "pom.xml"), DEPENDENCY_PLUGIN]
    _run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={jars}"], say)
    lines = [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted(jars.iterdir())
    ]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    if digest != wanted.digest:
        raise CouldNotBeHad(f"the digest of its {len(lines)} jars is {digest}: other files came")
    if wanted.sources:
        sources = [str(SOURCES / each) for each in wanted.sources]
        classes = folder / "classes"
        _run(["javac", "-nowarn", "-d", str(classes), "-cp", f"{jars}/*", *sources], say)


def _pom(name: str, artifacts: Sequence[str]) -> str:
    fields = ("groupId", "artifactId", "version")
    dependencies = "".join(
        "<dependency>"
        + "".join(f"<{f}>{v}</{f}>" for f, v in zip(fields, each.split(":"), strict=True))
        + "</dependency>\n"
        for each in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        f"<groupId>raftmq.bench</groupId><artifactId>{name}</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def _build(module: Module, say: Say) -> None:
    """Build a Go program into `bin`."""
    # The local toolchain: go.mod may name a newer one, which the module proxy need not have.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOBIN": str(FOLDER / "bin")}
    at = f"{module.path}@{module.version}"
    answer = _run(["go", "mod", "download", "-json", at], say, environment)
    found = json.loads(answer[answer.index("{") :])["Sum"]
    if found != module.sum:
        raise CouldNotBeHad(f"the sum of {at} is {found}: another module came")
    package = f"{module.path}{module.package}@{module.version}"
    _run(["go", "install", package], say, environment)


def _install_rabbitmq(say: Say) -> str:
    if (RABBITMQ_SCRIPTS / "rabbitmq-server").exists():
        return "is there (Debian's package)"
    command = ["apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server"]
    if os.geteuid() != 0:
        raise CouldNotBeHad(f"only root can run: {' '.join(command)}")
    _run(["apt-get", "update"], say)
    _run(command, say, {**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    # The package starts a server of its own, which would take processor time from all systems.
    _run(["service", "rabbitmq-server", "stop"], say)
    return "is there (Debian's package, its service is stopped)"


def _run(command: Sequence[str], say: Say, environment: dict[str, str] | None = None) -> str:
    """Run a client to its end, showing its last line; returns its output."""
    if shutil.which(command[0]) is None:
        raise CouldNotBeHad(f"{command[0]} is not on this machine")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            say(line.strip()[-_COLUMNS:])
    if child.returncode:
        # Maven ends with advice; its first error names the cause.
        complaints = [each for each in lines if "ERROR" in each] or lines[-1:] or [""]
        raise CouldNotBeHad(f"{command[0]} ended with {child.returncode}: {complaints[0].strip()}")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
