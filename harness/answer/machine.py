"""The page about the machine and the software of a run, and the line that says where a report comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report import text

MACHINE_FILE = "machine.md"


def origin(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Return the run and the machine in two sentences. ``facts`` are the settings of the run."""
    cpu, disk = environment["cpu"], environment["disk"]
    return (
        f"Generated from the rows of one run: {run_of(facts)}, on {cpu['cores']} cores "
        f"({cpu['model']}), {text.size(environment['memory_bytes'])} of memory, {disk['file_system']}. Nothing in it "
        "is written by hand."
    )


def machine_kind(environment: Mapping[str, Any]) -> str:
    """Return the kind of a machine in one line: figures of different kinds are not compared."""
    cpu, disk = environment["cpu"], environment["disk"]
    memory_gib = round(environment["memory_bytes"] / 2**30)
    return f"{cpu['cores']} cores, {cpu['model']}, {memory_gib} GiB, {disk['file_system']}"


def run_of(facts: Mapping[str, Any]) -> str:
    """Return the profile, the seed and the time of a run."""
    return f"profile {facts['profile']}, seed {facts['seed']}, {facts['started']}"


def machine_page(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    cpu, disk = environment["cpu"], environment["disk"]
    libraries = ", ".join(f"{name} {version}" for name, version in environment["libraries"].items())
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    table = text.table(
        ("what", "is"),
        [
            ("processor", f"{cpu['model']}, {cpu['cores']} cores, {cpu['architecture']}"),
            ("memory", text.size(environment["memory_bytes"])),
            ("disk", f"{disk['kind']}, {disk['file_system']} ({disk['mount_options']})"),
            ("kernel", environment["kernel"]),
            ("Python, Java", f"{environment['python']}, {environment['java']}"),
            ("engines", libraries),
            ("packages", packages),
            ("took", text.duration(facts.get("seconds"))),
        ],
    )
    return "\n".join(
        [
            "# The machine\n",
            f"The machine and the software of one run: {run_of(facts)}. Figures of other machines differ; ratios "
            "within a run say more than numbers do. Every backend's options are in `environment.json`.\n",
            table,
        ]
    )
