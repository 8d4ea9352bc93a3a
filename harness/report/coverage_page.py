"""The page about coverage, and the sentences that open what was proven: all from the rows of the kind."""

from __future__ import annotations

from harness.report import text
from harness.report.coverage import COVERAGE
from harness.report.figures import Figures
from harness.report.listing import Column, Listing, Report, sentence
from harness.report.page import Page

_TRIED = (
    "All runs together have tried {exact(sum(tried))} of {exact(sum(classes))} [classes of points](coverage.md), at "
    "{exact(sum(points))} points, with {exact(sum(kills))} killed processes and {exact(sum(losses))} power losses.",
    "coverage_figure having sum(classes) > 0",
)
_LAST_COMMIT = "substr(max(printf('%9d', number) || commit_hash), 10, 8)"
_RUNS = (
    "Since {min(started)}: runs {exact(count(*))}, seeds {exact(count(distinct seed))}, "
    "hours {printf('%.1f', sum(seconds) / 3600.0)}, commits {exact(count(distinct commit_hash))}, "
    f"the last one {{coalesce(nullif({_LAST_COMMIT}, ''), 'unknown')}}.",
    "coverage_run_figure where number >= (select min(since) from coverage_figure) having count(*) > 0",
)
_OUT = (
    "{exact(sum(taken_out))} classes are out: the code that they depend on has changed since they were tried.",
    "coverage_figure having sum(taken_out) > 0",
)
_FAILED = (
    "{iif(failing, '**', '')}The last failure was of *{failed_class}*, {fault} in `{subject}`"
    "{iif(level = '', '', ' at ' || level)}, in the run of {started}"
    "{iif(passed_since, '; the class passed since', '')}: `{failed_command}`{iif(failing, '**', '')}.",
    "coverage_figure join coverage_run_figure on number = failed_run order by passed_since, failed_run desc limit 1",
)
_NO_FAILURE = (
    "No trial of the {exact(sum(tried))} classes has failed.",
    "coverage_figure having sum(tried) > 0 and count(failed_run) = 0",
)
_SENTENCES = (_TRIED, _RUNS, _OUT, _FAILED, _NO_FAILURE)
_COLUMNS = (
    Column("classes tried", "exact(sum(tried)) || ' of ' || exact(sum(classes))", right=True),
    Column("out: code changed", "sum(taken_out)", text.exact),
    Column("points", "sum(points)", text.exact),
    Column("killed processes", "sum(kills)", text.exact),
    Column("power losses", "sum(losses)", text.exact),
    Column("each tried since", f"coalesce(min(started), '{text.NONE}')"),
    Column("failing", "sum(failing)", text.exact),
)
_SOURCE = "coverage_figure left join coverage_run_figure on number = oldest"
_REPORT = Report(
    (COVERAGE,),
    "coverage",
    "Coverage",
    ("Points at which the same happens are one class. Runs first try classes that none has tried with this code.",),
    (
        Listing(
            "Classes by fault, of all runs together",
            f"{_SOURCE} group by experiment, fault order by experiment, fault",
            (Column("trials", "experiment"), Column("fault"), *_COLUMNS),
            notable="sum(failing)",
        ),
        Listing(
            "Classes by backend or other subject, and fault",
            f"{_SOURCE} group by experiment, subject, fault order by subject, experiment, fault",
            (Column("subject", "'`' || subject || '`'"), Column("trials", "experiment"), Column("fault"), *_COLUMNS),
            notable="sum(failing)",
        ),
    ),
    """\
Runs of every profile but smoke add to `coverage.json`. A class has the trials of one fault in one subject at one level
in which the same thing happens. For an I/O fault that is the step of the writer process, the kind of the I/O operation,
and the call site: the innermost function of the library and the function in C, or, in a thread of an engine, the role
of the file. For power loss it is the step and the files that have changes which are not durable. Some faults have
coarser classes, by kinds of operations or by steps: those in which a second fault follows, and those below DISK. For a
crash trial it is the failpoint or the fault, the guarantee and the kind of store.

The classes of a subject depend on the code of its modules, and of all that these import. If that changes, the classes
are out until they are tried again. Comments and docstrings are no change. *Each tried since* is the time of the run
that tried the oldest of the classes last. The points of a class are drawn by seeds that go on, and add up.
""",
)


def coverage_page(figures: Figures) -> Page:
    """Return the page."""
    return _REPORT.page(figures, absent="no run has tried a class yet", before=_paragraph(figures))


def coverage_sentences(figures: Figures) -> list[str]:
    """Return what all runs have tried together, in some sentences; none if nothing is known."""
    return [words for words in (sentence(figures, *each) for each in _SENTENCES) if words]


def _paragraph(figures: Figures) -> list[str]:
    return [" ".join(coverage_sentences(figures)) + "\n"]
