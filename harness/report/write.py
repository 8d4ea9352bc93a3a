"""The report of a run, written from its rows: the only module that writes to ``results/``."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.folders import ROOT
from harness.report.document import document
from harness.report.figures import Figure, all_figures
from harness.report.plots import draw
from harness.report.rows import read_all, read_facts, replace_text
from harness.report.tables import summary_table
from stores.errors import ConfigError

REPORT_FILE, FIGURES_FILE, ENVIRONMENT_FILE = "report.md", "figures.jsonl", "environment.json"
RESULTS, README = ROOT / "results", ROOT / "README.md"
TABLE_BEGIN, TABLE_END = "<!-- table -->", "<!-- end of table -->"


def publish(run_folder: Path, results: Path | None = None) -> Path:
    """Write a run's report, to ``results`` if given, and return its path.

    The report of a whole run goes to the project's ``results/``, and its table into README. The report of a run that
    left something out stays beside its rows. Raises: ConfigError, as ``write_report``.
    """
    if results is None:
        results = RESULTS if read_facts(run_folder).get("whole") else run_folder / "report"
    return write_report(run_folder, results, README if results.absolute() == RESULTS else None)


def write_report(run_folder: Path, results: Path, readme: Path | None = None) -> Path:
    """Write a run's report into ``results``, and its table between the markers of ``readme``. Return the report's path.

    The same rows give the same files, byte for byte. Files of an earlier report are replaced.

    Raises: ConfigError if the folder is not that of a run, or ``results`` cannot be written.
    """
    facts = read_facts(run_folder)
    environment = facts.pop("environment", None)
    if environment is None:
        raise ConfigError(f"the run in {run_folder} was given up before its end: there is nothing to report")
    rows = read_all(run_folder)
    figures = all_figures(rows)
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=results) as scratch:
            made = Path(scratch)
            plots = draw(figures, made)
            _write(made / REPORT_FILE, document(figures, rows, facts, environment, plots))
            _write(made / FIGURES_FILE, _lines(figures))
            _write(made / ENVIRONMENT_FILE, json.dumps({"run": facts, **environment}, indent=2, sort_keys=True) + "\n")
            for stale in results.glob("*.svg"):
                stale.unlink()
            for file in sorted(made.iterdir()):
                os.replace(file, results / file.name)
        if readme is not None and readme.exists():
            table = summary_table(figures, environment["backends"]).markdown()
            replace_text(readme, with_table(readme.read_text(encoding="utf-8"), table))
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {results} ({error.strerror}): mend that and "
            "run `python -m harness report`"
        ) from error
    return results / REPORT_FILE


def with_table(readme: str, table: str) -> str:
    """Return ``readme`` with ``table`` between its markers; unchanged if it has no markers."""
    between = re.compile(re.escape(TABLE_BEGIN) + ".*?" + re.escape(TABLE_END), re.DOTALL)
    return between.sub(lambda _: f"{TABLE_BEGIN}\n{table}{TABLE_END}", readme, count=1)


def _lines(figures: Mapping[str, Sequence[Figure]]) -> str:
    lines = (json.dumps(_rounded(figure), sort_keys=True) for kind in figures for figure in figures[kind])
    return "".join(f"{line}\n" for line in sorted(lines))


def _rounded(figure: Figure) -> dict[str, Any]:
    # More digits than were measured only make the lines longer.
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in figure.items()}


def _write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
