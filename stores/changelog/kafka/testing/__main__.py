"""``make kafka``, ``kafka-stop`` and ``kafka-jars``: a broker on loopback that runs until it is stopped."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stores.changelog.kafka.testing.broker import STOP_S, Broker, archive_classes
from stores.changelog.kafka.testing.jars import BROKER, STREAMS, kafka_jars
from stores.errors import ConfigError

COMMANDS = "start or stop the broker, fetch jars, or archive the classes with which brokers start faster"


def main(arguments: list[str] | None = None) -> int:
    """Start or stop the broker in a folder, or fetch jars or archive classes into it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m stores.changelog.kafka.testing", description=__doc__)
    parser.add_argument("command", choices=["start", "stop", "fetch", "classes"], help=COMMANDS)
    parser.add_argument("--folder", type=Path, default=Path(".kafka"), help="the folder of jars and data")
    options = parser.parse_args(arguments)
    folder = options.folder.absolute()
    try:
        if options.command == "fetch":
            for name in (BROKER, STREAMS):
                print(f"Checked: {kafka_jars(folder, name=name)}")
            return 0
        if options.command == "classes":
            archive_classes(folder)
            return 0
        return start(folder) if options.command == "start" else stop(folder)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1


def start(folder: Path) -> int:
    """Start the broker unless it runs, and print its address; the data of the last one is kept."""
    if (running := _running(folder)) is not None:
        print(f"A Kafka broker runs at {running[1]} (process {running[0]}). End it with: make kafka-stop")
        return 0
    broker = Broker(folder / "broker", folder, detached=True)
    broker.start()
    _state(folder).write_text(f"{broker.pid} {broker.address}\n", encoding="ascii")
    print(f"A Kafka broker runs at {broker.address} (process {broker.pid}). End it with: make kafka-stop")
    return 0


def stop(folder: Path) -> int:
    """Stop the broker that ``start`` started in the folder; no effect if none runs."""
    running = _running(folder)
    if running is None:
        print("No Kafka broker runs.")
        return 0
    pid, address = running
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _running(folder) is not None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += STOP_S
        time.sleep(0.1)
    _state(folder).unlink(missing_ok=True)
    print(f"The Kafka broker at {address} has stopped.")
    return 0


def _state(folder: Path) -> Path:
    return folder / "running"


def _running(folder: Path) -> tuple[int, str] | None:
    """Return the process ID and the address of the folder's broker, if it runs: another process may have its ID now."""
    try:
        pid, address = _state(folder).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    listing = subprocess.run(["ps", "-ww", "-o", "command=", "-p", pid], capture_output=True, text=True, check=False)
    ours = str(folder / "broker" / "server.properties") in listing.stdout
    return (int(pid), address) if ours else None


if __name__ == "__main__":
    sys.exit(main())
