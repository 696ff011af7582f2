"""RocketMQ: three replicas of one broker group under three controllers, driven by Java.

Two systems come out of this file:

| name | when a publish is acknowledged (two replicas in sync have it) |
|---|---|
| `rocketmq` | the default, ASYNC_FLUSH: it is in the page cache |
| `rocketmq-fsync` | SYNC_FLUSH: the master has it on disk, too |

Three name servers with a controller in each choose the master of the group; the three brokers copy
its log. RocketMQ has no Python client for its remoting protocol, so the load is a Java program on
the client library (`java/RocketLoad.java`), a child that prints a sample as one line of JSON.

Sources: rocketmq.apache.org, "Deployment: controller mode"; bin/runbroker.sh (options of the JVM).
"""

import json
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.peers import install
from bench.processes import Clustered, files_max, free_ports, out_of_files, wait_for_port
from bench.system import (
    CREATE_SECONDS_MAX,
    PROBE_SECONDS_MAX,
    REST_SECONDS,
    SETTLE_SECONDS,
    Sample,
    Unsupported,
)
from bench.warm_up import READS, SENDS, SINGLES, described

QUEUES = 6
START_SECONDS_MAX = 120.0
LOAD_SECONDS_MAX = 200.0
"""Time of a load beside its measurements, at most."""
IN_FLIGHT_MAX = 64
"""Batches in flight, at most: a broker refuses more as busy."""
_JOIN_SOON = [
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.unlockDelayTimeMills=1000",
]
"""Until two consumers share the queues: when they look for each other, and when the first one gives
up the lock of a queue that it has read ahead of; by default 20 s each. No clock runs meanwhile."""
_EXPORTS = "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"
_OPENS = [f"--add-opens=java.base/{p}=ALL-UNNAMED" for p in ("java.nio", "sun.nio.ch", "java.util")]
# By default each server makes keys for TLS at its start, twice; nothing here speaks TLS.
_JVM = ["-server", "-Dtls.server.mode=disabled", _EXPORTS, *_OPENS]


