"""The page about I/O faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harness.checkers.prefix import Found, demand
from harness.experiments.iofaults.case import (
    ENOUGH,
    NOT_TRIED,
    SILENT,
    is_promised,
    is_wrong,
)
from harness.experiments.iofaults.fault import IO_FAULTS, Loss
from harness.experiments.iofaults.subjects import is_transactional
from harness.report import text
from harness.report.figures import Figure, Figures
from harness.report.listing import Column, Listing
from harness.report.page import Page, PageFinding, TextTable
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
        results = Counter(row["result"] for row in own)
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
                **_commits(own),
                "restored": results[Found.DETECTED],
                "torn": results[Found.TORN] + results[Found.PHANTOM],
                "lost": results[Found.LOST],
                "silent": sum(results[result] for result in SILENT),
                "other": sum(number for result, number in results.items() if result not in (*_APART, *SILENT)),
                **_detected(own),
                "no_verdict": results[Found.HARNESS_ERROR],
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
    runs: dict[tuple[str, str, str], list[bool]] = {}
    for row in rows:
        if row["by_gate"] is not None:
            runs.setdefault((row["mutant"], row["backend"], row["fault"]), []).append(row["by_gate"])
    return [
        {
            "kind": "detection",
            **dict(zip(("mutant", "backend", "fault"), key, strict=True)),
            "runs": len(outcomes),
            "found": sum(outcomes),
        }
        for key, outcomes in sorted(runs.items())
    ]


def drawings(rows: Iterable[Row]) -> list[Figure]:
    """Return a figure for each run of a mutant with a point of each class, and as many points at random."""
    names = ("mutant", "backend", "fault", "seed", "by_classes", "at_random")
    tried = (row for row in rows if row["by_classes"] is not None and row["at_random"] is not None)
    return [{"kind": "drawing", **{name: row[name] for name in names}} for row in tried]


def fault_findings(figures: Figures) -> tuple[PageFinding, ...]:
    """Return how many states and trials kept their promise, and how many trials of mutants ended as expected."""
    promised = [figure for figure in figures["operation"] if is_promised(figure)]
    trials = sum(figure["distinct"] + figure["no_verdict"] for figure in promised)
    good = trials - sum(figure["wrong"] for figure in promised)
    unknown = sum(figure["no_verdict"] for figure in promised)
    mutants_ = [figure for figure in figures["mutant"] if figure["result"] != NOT_TRIED]
    return (
        PageFinding("states and trials of I/O faults", trials, good, "kept what was promised", unknown=unknown),
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


def _commits(rows: Sequence[Row]) -> dict[str, int]:
    """Return what became of the acknowledged commits of all trials: kept, left to the changelog, or lost.

    Those of a state that was detected and restored, and those that a level does not keep, are the changelog's.
    """
    sums = dict.fromkeys(("acknowledged", "kept", "replayed", "lost_commits"), 0)
    for row in rows:
        acknowledged = int(row["acknowledged"] or 0)
        kept = min(acknowledged, int(row["state"] or 0))
        sums["acknowledged"] += acknowledged
        sums["kept"] += kept
        sums["replayed" if row["expected"] else "lost_commits"] += acknowledged - kept
    return sums


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    return groups


LEVELS = ("DISK", "PROCESS", "CHANGELOG")


def in_words(figures: Figures) -> Figures:
    """Return the figures of I/O faults with the place of their level, their words and their promises.

    Those of mutants have the share of the default profile's runs that detected them, and whether they fail the run.
    """
    by_gate = {_mutant(one): f"{text.exact(one['found'])} of {text.exact(one['runs'])}" for one in figures["detection"]}
    operations_ = [
        {
            **one,
            "place": LEVELS.index(one["durability"]),
            "fault_place": list(IO_FAULTS).index(one["fault"]),
            "words": IO_FAULTS[one["fault"]].words,
            "model": one["variant"] + IO_FAULTS[one["fault"]].model_suffix,
            "loss": IO_FAULTS[one["fault"]].loss.value,
            "promise": _promise(one["durability"], IO_FAULTS[one["fault"]].promise),
            "promised": is_promised(one),
            "isolates": is_transactional(one["backend"]),
        }
        for one in figures["operation"]
    ]
    mutants_ = [
        {**one, "by_gate": by_gate.get(_mutant(one), text.NONE), "wrong": is_wrong(one)} for one in figures["mutant"]
    ]
    return {**figures, "operation": operations_, "mutant": mutants_}


def _mutant(figure: Figure) -> tuple[str, str, str]:
    return figure["mutant"], figure["backend"], figure["fault"]


_POINTS = "exact(sum(points)) || iif(sum(points_in_all) > sum(points), ' of ' || exact(sum(points_in_all)), '')"
_HELD = f"""case when sum(trials) = 0 then '{text.NOT_MEASURED}' when sum(unexpected) = 0 then 'yes'
    when sum(wrong) = 0 then 'no: ' || exact(sum(unexpected)) || ', reported only'
    else '**no: ' || exact(sum(unexpected)) || '**' end"""
_RESULTS = (
    Column("commits lost at most", "max(lost_at_most)", text.exact),
    Column("torn", "sum(torn)", text.exact),
    Column("detected and restored", "sum(restored)", text.exact),
    Column("other", "sum(other) + sum(no_verdict)", text.exact),
    Column("time of a core", "sum(seconds)", text.duration),
)
PROMISES = Listing(
    "What was promised, and whether it held",
    "operation_figure where promised group by place, fault_place order by place, fault_place",
    (
        Column("level", "durability"),
        Column("fault", "words"),
        Column("what is promised then", "promise"),
        Column("backends and files", "count(distinct iif(trials, backend, null))", text.exact),
        Column("distinct states", 'sum("distinct")', text.exact),
        Column("held", _HELD),
    ),
)
LOSSES = Listing(
    "What became of acknowledged commits, over all trials",
    "operation_figure where promised group by place, fault_place order by place, fault_place",
    (
        Column("level", "durability"),
        Column("fault", "words"),
        *(
            Column(f"{name}{whose}", f"sum({column}) filter (where {condition})", text.exact)
            for whose, condition in (("", "isolates"), (" without isolation", "not isolates"))
            for name, column in (
                ("acknowledged", "acknowledged"),
                ("kept", "kept"),
                ("replayed", "replayed"),
                ("lost", "lost_commits"),
            )
        ),
    ),
    notable="sum(lost_commits) filter (where isolates) > 0",
)
POWER = Listing(
    "Power loss at level {durability}",
    f"operation_figure where loss = '{Loss.UNSYNCED.value}' group by rowid order by place, rowid",
    (
        Column("backend", "'`' || backend || '`'"),
        Column("model"),
        Column("positions", _POINTS, right=True),
        Column("states", "states", text.exact),
        Column("distinct", '"distinct"', text.exact),
        *_RESULTS,
        Column("written unseen", f"iif(blind_spots = '', '{text.NONE}', '`' || blind_spots || '`')"),
        Column("promise held", _HELD),
    ),
    notable="wrong",
    shown_once=range(1, 12),
)
_VARIANTS = "iif(count(*) > 1, 'in ' || count(*) || ' ways', variant)"
PROCESSES = Listing(
    "Kills and failing calls at level {durability}",
    # One line has all kinds of errors of a backend that broke no promise.
    f"""operation_figure where loss = '{Loss.NOTHING.value}'
    group by place, iif(fault = 'error' and not unexpected, backend, rowid)
    order by place, fault, {_VARIANTS}, backend""",
    (
        Column("backend", "'`' || backend || '`'"),
        Column("fault", f"words || iif(variant = '', '', ': ' || {_VARIANTS})"),
        Column("I/O operations", _POINTS, right=True),
        Column("trials", "sum(trials)", text.exact),
        *_RESULTS,
        Column("promise held", _HELD),
    ),
    notable="sum(wrong)",
    shown_once=range(1, 10),
)
DAMAGE = Listing(
    "Corruption at rest",
    f"operation_figure where loss = '{Loss.AT_REST.value}' group by rowid order by rowid",
    (
        Column("backend", "'`' || backend || '`'"),
        Column("level", "durability"),
        Column("damage", "variant"),
        Column("trials", "trials", text.exact),
        Column("harmless", "trials - restored - silent - other - no_verdict", text.exact),
        Column("detected by opening", "by_opening", text.exact),
        Column("by reading", "by_reading", text.exact),
        Column("by verifying only", "by_verifying", text.exact),
        Column("of these harmful unverified", "unverified", text.exact),
        Column("an earlier commit, undetected", "lost", text.exact),
        Column("wrong, undetected", "silent - lost", text.exact),
        Column("other", "other + no_verdict", text.exact),
        Column("promise held", _HELD),
    ),
    notable="wrong",
    shown_once=(1, 2, 12),
)
MUTANT_STATES = Listing(
    "Mutants, all at level DISK",
    "mutant_figure",
    (
        Column("mutant", "'`' || mutant || '`'"),
        Column("defect", "meaning"),
        Column("in", "'`' || backend || '`'"),
        Column("fault", "fault || iif(variant = '', '', ' (' || variant || ')')"),
        Column("should be", "case wanted when 'found' then 'detected' when 'not seen' then 'passed' else wanted end"),
        Column(
            "symptom",
            f"""case result when '{NOT_TRIED}' then '{text.NONE}' when '' then 'none'
                when 'detected' then 'reported corrupt' else replace(result, '_', ' ') end""",
        ),
        Column("after states", "states", text.exact),
        Column("detected by the default profile", "by_gate", right=True),
        Column("as expected", f"iif(result = '{NOT_TRIED}', result, iif(expected, 'yes', '**no**'))"),
    ),
    notable="wrong",
    shown_once=(8,),
)
DETECTIONS = Listing(
    "Mutants detected by the default profile, at level DISK",
    "detection_figure group by mutant order by min(rowid)",
    (
        Column("mutant", "'`' || mutant || '`'"),
        Column("fault", "min(fault)"),
        Column("built into", "count(*)", text.exact),
        Column("detected", "exact(sum(found)) || ' of ' || exact(sum(runs))", right=True),
        Column("share", "100.0 * sum(found) / sum(runs)", lambda share: f"{share:.0f} %"),
        Column(
            "missed at some seed in",
            f"coalesce(group_concat('`' || backend || '`', ', ') filter (where found < runs), '{text.NONE}')",
        ),
    ),
    notable=f"sum(found) < {ENOUGH} * sum(runs)",
)

DRAWINGS = Listing(
    "Mutants detected by a point of each class, and by as many points at random, at level DISK",
    "drawing_figure group by mutant order by mutant",
    (
        Column("mutant", "'`' || mutant || '`'"),
        Column("fault", "min(fault)"),
        Column("built into", "count(distinct backend)", text.exact),
        Column("by classes", "exact(sum(by_classes)) || ' of ' || exact(count(*))", right=True),
        Column("at random", "exact(sum(at_random)) || ' of ' || exact(count(*))", right=True),
    ),
    notable="sum(by_classes) < sum(at_random)",
)


def operation_tables(figures: Figures) -> list[TextTable]:
    """Return all tables that have rows."""
    worded = in_words(figures)
    return [table for each in (PROMISES, POWER, PROCESSES, DAMAGE, MUTANT_STATES) for table in each.tables(worded)]


def left_out(figures: Figures) -> str:
    """Return a sentence with the number of points that were explored, or "" if all were."""
    explored = sum(figure["points"] for figure in figures["operation"])
    in_all = sum(max(figure["points"], figure["points_in_all"]) for figure in figures["operation"])
    if explored == in_all:
        return ""
    return f"{text.exact(explored)} of {text.exact(in_all)} points were tried, drawn by the seed."


def _promise(level: str, fault: str) -> str:
    if fault == "damage":
        return "the last commit, whole, or detected by opening, verifying or reading, and restored"
    demanded = demand(level, fault)
    if demanded.keeps:
        return "every acknowledged commit is there, whole"
    return "a whole commit, or detected and restored"


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
_LOSSES = """\
A trial acknowledges commits until the fault strikes. Afterwards the store has them (*kept*), or is behind or restored,
as its level allows, and the changelog has them (*replayed*). What is missing elsewhere is *lost*, which must be 0.
Stores without isolation stand beside the others as a control.
"""
_DRAWING = """\
Do classes lose anything? Here a mutant was tried at one point of each class of its fault, and at as many points that
are drawn from all alike, at the same seeds. `python -m harness mutants --by-classes --seeds 20` tries more.
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
    worded, parts = in_words(figures), []
    if figures["operation"]:
        parts += [PROMISES.table(worded).markdown(), _LOSSES, LOSSES.table(worded).folded()]
    parts.append(text.failures("Trials that failed", failures) if failures else "Nothing broke a promise.\n")
    if figures["operation"]:
        parts += ["## Power loss\n", _MODELS, *(table.folded() for table in POWER.tables(worded))]
        parts += ["## Kills and failing calls\n", *(table.folded() for table in PROCESSES.tables(worded))]
        parts += ["## Corruption at rest\n", _DAMAGE, DAMAGE.table(worded).folded()]
    if figures["mutant"]:
        parts += [f"## {MUTANTS}\n", MUTANT_STATES.table(worded).folded()]
    if figures["detection"]:
        parts += [_DETECTION, DETECTIONS.table(worded).folded()]
    if figures["drawing"]:
        parts += [_DRAWING, DRAWINGS.table(worded).folded()]
    return parts
