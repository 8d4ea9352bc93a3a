"""A run with its rows, and the figures, the failures and the pages of all experiments from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.experiment import RATIO, Failure, Rows
from harness.experiments.registry import experiments, kinds
from harness.report import text
from harness.report.coverage import coverage_sentence, sentence_of, summary_of
from harness.report.figures import Figure, Figures
from harness.report.page import Page
from harness.report.ratios import ratios
from harness.report.rows import FACTS_FILE, read_all, read_facts
from stores.errors import ConfigError

FIRST = ("crashes", "io-faults", "throughput", "stores", "latency", "opening", "memory")
"""The pages that come before all others, in order."""
_FACTS = {"profile", "seed", "started"}
_ENVIRONMENT = {"cpu", "memory_bytes", "disk", "kernel", "python", "java", "libraries", "packages", "backends"}
"""The facts of a run, and the parts of its environment, that the pages use."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that came to its end: its settings, its machine, and its rows by kind."""

    folder: Path
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: Rows


def finished_run(folder: Path) -> FinishedRun:
    """Read a run. Raises: ConfigError if the folder is not that of a run, or the run has no end."""
    facts = read_facts(folder)
    environment = facts.pop("environment", None)
    if environment is None:
        raise ConfigError(f"the run in {folder} was given up before its end: there is nothing to report")
    lacking = _FACTS - facts.keys()
    lacking |= (_ENVIRONMENT - environment.keys()) if isinstance(environment, dict) else {"environment"}
    if lacking:
        raise ConfigError(
            f"{folder / FACTS_FILE} lacks {', '.join(sorted(lacking))}: it is damaged, or of another version "
            "of the harness, which can report the run"
        )
    return FinishedRun(folder, facts, environment, read_all(folder, kinds()))


def left_out_of(facts: Mapping[str, Any]) -> str:
    """Return a sentence for the first page about all that a run left out, from its facts; "" for nothing."""
    return summary_of(facts, {name: each.words or each.title for name, each in experiments().items()})


def problems_of(facts: Mapping[str, Any]) -> str:
    """Return a sentence for the first page about what a run could not measure, from its facts; "" for nothing."""
    found = facts.get("problems") or ()
    return f"**{len(found):,} of its measurements failed:** {'; '.join(found)}." if found else ""


def all_figures(rows: Rows) -> dict[str, list[Figure]]:
    """Return the figures of every kind, by kind; an empty list for a kind that was not measured."""
    own = {kind: figures for each in experiments().values() for kind, figures in each.figures(rows).items()}
    return {**own, RATIO: ratios(rows.get(RATIO, ()))}


def all_failures(figures: Figures, rows: Rows) -> list[Failure]:
    """Return each result that fails the run, of every experiment."""
    return [failure for each in experiments().values() for failure in each.failures(figures, rows)]


def all_pages(figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> list[Page]:
    """Return the page of every experiment that has one, also of those that were not measured.

    The pages that a reader looks for first come first.
    """
    made = ((each.name, each.page(figures, rows, facts)) for each in experiments().values())
    pages = [_completed(page, facts, name) for name, page in made if page is not None]
    return sorted(pages, key=lambda page: FIRST.index(page.name) if page.name in FIRST else len(FIRST))


def _completed(page: Page, facts: Mapping[str, Any], name: str) -> Page:
    """Return a page that also says what the run left out of it, and what nights have tried."""
    left_out, covered = sentence_of(facts, name), coverage_sentence(facts, name)
    more = [f"**{left_out}**" if left_out else "", covered]
    absent = f"{page.absent}: {left_out}" if left_out else page.absent
    return replace(page, shows=(*page.shows, *filter(None, more)), absent=absent)


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
