"""The page about I/O faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harness.checkers.prefix import Found, demand
from harness.experiments.iofaults.case import (
    ENOUGH,
    IO_FAULTS,
    NOT_TRIED,
    SILENT,
    Loss,
    is_promised,
    is_wrong,
)
from harness.report import text
from harness.report.figures import Figure, Figures
from harness.report.page import Page, PageFinding, Table
from harness.report.rows import Row

KEY = ("durability", "fault", "variant", "backend")
MEASURED = "measured"
"""The wanted result of a mutant that is only measured."""
MUTANTS = "Mutants"
"""The title of their part of the page."""
_APART = (Found.VALID, Found.DETECTED, Found.HARNESS_ERROR)


def operations(rows: Mapping[str, Sequence[Row]]) -> list[Figure]:
    """Return one figure per level, fault, variant and backend.

    ``points`` were explored, of ``points_in_all``. ``distinct`` counts the trials with
    a verdict; for power loss, the crash states among them that differ by paths and bytes. ``lost_at_most`` is the
    largest number of lost commits among whole states. ``lost`` counts the states that should have had more commits.

    ``restored`` were detected and restored. ``silent`` is wrong content that was not detected; ``other`` is any other
    result but valid. ``wrong`` counts the trials that fail the run.

    For corruption at rest, ``by_opening``, ``by_reading`` (or by later commits) and ``by_verifying`` count the steps
    that detected it; the last only if no other step does. ``unverified`` counts the cases of this last kind that harm a
    reader that does not verify: by wrong data, or the end of the process.
    """
    trials = _grouped(rows.get("operation", ()))
    figures = []
    for key, subsets in sorted(_grouped(rows.get("operation_slice", ())).items()):
        own = trials.get(key, [])
        found = Counter(row["result"] for row in own)
        figures.append(
            {
                "kind": "operation",
                **dict(zip(KEY, key, strict=True)),
                "points": sum(row["points"] for row in subsets),
                "points_in_all": sum({row["seed"]: row["points_in_all"] for row in subsets}.values()),
                "states": sum(row["states"] for row in subsets),
                "trials": len(own),
                "distinct": len(
                    {row["digest"] or place for place, row in enumerate(own) if row["result"] != Found.HARNESS_ERROR}
                ),
                "lost_at_most": max((_lost(row) for row in own), default=0),
                "restored": found[Found.DETECTED],
                "torn": found[Found.TORN] + found[Found.PHANTOM],
                "lost": found[Found.LOST],
                "silent": sum(found[result] for result in SILENT),
                "other": sum(number for result, number in found.items() if result not in (*_APART, *SILENT)),
                **_detected(own),
                "no_verdict": found[Found.HARNESS_ERROR],
                "unexpected": sum(not row["expected"] for row in own),
                "wrong": sum(is_wrong(row) for row in own),
                "seconds": sum(row["seconds"] for row in subsets),
                "blind_spots": next((row["blind_spots"] for row in subsets if row["blind_spots"]), ""),
            }
        )
    return figures


def mutants(rows: Iterable[Row]) -> list[Figure]:
    """Return each mutant with the fault that had to detect it, or to miss it, and the number of states tried.

    Mutants that were only measured are left out; see ``detections``.
    """
    figures = [{**row, "kind": "mutant", "result": row["result"] or ""} for row in rows if row["wanted"] != MEASURED]
    return sorted(figures, key=lambda figure: (figure["mutant"], figure["backend"], figure["wanted"], figure["slice"]))


def detections(rows: Iterable[Row]) -> list[Figure]:
    """Return how often the default profile's own trials detected each mutant: one figure per mutant and backend.

    ``runs`` is the number of seeds, ``found`` the number of those at which the mutant was detected.
    """
    made: dict[tuple[str, str, str], list[bool]] = {}
    for row in rows:
        if row["by_gate"] is not None:
            made.setdefault((row["mutant"], row["backend"], row["fault"]), []).append(row["by_gate"])
    return [
        {
            "kind": "detection",
            **dict(zip(("mutant", "backend", "fault"), key, strict=True)),
            "runs": len(found),
            "found": sum(found),
        }
        for key, found in sorted(made.items())
    ]


def fault_findings(figures: Figures) -> tuple[PageFinding, ...]:
    """Return how many states and trials kept their promise, and how many trials of mutants ended as expected."""
    promised = [figure for figure in figures["operation"] if is_promised(figure)]
    tried = sum(figure["distinct"] + figure["no_verdict"] for figure in promised)
    kept = tried - sum(figure["wrong"] for figure in promised)
    mutants_ = [figure for figure in figures["mutant"] if figure["result"] != NOT_TRIED]
    return (
        PageFinding("states and trials of I/O faults", tried, kept, "kept what was promised"),
        PageFinding(
            "trials of mutants",
            len(mutants_),
            sum(figure["expected"] for figure in mutants_),
            "ended as expected: the faults that can detect the mutant do, the others do not",
            MUTANTS,
        ),
    )


def _detected(rows: Sequence[Row]) -> dict[str, int]:
    """Count the detections by step."""
    by = Counter(row["noticed"] for row in rows)
    return {
        "by_opening": by["open"],
        "by_reading": by["read"] + by["afterwards"],
        "by_verifying": by["verify"],
        "unverified": sum(bool(row["unverified"]) for row in rows),
    }


def _lost(row: Row) -> int:
    """Return how many acknowledged commits a whole state lacks."""
    return 0 if row["state"] is None else max(0, int(row["acknowledged"]) - int(row["state"]))


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    return groups


LEVELS = ("DISK", "PROCESS", "CHANGELOG")
_MUTANT = {"found": "detected", "not seen": "passed"}
"""The wanted results of a mutant, as rows have them."""
_SYMPTOMS = {"": "none", "detected": "reported corrupt"}
_SUMMED = ("points", "trials", "torn", "restored", "other", "no_verdict", "unexpected", "wrong", "seconds")
_RESULTS = ("commits lost at most", "torn", "detected and restored", "other", "time of a core")


def promise_table(figures: Figures) -> Table:
    """Return the promise of each level after each fault, with its result."""
    rows = []
    for level in LEVELS:
        for fault, injected in IO_FAULTS.items():
            own = [
                figure
                for figure in figures["operation"]
                if (figure["durability"], figure["fault"]) == (level, fault) and is_promised(figure)
            ]
            if own:
                rows.append(
                    [
                        level,
                        injected.words,
                        _promise(level, injected.promise),
                        text.exact(len({figure["backend"] for figure in own if figure["trials"]})),
                        text.exact(sum(figure["distinct"] for figure in own)),
                        _held(own),
                    ]
                )
    head = ("level", "fault", "what is promised then", "backends and files", "distinct states", "held")
    return Table("What was promised, and whether it held", head, rows, (3, 4))


def power_tables(figures: Figures) -> list[Table]:
    """Return the tables of power loss, one per level: a line per backend and persistence model."""
    tables = []
    for level in LEVELS:
        own = [figure for figure in _after(Loss.UNSYNCED, figures) if figure["durability"] == level]
        rows = [
            [
                f"`{figure['backend']}`",
                figure["variant"] + IO_FAULTS[figure["fault"]].model_suffix,
                _points(figure),
                text.exact(figure["states"]),
                text.exact(figure["distinct"]),
                *_results(figure),
                f"`{figure['blind_spots']}`" if figure["blind_spots"] else text.NONE,
                _held([figure]),
            ]
            for figure in own
        ]
        head = (
            "backend",
            "model",
            "positions",
            "states",
            "distinct",
            *_RESULTS,
            "written unseen",
            "promise held",
        )
        if rows:
            caption = f"Power loss at level {level}"
            tables.append(Table(caption, head, rows, range(2, 10), range(1, 12), _wrong(own)))
    return tables


def process_tables(figures: Figures) -> list[Table]:
    """Return the tables of kills and failing calls, one per level."""
    tables = []
    for level in LEVELS:
        own = _errors_together(figure for figure in _after(Loss.NOTHING, figures) if figure["durability"] == level)
        rows = [
            [
                f"`{figure['backend']}`",
                f"{IO_FAULTS[figure['fault']].words}{': ' if figure['variant'] else ''}{figure['variant']}",
                _points(figure),
                text.exact(figure["trials"]),
                *_results(figure),
                _held([figure]),
            ]
            for figure in own
        ]
        head = (
            "backend",
            "fault",
            "I/O operations",
            "trials",
            *_RESULTS,
            "promise held",
        )
        if rows:
            caption = f"Kills and failing calls at level {level}"
            tables.append(Table(caption, head, rows, range(2, 9), range(1, 10), _wrong(own)))
    return tables


def _after(loss: Loss, figures: Figures) -> list[Figure]:
    return [figure for figure in figures["operation"] if IO_FAULTS[figure["fault"]].loss is loss]


def _errors_together(figures: Iterable[Figure]) -> list[Figure]:
    """Return the figures, with one sum for all kinds of errors of a backend that broke no promise.

    All are of one level.
    """
    alone: list[Figure] = []
    together: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure["fault"] == "error" and not figure["unexpected"]:
            together.setdefault(figure["backend"], []).append(figure)
        else:
            alone.append(figure)
    for own in together.values():
        if len(own) == 1:
            alone += own
            continue
        summed = {name: sum(figure[name] for figure in own) for name in _SUMMED}
        most = max(figure["lost_at_most"] for figure in own)
        alone.append({**own[0], **summed, "lost_at_most": most, "variant": f"in {len(own)} ways"})
    return sorted(alone, key=lambda figure: (figure["fault"], figure["variant"], figure["backend"]))


def damage_table(figures: Figures) -> Table:
    """Return the steps by which each backend detects corruption at rest, and the corruption that it does not detect."""
    own = _after(Loss.AT_REST, figures)
    rows = [
        [
            f"`{figure['backend']}`",
            figure["durability"],
            figure["variant"],
            *(text.exact(number) for number in _damage_counts(figure)),
            _held([figure]),
        ]
        for figure in own
    ]
    head = (
        *("backend", "level", "damage", "trials", "harmless", "detected by opening", "by reading", "by verifying only"),
        *("of these harmful unverified", "an earlier commit, undetected", "wrong, undetected", "other", "promise held"),
    )
    return Table("Corruption at rest", head, rows, range(3, 12), (1, 2, 12), _wrong(own))


def _damage_counts(figure: Figure) -> tuple[int, ...]:
    """Return the numbers of a line of ``damage_table``."""
    failed = figure["other"] + figure["no_verdict"]
    harmless = figure["trials"] - figure["restored"] - figure["silent"] - failed
    detected = (figure["by_opening"], figure["by_reading"], figure["by_verifying"], figure["unverified"])
    return figure["trials"], harmless, *detected, figure["lost"], figure["silent"] - figure["lost"], failed


def mutant_table(figures: Figures) -> Table:
    """Return every mutant with its result, the number of states tried, and the fault that cannot detect it."""
    by_gate = {
        (figure["mutant"], figure["backend"], figure["fault"]): _of(figure["found"], figure["runs"])
        for figure in figures["detection"]
    }
    rows = [
        [
            f"`{figure['mutant']}`",
            figure["meaning"],
            f"`{figure['backend']}`",
            figure["fault"] + (f" ({figure['variant']})" if figure["variant"] else ""),
            _MUTANT.get(figure["wanted"], figure["wanted"]),
            text.NONE
            if figure["result"] == NOT_TRIED
            else _SYMPTOMS.get(figure["result"], figure["result"].replace("_", " ")),
            text.exact(figure["states"]),
            by_gate.get((figure["mutant"], figure["backend"], figure["fault"]), text.NONE),
            NOT_TRIED if figure["result"] == NOT_TRIED else "yes" if figure["expected"] else "**no**",
        ]
        for figure in figures["mutant"]
    ]
    head = (
        *("mutant", "defect", "in", "fault", "should be", "symptom", "after states"),
        *("detected by the default profile", "as expected"),
    )
    missed = [place for place, figure in enumerate(figures["mutant"]) if is_wrong(figure)]
    return Table("Mutants, all at level DISK", head, rows, (6, 7), (8,), missed)


def detection_table(figures: Figures) -> Table:
    """Return the share of runs of the default profile that detected each mutant, over all backends and seeds."""
    rows: list[list[str]] = []
    weak: list[int] = []
    for mutant in dict.fromkeys(figure["mutant"] for figure in figures["detection"]):
        own = [figure for figure in figures["detection"] if figure["mutant"] == mutant]
        found, runs = (sum(figure[name] for figure in own) for name in ("found", "runs"))
        missed = [f"`{figure['backend']}`" for figure in own if figure["found"] < figure["runs"]]
        if found < ENOUGH * runs:
            weak.append(len(rows))
        cells = (text.exact(len(own)), _of(found, runs), f"{100 * found / runs:.0f} %", ", ".join(missed) or text.NONE)
        rows.append([f"`{mutant}`", own[0]["fault"], *cells])
    head = ("mutant", "fault", "built into", "detected", "share", "missed at some seed in")
    return Table("Mutants detected by the default profile, at level DISK", head, rows, (2, 3, 4), (), weak)


def operation_tables(figures: Figures) -> list[Table]:
    """Return all tables that have rows."""
    tables = [promise_table(figures), *power_tables(figures), *process_tables(figures)]
    return [table for table in (*tables, damage_table(figures), mutant_table(figures)) if table.rows]


def left_out(figures: Figures) -> str:
    """Return a sentence with the number of points that were explored, or "" if all were."""
    explored = sum(figure["points"] for figure in figures["operation"])
    in_all = sum(max(figure["points"], figure["points_in_all"]) for figure in figures["operation"])
    if explored == in_all:
        return ""
    return f"{text.exact(explored)} of {text.exact(in_all)} points were tried, drawn by the seed."


def _wrong(figures: Sequence[Figure]) -> list[int]:
    """Return the places of the figures that fail a run."""
    return [place for place, figure in enumerate(figures) if figure["wrong"]]


def _results(figure: Figure) -> list[str]:
    """Return the cells below ``_RESULTS``."""
    counts = (figure["lost_at_most"], figure["torn"], figure["restored"], figure["other"] + figure["no_verdict"])
    return [*(text.exact(count) for count in counts), text.duration(figure["seconds"])]


def _of(found: int, runs: int) -> str:
    return f"{text.exact(found)} of {text.exact(runs)}"


def _points(figure: Figure) -> str:
    explored = text.exact(figure["points"])
    return (
        explored
        if figure["points_in_all"] <= figure["points"]
        else f"{explored} of {text.exact(figure['points_in_all'])}"
    )


def _promise(level: str, fault: str) -> str:
    if fault == "damage":
        return "the last commit, whole, or detected by opening, verifying or reading, and restored"
    demanded = demand(level, fault)
    if demanded.keeps:
        return "every acknowledged commit is there, whole"
    return "a whole commit, or detected and restored"


def _held(figures: Sequence[Figure]) -> str:
    if not any(figure["trials"] for figure in figures):
        return text.NOT_MEASURED
    broken = sum(figure["unexpected"] for figure in figures)
    if broken and not any(figure["wrong"] for figure in figures):
        return f"no: {text.exact(broken)}, reported only"
    return "yes" if not broken else f"**no: {text.exact(broken)}**"


SKIPPED = "operations_skipped"
"""The fact of a run that gives the reason why no I/O fault was tried."""

_HOW = """\
A writer process makes its commits above a library that sees every call which changes a file. The library counts these
I/O operations over all threads. It kills the process before one of them or inside one, or lets one fail.