class Rocketmq(Clustered):
    """`System` of three name servers and three brokers; with `is_synced`, `rocketmq-fsync`."""

    def __init__(self, *, is_synced: bool = False) -> None:
        self._is_synced = is_synced
        self.name = "rocketmq-fsync" if is_synced else "rocketmq"
        self._warm_seconds = 0.0
        """Seconds of sends before the measurement."""

    @property
    def version(self) -> str:
        """Version of the servers and of the client library."""
        path = next((install.FOLDER / "rocketmq" / "jars").glob("rocketmq-broker-*.jar"))
        return (
            f"rocketmq {path.stem.rpartition('-')[2]}, rocketmq-client (Java) of the same version"
        )

    @property
    def settings(self) -> str:
        """Replication and durability."""
        flush = "SYNC_FLUSH on the master" if self._is_synced else "ASYNC_FLUSH (page cache)"
        return (
            f"controller mode, 3 replicas, minInSyncReplicas 2, {flush}, {QUEUES} queues, brokers' "
            "heaps of 1 GiB"
        )

    def available(self) -> str | None:
        """None, or what to install."""
        return install.why_missing("rocketmq")

    def produce(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """`window` batches in flight, up to a bound for those of many messages."""
        return self._measure("produce", size, batch, window, seconds)

    def fill(self, *, size: int, batch: int, window: int, messages: int, seconds: float) -> Sample:
        """As `produce`."""
        return self._measure("fill", size, batch, window, seconds, messages=messages)

    def spread(self, *, queues: int, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Queues of one topic. Each is an open file of each broker, which bounds their number."""
        reachable = min(queues, files_max())
        sample = self._measure(
            "spread",
            size,
            batch,
            window,
            seconds,
            queues=reachable,
            create=CREATE_SECONDS_MAX,
            master=self._master,
        )
        is_reached = sample.figures["queues"] == reachable
        return replace(sample, note=out_of_files() if is_reached and reachable < queues else "")

    def waiting(self, *, consumers: int, size: int, probes: int) -> Sample:
        """Queues of one topic, for each of which a push consumer has a pull that waits."""
        return Sample(
            **self._load(
                "waiting",
                PROBE_SECONDS_MAX,
                consumers=consumers,
                size=size,
                probes=probes,
                settle=SETTLE_SECONDS,
                rest=REST_SECONDS,
                seconds=PROBE_SECONDS_MAX,
                master=self._master,
            )
        )

    def single(self, *, size: int, seconds: float) -> Sample:
        """One send in flight."""
        return self._measure("single", size, 1, 1, seconds)

    def consume(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Pull the messages by position."""
        return self._measure("consume", size, batch, window, seconds)

    def pop(self, *, size: int, batch: int, window: int, seconds: float) -> Sample:
        """Pop and acknowledge the messages."""
        return self._measure("pop", size, batch, window, seconds)

    def ordered(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Unsupported."""
        raise Unsupported("an orderly consumer owns queues: in-order-100B")

    def in_order(
        self, *, size: int, batch: int, window: int, fill_seconds: float, seconds: float
    ) -> Sample:
        """Two orderly consumers of a group, each with the lock of half of the queues; a key's
        messages are in the queue of its hash."""
        return self._measure("in-order", size, batch, window, seconds, fill=fill_seconds)

    def leader_pid(self) -> int:
        """The broker that is the master."""
        return self.server_pids[3 + self._brokers.index(int(self._master.rpartition(":")[2]))]

    def send_steadily(self, on_ack: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Synchronous sends to queue 0; the load prints a line for each attempt."""
        child = self._start_load("steadily")
        assert child.stdout is not None
        for line in child.stdout:
            if line == "acknowledged\n":
                on_ack()
            if is_over():
                break
        child.terminate()

    def _measure(
        self, operation: str, size: int, batch: int, window: int, seconds: float, **more: object
    ) -> Sample:
        given: dict[str, object] = {"size": size, "batch": batch, "seconds": seconds, **more}
        for name, bounds in (("warm", SENDS), ("warm-read", READS), ("warm-single", SINGLES)):
            given |= {f"{name}-least": bounds.least, f"{name}-most": bounds.most}
        in_flight = min(window, IN_FLIGHT_MAX) if batch > 1 else window
        answer = self._load(operation, 3 * seconds, window=in_flight, **given)
        sends, reads = answer.pop("warmed")
        # A read of what a produce stored has no sends of its own.
        self._warm_seconds = sends or self._warm_seconds
        settings = f"{answer['settings']}, {described(self._warm_seconds, reads)}"
        return Sample(**{**answer, "settings": settings})

    def _load(self, operation: str, measured: float = 0.0, **given: object) -> dict[str, Any]:
        """Run the load to its end; returns the object that it prints."""
        child = self._start_load(operation, **given)
        try:
            output, _ = child.communicate(timeout=measured + LOAD_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"the load hangs\n{self._cluster.log_tail(f'load-{operation}')}"
            ) from None
        if child.returncode:
            # A server that ended says more than the load that missed it.
            self._cluster.check_alive()
            raise RuntimeError(self._cluster.log_tail(f"load-{operation}"))
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer

    def _start_load(self, operation: str, **given: object) -> "subprocess.Popen[str]":
        options = (
            install.SMALL_JVM if operation == "create" else ["-Xms512m", "-Xmx1g", *_JOIN_SOON]
        )
        return self._cluster.start(
            [
                *("java", *options, f"-Duser.home={self._cluster.folder}"),
                *("-cp", install.class_path("rocketmq"), "RocketLoad", operation),
                *(f"{name}={value}" for name, value in {**given, "names": self._names}.items()),
            ],
            name=f"load-{operation}",
            is_piped=True,
            is_server=False,
        )

    def _start(self) -> None:
        ports = free_ports(9)
        names, controllers, replication = ports[:3], ports[3:6], ports[6:]
        addresses = [f"127.0.0.1:{port}" for port in controllers]
        self._names = ";".join(f"127.0.0.1:{port}" for port in names)
        self._brokers = [_broker_port() for _ in range(3)]
        folder = self._cluster.folder
        for number, port in enumerate(names, 1):
            peers = ";".join(f"n{n}-{address}" for n, address in enumerate(addresses, 1))
            text = _NAMES.format(number=number, port=port, folder=folder, peers=peers)
            self._start_server("namesrv.NamesrvStartup", f"names{number}", text, *install.SMALL_JVM)
        self._wait(*names, *controllers)
        for number, port in enumerate(self._brokers, 1):
            text = _BROKER.format(
                number=number,
                port=port,
                folder=folder,
                replication=replication[number - 1],
                names=self._names,
                controllers=";".join(addresses),
                flush="SYNC_FLUSH" if self._is_synced else "ASYNC_FLUSH",
            )
            heap = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")
            self._start_server("broker.BrokerStartup", f"broker{number}", text, *heap)
        self._wait(*self._brokers)
        self._master = str(self._load("create", queues=QUEUES)["master"])

    def _wait(self, *ports: int) -> None:
        for port in ports:
            wait_for_port(port, self._cluster, seconds_max=START_SECONDS_MAX)

    def _start_server(self, main: str, name: str, text: str, *heap: str) -> None:
        home = self._cluster.folder / f"home-{name}"
        (home / "conf").mkdir(parents=True)
        path = home / "conf" / "server.conf"
        path.write_text(text)
        # The logs go below user.home; the servers look for files of their own in ROCKETMQ_HOME.
        options = [*heap, *_JVM, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        command = ["java", *options, "-cp", install.class_path("rocketmq")]
        self._cluster.start([*command, f"org.apache.rocketmq.{main}", "-c", str(path)], name=name)


def _broker_port() -> int:
    """A free port; a broker listens two below it as well."""
    while True:
        (port,) = free_ports(1)
        try:
            socket.create_server(("127.0.0.1", port - 2)).close()
        except OSError:
            continue
        return port


_NAMES = """\
listenPort = {port}
bindAddress = 127.0.0.1
enableControllerInNamesrv = true
controllerDLegerGroup = bench
controllerDLegerPeers = {peers}
controllerDLegerSelfId = n{number}
controllerStorePath = {folder}/controller{number}
"""

_BROKER = """\
brokerClusterName = raftmq-bench
brokerName = replicas
brokerId = -1
brokerRole = SLAVE
enableControllerMode = true
controllerAddr = {controllers}
namesrvAddr = {names}
brokerIP1 = 127.0.0.1
brokerIP2 = 127.0.0.1
bindAddress = 127.0.0.1
listenPort = {port}
haListenPort = {replication}
storePathRootDir = {folder}/store{number}
storePathCommitLog = {folder}/store{number}/commitlog
storePathEpochFile = {folder}/store{number}/epochFileCheckpoint
flushDiskType = {flush}
totalReplicas = 3
inSyncReplicas = 2
minInSyncReplicas = 2
allAckInSyncStateSet = false
autoCreateTopicEnable = false
# A replica learns the new master's address for replication when it registers at the name servers,
# by default every 30 s, at least every 10 s. The master acknowledges nothing until a replica has
# reported its position: by default it reports every 5 s where there is no message.
registerNameServerPeriod = 10000
haSendHeartbeatInterval = 1000
waitTimeMillsInSendQueue = 5000
maxTransferCountOnMessageInMemory = 4000
maxTransferBytesOnMessageInMemory = 4194304
"""
