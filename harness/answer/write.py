"""The report of a run, written from its rows: the only module that writes to ``results/``."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

from harness.answer.browser_page import browser_page
from harness.answer.history import HISTORY_FILE, history_text, read_history, with_run
from harness.answer.results import (
    FinishedRun,
    all_failures,
    all_figures,
    all_pages,
    finished_run,
    first_page,
    summary_table,
)
from harness.experiment import Failure
from harness.experiments.registry import kinds
from harness.folders import ROOT, SOURCE
from harness.report.database import write_database
from harness.report.drawing import draw
from harness.report.environment import MACHINE_FILE, machine_page, run_of
from harness.report.figures import Figure
from harness.report.page import BROWSER_PAGE, FIRST_PAGE, Page
from harness.report.rows import missing_columns, read_facts, replace_text
from stores.errors import ConfigError

FIGURES_FILE, ENVIRONMENT_FILE = "figures.jsonl", "environment.json"
RESULTS, README = ROOT / "results", SOURCE / "README.md"
FAILURES = "failures"
"""The folder of a run with a file for each failure."""
TABLE_BEGIN, TABLE_END = "<!-- table -->", "<!-- end of table -->"


def publish(run_folder: Path, results: Path | None = None) -> Path:
    """Write a run's report, to ``results`` if given, and return the path of its first page.

    The report of a whole run goes to the project's ``results/``, and its table into README. The report of a run that
    left something out stays beside its rows. Raises: ConfigError, as ``write_report``.
    """
    if results is None:
        results = RESULTS if read_facts(run_folder).get("whole") else run_folder / "report"
    return write_report(run_folder, results, README if results.absolute() == RESULTS else None)


def add_to_history(run_folder: Path, results: Path = RESULTS) -> Path:
    """Add the line of a whole run to the history in ``results``, and return its file. The report there stays as it is.

    Raises: ConfigError for a run that is not whole, or that has no end, and if the history cannot be read or written.
    """
    run = finished_run(run_folder)
    if not run.facts.get("whole"):
        raise ConfigError(
            f"the run in {run_folder} is not whole, so its figures do not belong in the history: a whole run has all "
            "stages and backends, and at least the budget of its profile"
        )
    figures, _ = _computed(run)
    file = results / HISTORY_FILE
    try:
        results.mkdir(parents=True, exist_ok=True)
        with only_writer(results):
            replace_text(file, history_text(with_run(read_history(file), figures, run.facts, run.environment)))
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): correct that and try again") from error
    return file


def check_results(results: Path | None, *, whole: bool) -> None:
    """Check, before anything is measured, that a run's report can be written. The arguments are as for ``publish``.

    Raises: ConfigError, also for a damaged history in the folder. The folder is not created.
    """
    target = results or (RESULTS if whole else None)
    if target is None:
        return
    existing = next(folder for folder in (target.absolute(), *target.absolute().parents) if os.path.lexists(folder))
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {target} ({error.strerror}): correct that, or name another folder"
        ) from error
    read_history(target / HISTORY_FILE)


def write_report(run_folder: Path, results: Path, readme: Path | None = None) -> Path:
    """Write a run's report into ``results``, and its table between the markers of ``readme``.

    The rows and the figures also go into a SQLite file in the run's folder, for any SQLite tool. Return the path of
    the first page. The same rows give the same files, byte for byte. Pages and plots of an earlier report are replaced
    or removed.

    Raises: ConfigError if a folder is not that of a run, or ``results`` cannot be written.
    """
    run = finished_run(run_folder)
    facts, environment = run.facts, run.environment
    read_history(results / HISTORY_FILE)
    figures, pages = _computed(run)
    try:
        results.mkdir(parents=True, exist_ok=True)
        with only_writer(results), tempfile.TemporaryDirectory(prefix=".report-", dir=results) as scratch:
            new_folder = Path(scratch)
            # Read again: another run may have ended meanwhile, and added its line.
            history = with_run(read_history(results / HISTORY_FILE), figures, facts, environment)
            plots = [plot for page in pages if page.body for plot in page.plots]
            plot_files = draw(plots, new_folder)
            _write(new_folder / FIRST_PAGE, first_page(figures, pages, facts, environment, plot_files))
            for page in pages:
                if page.body:
                    _write(new_folder / page.file, page.markdown(f"{run_of(facts)}.", plot_files))
            _write(new_folder / MACHINE_FILE, machine_page(facts, environment))
            _write(new_folder / BROWSER_PAGE, browser_page(figures, pages, facts, environment, history))
            if history:
                _write(new_folder / HISTORY_FILE, history_text(history))
            _write(new_folder / FIGURES_FILE, _lines(figures))
            _write(
                new_folder / ENVIRONMENT_FILE,
                json.dumps({"run": facts, **environment}, indent=2, sort_keys=True) + "\n",
            )
            new = sorted(file.name for file in new_folder.iterdir())
            for name in new:
                os.replace(new_folder / name, results / name)
            for stale in [*results.glob("*.svg"), *(results / page.file for page in pages)]:
                if stale.name not in new:
                    stale.unlink(missing_ok=True)
        if readme is not None and readme.exists():
            table = summary_table(figures, environment["backends"], intervals=False).markdown()
            replace_text(readme, with_table(readme.read_text(encoding="utf-8"), table))
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {results} ({error.strerror}): correct that and "
            "run `python -m harness report`"
        ) from error
    write_database(run_folder, kinds(), run.rows, figures)
    write_failures(run_folder, all_failures(figures, run.rows))
    return results / FIRST_PAGE


def write_failures(run_folder: Path, failures: Sequence[Failure]) -> None:
    """Write each failure into a file of the run's folder ``failures``: its sentence, and the command that repeats it.

    Files of an earlier report are removed. Without failures there is no folder. Raises: ConfigError.
    """
    folder = run_folder / FAILURES
    try:
        shutil.rmtree(folder, ignore_errors=True)
        for number, failure in enumerate(failures, 1):
            folder.mkdir(exist_ok=True)
            _write(folder / f"{number:03}.txt", f"{failure}\n")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror}): correct that and run `make report`"
        ) from error


def _computed(run: FinishedRun) -> tuple[dict[str, list[Figure]], list[Page]]:
    """Return the figures and the pages of a run. Raises: ConfigError if its rows lack columns."""
    # A query takes a column that a file lacks for null.
    if missing := missing_columns(run.folder, kinds()):
        raise ConfigError(
            f"the rows are of another version of the harness, which can report the run: {'; '.join(missing)}"
        )
    figures = {kind: list(map(_rounded, of_kind)) for kind, of_kind in all_figures(run.rows).items()}
    return figures, all_pages(figures, run.rows, run.facts)


@contextmanager
def only_writer(results: Path) -> Iterator[None]:
    """Wait for other processes that write a report into ``results``. The lock is the system's, on the folder itself."""
    descriptor = os.open(results, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def with_table(readme: str, table: str) -> str:
    """Return ``readme`` with ``table`` between its markers; unchanged if it has no markers."""
    between = re.compile(re.escape(TABLE_BEGIN) + ".*?" + re.escape(TABLE_END), re.DOTALL)
    return between.sub(lambda _: f"{TABLE_BEGIN}\n{table}{TABLE_END}", readme, count=1)


def _rounded(figure: Figure) -> Figure:
    """Return a figure with the six digits that are published, so that pages round what everybody else rounds."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in figure.items()}


def _lines(figures: Mapping[str, Sequence[Figure]]) -> str:
    lines = (json.dumps(_as_json(figure), sort_keys=True) for kind in figures for figure in figures[kind])
    return "".join(f"{line}\n" for line in sorted(lines))


def _as_json(figure: Figure) -> Figure:
    # JSON has no infinity and no NaN.
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in figure.items()}


def _write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
