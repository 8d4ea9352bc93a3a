"""One Kafka broker as a process of this machine: started, stopped, killed, and started again on the same data."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import randbelow
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self
from uuid import uuid4

from stores.changelog.kafka.testing.jars import kafka_jars
from stores.errors import ConfigError
from stores.java import find_java

READY_S = 600.0
"""A broker is ready after some 5 seconds; on a busy machine it may take many times that."""
STOP_S = 120.0
HEAP = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A broker that starts fast and takes little memory. For measurements leave the compiler its second stage."""
CLASSES = "broker-classes.jsa"
"""The file with the broker's classes, parsed and verified: with it a broker starts in half the processor time."""

_GUARD = '"$@" </dev/null >>"$0" 2>&1 & echo $!; read -r _; kill -KILL $! 2>/dev/null; wait'
"""A shell that ends the broker when the standard input ends, and so when the process that started it has died."""

_SERVER = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=CONTROLLER://127.0.0.1:{controller},{bound}
advertised.listeners={advertised}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocols}
log.dirs={data}/logs
auto.create.topics.enable=false
log.retention.ms=-1
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
group.consumer.min.session.timeout.ms=500
group.consumer.session.timeout.ms=10000
group.consumer.min.heartbeat.interval.ms=100
group.consumer.heartbeat.interval.ms=300
broker.session.timeout.ms=3600000
broker.heartbeat.interval.ms=500
"""
"""Records stay, whatever their age: tests send old ones, and a broker removes those half a minute after its start. A
machine that stalls for a while takes no partition from its broker. With the protocol ``consumer`` the times of members
are the broker's (KIP-848): the shortest that it takes, and those of the workers of tests.
"""
_DUPLICATE = b"DUPLICATE_BROKER_REGISTRATION"
"""The controller's answer to a broker that was killed and started again: the session of the earlier one is not over."""
_UNREGISTER = struct.pack(">ihhihbib", 16, 64, 0, 0, -1, 0, 1, 0)
"""The request to forget the broker 1. Source: Kafka's protocol guide, "UnregisterBroker Request (Version: 0)"."""
_formatted: dict[Path, dict[str, bytes]] = {}
"""The files of a data folder that Kafka's tool has made, by the folder of the jars."""
_PORT_MIN, _NUM_PORTS = 15_000, 15_000
"""The ports of brokers. Linux gives those from 32,768 on (ip(7), ``ip_local_port_range``)."""
_given_ports: set[int] = set()
_IDS = re.compile(rb"^(cluster|directory|node)\.id=.*$", re.MULTILINE)
"""The entries of a data folder that are IDs."""
_LISTENERS = re.compile(r"^listeners=(.+)$", re.MULTILINE)
_LISTENER = re.compile(r"(\w+)://127\.0\.0\.1:(\d+)")
_LOG4J = """\
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=info
logger.lifecycle.name=kafka.server.BrokerLifecycleManager
logger.lifecycle.level=info
logger.lifecycle44.name=org.apache.kafka.server.BrokerLifecycleManager
logger.lifecycle44.level=info
"""
"""The manager of a broker's lifecycle has another name in Kafka 4.4. It logs the answer ``_DUPLICATE``."""


class Quorum(NamedTuple):
    """A cluster of brokers, each of which is a controller as well. ``ports`` has those of the controllers, by node.

    Source: KIP-595, ``controller.quorum.voters``.
    """

    cluster_id: str
    ports: Mapping[int, int]


class BrokerListener(NamedTuple):
    """One more address of a broker, under a name of capital letters. ``protocol`` is Kafka's, such as SASL_PLAINTEXT.

    ``advertised_port`` is the port that the broker names to clients, if it is not its own: that of a proxy.
    """

    name: str
    protocol: str = "PLAINTEXT"
    advertised_port: int | None = None