For power loss, a run without faults is recorded. At every position between two I/O operations, the harness generates
crash states: all durable data, and of the pending writes none, all, and selections. Each distinct crash state is opened
in a process of its own, under a deadline, with another boot ID. A verifier recovers it, reads it whole, writes to it
twice, closes it, opens it and reads it again. It is compared with a model that shares no code with the stores. A state
that was detected as corrupt is restored, and goes through the same steps.

Syncs fail, too, also the one in a write through O_DSYNC. The process is then killed and another one continues. The data
of the failed sync stays pending, whatever is synced later. If it was a folder's sync, *names* refuses every later
operation, as ext4 and xfs do when they lose their journal; *strict* lets the process continue.

A second kill is tried before each I/O operation of a recovery, except those that change nothing that is ever read.
Stores of bytes, of timestamped values, of windows and of sessions take turns over backends and levels. In those of
windows and sessions records expire at every commit.
"""
_MODELS = """\
| persistence model | durable file names |
| --- | --- |
| names | the name of a synced file. Promises are checked against this model at every level |
| journal | those, and with any sync all earlier names, as on ext4 and xfs: fewer crash states are legal |
| strict | only names in a synced folder, as POSIX says. Promises at DISK are checked against this model, too |
| torn-sectors | as names, with garbage behind torn writes and tears at 64 bytes: only undetected wrong content counts |
"""
_DETECTION = """\
The search above ends when the mutant is detected or every point was tried. The default profile tries less: for most
faults it draws some points by the seed, and few states at each. The table below shows how often its trials detect each
mutant. They use the same points, states and variants as for sound code, of the mutant's own fault alone. A run is one
seed in one backend or file. These rates are those of the whole plan: a run that its budget cuts short tries fewer
points, and detects less. Few seeds fit into the time of a run; `python -m harness mutants --seeds 20` tries more.
"""
_NOT_SIMULATED = """\
Not simulated:

* disks that report a sync and have not done it;
* partially written sectors of less than 512 bytes (except in the variant *torn-sectors*);
* blocks that belonged to another file;
* partially written folders;
* metadata that a file system itself corrupts.

Writes through a shared map are not seen: a store that keeps data in one is refused. The files *written
unseen* in the tables are those that engines create again after a crash.

If more than six writes are pending, not every selection of them is tried. Prefixes, each one missing, each one alone,
and selections drawn by the seed are tried; smaller profiles draw some of these at each position. Threads of an engine
are seen in the order of one recording.
"""


_DAMAGE = """\
After a clean close a bit flips, or a file is truncated or missing. The store is then opened, verified
(`store.verify()`) and read whole. The corruption must be detected, and the store restored from the changelog, or it
must do no harm. RocksDB has checksums of its blocks. Records of LMDB and SQLite have ours, and their pages have none:
corruption that only `verify()` detects is in pages that lead elsewhere. A reader that does not verify may miss the keys
there. LMDB reads through a map, and may end the process at a record whose length is damaged. These cases are *harmful
unverified*. If no file is left at all, nothing can detect that: the opened store must then be new, empty and whole.

LMDB uses the meta page with the higher transaction ID. A flipped bit there could take a closed store back by one commit
without an error. The library keeps a checksum of each meta page, so that opening detects it: *an earlier commit,
undetected* must be 0.
"""


def page(figures: Figures, failures: Sequence[str], skipped: str) -> Page:
    """Return the page. ``skipped`` is the reason why no fault was tried, or ""."""
    measured = any(figure["trials"] for figure in figures["operation"]) or any(
        figure["result"] != NOT_TRIED for figure in figures["mutant"]
    )
    return Page(
        "io-faults",
        "I/O faults",
        ("At each I/O operation a process is killed, a call fails or power is lost; closed files are corrupted.",),
        _body(figures, failures) if measured and not skipped else (),
        f"{_HOW}\n{_NOT_SIMULATED}",
        fault_findings(figures),
        absent=f"skipped: {skipped}" if skipped else text.NOT_MEASURED,
    )


def _body(figures: Figures, failures: Sequence[str]) -> list[str]:
    parts = []
    if figures["operation"]:
        parts.append(promise_table(figures).markdown())
    parts.append(text.failures("Trials that failed", failures) if failures else "Nothing broke a promise.\n")
    if figures["operation"]:
        parts += ["## Power loss\n", _MODELS, *(table.folded() for table in power_tables(figures))]
        parts += ["## Kills and failing calls\n", *(table.folded() for table in process_tables(figures))]
        parts += ["## Corruption at rest\n", _DAMAGE, damage_table(figures).folded()]
    if figures["mutant"]:
        parts += [f"## {MUTANTS}\n", mutant_table(figures).folded()]
    if figures["detection"]:
        parts += [_DETECTION, detection_table(figures).folded()]
    return parts