class Broker:
    """A broker whose data is in the folder ``data``. A ``with`` block starts and stops it.

    ``folder`` is where Kafka's jars are kept (``kafka_jars``). The broker ends with the process that started it, unless
    it is ``detached``. Its output is in ``data/broker.log``. ``settings`` are further lines of its server.properties,
    and ``listeners`` its addresses beside the plain one. It is the broker ``node`` of a cluster with ``quorum``, or of
    a cluster of its own. For one thread.
    """

    def __init__(
        self,
        data: Path,
        folder: Path,
        *,
        detached: bool = False,
        java_options: tuple[str, ...] = HEAP,
        settings: str = "",
        listeners: Sequence[BrokerListener] = (),
        node: int = 1,
        quorum: Quorum | None = None,
    ) -> None:
        self.data = data
        self._folder = folder
        self._node, self._quorum = node, quorum
        self._detached, self._java_options, self._settings = detached, java_options, settings
        self._listeners = tuple(listeners)
        self._process: subprocess.Popen[str] | None = None
        self.pid: int | None = None
        """The process ID of the broker's Java, None if it does not run."""
        self.port = self._controller_port = 0
        self.ports: dict[str, int] = {}
        """The ports of the further listeners, by name."""

    @property
    def address(self) -> str:
        """The broker's address, as clients take it in ``bootstrap.servers``.

        It stays the same after a restart. A new object on the same data has it too, unless a port was taken meanwhile.
        """
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker and wait until it answers; create its data at the first start.

        Raises: ConfigError if Java or the jars are missing, or the broker does not start.
        """
        java = find_java("A Kafka broker").program
        jars = kafka_jars(self._folder)
        properties = self.data / "server.properties"
        if not self.port:
            self.data.mkdir(parents=True, exist_ok=True)
            properties.write_text(self._server_properties(_ports_in(properties)) + self._settings, encoding="utf-8")
            (self.data / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        base = [
            str(java),
            *self._java_options,
            *_sharing(self._folder / CLASSES if self._java_options is HEAP else None),
            f"-Dlog4j2.configurationFile={self.data / 'log4j2.properties'}",
            # Java unpacks libraries there, and a killed broker leaves them.
            f"-Djava.io.tmpdir={self.data}",
            "-cp",
            f"{jars}/*",
        ]
        if not (self.data / "logs" / "meta.properties").exists():
            self._format(base, properties, jars)
        log = self.data / "broker.log"
        log.touch()
        begin = log.stat().st_size
        command = [*base, "kafka.Kafka", str(properties)]
        self._launch(command, log)
        self._await_ready(log, begin)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Ask the broker to stop, and wait for its end; kill it after ``timeout_s``. No effect if it does not run."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Kill the broker at once, as a crash would. ``start`` starts it again on the same data and port."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the broker's process in place (SIGSTOP): it keeps its connections, and answers nothing from now on."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)
        # Threads on other processors go on for a moment.
        while set(_states(self.pid, "-L")) - {"T", "Z"}:
            time.sleep(0.01)

    def resume(self) -> None:
        """Continue a paused broker."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGCONT)

    def _server_properties(self, earlier: Mapping[str, int]) -> str:
        """Choose the ports, those of an earlier run if they are free; return the settings of the server."""
        names = ["PLAINTEXT", "CONTROLLER", *(listener.name for listener in self._listeners)]
        has_earlier = earlier.keys() == set(names) and all(map(_is_free, earlier.values()))
        ports = dict(earlier) if has_earlier else dict(zip(names, free_ports(len(names)), strict=True))
        if self._quorum is not None:
            ports["CONTROLLER"] = self._quorum.ports[self._node]
        self.port, self._controller_port = ports["PLAINTEXT"], ports["CONTROLLER"]
        controllers = {self._node: self._controller_port} if self._quorum is None else self._quorum.ports
        self.ports = {listener.name: ports[listener.name] for listener in self._listeners}
        addresses = [(listener, ports[listener.name]) for listener in (BrokerListener("PLAINTEXT"), *self._listeners)]
        return _SERVER.format(
            node=self._node,
            voters=",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items()),
            controller=self._controller_port,
            bound=",".join(f"{listener.name}://127.0.0.1:{port}" for listener, port in addresses),
            advertised=",".join(
                f"{listener.name}://127.0.0.1:{listener.advertised_port or port}" for listener, port in addresses
            ),
            protocols=",".join(f"{listener.name}:{listener.protocol}" for listener, _ in addresses),
            data=self.data,
        )

    def _format(self, base: list[str], properties: Path, jars: Path) -> None:
        """Make the data folder: by Kafka's tool, or like the one that this process has made before, without Java."""
        logs = self.data / "logs"
        cluster_id = new_id() if self._quorum is None else self._quorum.cluster_id
        if jars in _formatted:
            ids = {b"cluster": cluster_id, b"directory": new_id(), b"node": str(self._node)}
            logs.mkdir(parents=True, exist_ok=True)
            for name, content in _formatted[jars].items():
                new = _IDS.sub(lambda found: found[1] + b".id=" + ids[found[1]].encode(), content)
                (logs / name).write_bytes(new)
            return
        formatted = subprocess.run(
            [*base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)],
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        if formatted.returncode != 0:
            raise ConfigError(f"the data folder {self.data} of the Kafka broker can't be made: {formatted.stderr}")
        _formatted[jars] = {each.name: each.read_bytes() for each in logs.iterdir() if each.is_file()}

    def _launch(self, command: list[str], log: Path) -> None:
        if self._detached:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, start_new_session=True
                )
            self.pid = self._process.pid
            return
        self._process = subprocess.Popen(
            ["sh", "-c", _GUARD, str(log), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())

    def _await_ready(self, log: Path, begin: int) -> None:
        deadline = time.monotonic() + READY_S
        has_freed_id = False
        while True:
            output = log.read_bytes()[begin:]
            if b"Kafka Server started" in output and _answers(self.port):
                return
            # One of several brokers tries until its earlier session is over: another one may be the controller.
            if _DUPLICATE in output and not has_freed_id and self._quorum is None:
                has_freed_id = _has_unregistered(self._controller_port)
            if not _runs(self.pid) or time.monotonic() > deadline:
                self.kill()
                last = output.decode(errors="replace").strip().splitlines()[-5:]
                raise ConfigError(f"the Kafka broker in {self.data} did not start: {' / '.join(last)}")
            time.sleep(0.1)

    def _end(self, how: signal.Signals, timeout_s: float = STOP_S) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert self.pid is not None
        try:
            if _runs(self.pid):
                os.kill(self.pid, how)
            deadline = time.monotonic() + timeout_s
            while _runs(self.pid) and time.monotonic() < deadline:
                if self._detached:
                    process.poll()
                time.sleep(0.1)
        finally:
            if process.stdin is not None:
                process.stdin.close()  # The guard kills what is left.
            elif _runs(self.pid):
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            self.pid = None


def archive_classes(folder: Path) -> Path:
    """Return the file with the classes of brokers, made by one that starts and stops if it is not below ``folder``.

    Brokers that have ``folder`` start with it, unless they have Java options of their own. One of another Java, or with
    other jars, ignores it.

    Raises: ConfigError if a broker does not start.
    """
    archive = folder / CLASSES
    if not archive.exists():
        with TemporaryDirectory(prefix=".classes-", dir=kafka_jars(folder).parent) as data:
            written = Path(data, CLASSES)
            broker = Broker(Path(data), folder, java_options=(*HEAP, f"-XX:ArchiveClassesAtExit={written}"))
            broker.start()
            broker.stop(READY_S)
            if written.exists():
                written.replace(archive)
    return archive


def _sharing(archive: Path | None) -> tuple[str, ...]:
    if archive is None or not archive.exists():
        return ()
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def new_id() -> str:
    """Return a new ID of a cluster or of a folder, as Kafka writes it: 16 random bytes in Base64.

    Source: Kafka, ``Uuid.randomUuid``, which also avoids a first character that looks like an option.
    """
    while (new_id := urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return new_id


def _runs(pid: int | None) -> bool:
    """Return True if the process exists and is not only waiting to be reaped."""
    if pid is None:
        return False
    return _states(pid) not in ([], ["Z"])


def _states(pid: int, *options: str) -> list[str]:
    """Return the state of a process that exists, or of each of its threads with the option -L. Source: ps(1)."""
    command = ["ps", *options, "-o", "state=", "-p", str(pid)]
    return [line[:1] for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _has_unregistered(port: int) -> bool:
    """Let the controller forget the killed broker, so that nobody waits for its session; return False if it is away."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=READY_S) as controller:
            controller.sendall(_UNREGISTER)
            return bool(controller.recv(1))
    except OSError:
        return False


def _ports_in(properties: Path) -> dict[str, int]:
    """Return the ports of the listeners in a server.properties, by name; none if there is no such file."""
    if not properties.exists():
        return {}
    [listeners] = _LISTENERS.findall(properties.read_text(encoding="utf-8"))
    return {name: int(port) for name, port in _LISTENER.findall(listeners)}


def _is_free(port: int) -> bool:
    try:
        # With SO_REUSEADDR, as the broker does: connections that have just ended do not keep a port.
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that no process listens on at this moment, and that this process has not given yet.

    Nobody gets one by asking for any port: a broker takes some seconds until it listens, also after a restart.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _PORT_MIN + randbelow(_NUM_PORTS)
        if port not in _given_ports and _is_free(port):
            _given_ports.add(port)
            ports.append(port)
    return ports
