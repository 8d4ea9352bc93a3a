"""The backend to pick for each need, in words, computed from the figures of a run alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.experiments.needs import Backends, Contest, contests
from harness.processes.load import BUSY_REPEATS, BUSY_SHARE, is_busy
from harness.report import text
from harness.report.decision import ROUNDS_MIN
from harness.report.figures import Figure, Figures


@dataclass(frozen=True)
class Choice:
    """The best backend for a need, with formatted figures and their intervals.

    ``backend`` is "" if the run does not decide; ``undecided`` then says why. ``ties`` are as good as the backend,
    ``unclear`` may be, ``open_rivals`` may be better by more than 10 %, and the first of them has the best median.
    ``next_best`` follows the last of those that ``figure`` names. ``rounds`` is the number of rounds in which they were
    measured side by side.
    """

    need: str
    durability: str
    backend: str = ""
    figure: str = ""
    next_best: str = ""
    undecided: str = ""
    remark: str = ""
    ties: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    open_rivals: tuple[str, ...] = ()
    rounds: int = 0

    @property
    def decided(self) -> bool:
        """True if there is a pick."""
        return bool(self.backend)

    @property
    def answer(self) -> str:
        """The cell of a table: the backend in bold and those that are as good, or why there is none."""
        if not self.backend:
            return self.undecided or text.NOT_MEASURED
        return f"**{self.backend}**" + (f"; no difference: {', '.join(self.ties)}" if self.ties else "")


_MEASURED = ("throughput", "opening", "benchmark", "latency", "early_commit", "large_step")
"""The kinds of figures that have the load of the machine."""


def choices(figures: Figures, backends: Backends) -> list[Choice]:
    """Return the best backend for each need. ``backends`` has the properties that each backend declares, by name.

    The backend is chosen that has the best median of those than which no other may be more than 10 % better (see
    ``harness.report.decision``). One that failed at a level, in a crash trial or by its end state, is not chosen there.
    One without isolation is chosen nowhere: it is the baseline, and the negative control.
    """
    return [_choice(contest, figures) for contest in contests(figures, backends)]


def busy_notice(figures: Figures) -> str:
    """Return a sentence for the top of a result if the machine was busy during many measurements, else ""."""
    measured = [figure for kind in _MEASURED for figure in figures.get(kind, ())]
    busy, repeats = sum(map(_busy, measured)), sum(figure.get("repeats", 1) for figure in measured)
    if busy <= BUSY_REPEATS * repeats:
        return ""
    return (
        f"The machine was busy: other processes or the hypervisor took more than {BUSY_SHARE:.0%} of its CPU time "
        f"during {busy:,} of {repeats:,} measurements. Intervals are wider for it, and figures lower than on an idle "
        "machine."
    )


def _choice(contest: Contest, figures: Figures) -> Choice:
    need, measure, ranking = contest.need, contest.need.measure, contest.ranking
    if ranking is None:
        return Choice(contest.words, need.durability, remark="; ".join(_remarks(contest, figures)))
    ties = ranking.ties if ranking.is_decided else ()
    named = contest.open or (ranking.best, *ties)
    by_name = {row["backend"]: measure.text(row) for row in contest.figures}
    order = list(by_name)
    after = order[max(map(order.index, named)) + 1 :]
    return Choice(
        contest.words,
        need.durability,
        backend=ranking.best if ranking.is_decided else "",
        figure="; ".join(f"{name} {by_name[name]}" for name in named) if len(named) > 1 else by_name[ranking.best],
        next_best=f"{after[0]}, {by_name[after[0]]}" if after else "",
        undecided=_undecided(contest.open, ranking.rounds),
        remark="; ".join(_remarks(contest, figures)),
        ties=ties,
        unclear=ranking.unclear if ranking.is_decided else (),
        open_rivals=contest.open,
        rounds=ranking.rounds,
    )


def _undecided(rivals: Sequence[str], rounds: int) -> str:
    """Return why there is no pick; "" without open rivals."""
    if not rivals:
        return ""
    if rounds < ROUNDS_MIN:
        return "no pick: measured once"
    return f"no pick yet: {', '.join(rivals[:-1])} or {rivals[-1]}"


def _remarks(contest: Contest, figures: Figures) -> Iterator[str]:
    """Yield what a reader should know beside the pick."""
    if contest.ranking and contest.ranking.is_decided and contest.ranking.unclear:
        yield f"not distinguished yet: {', '.join(contest.ranking.unclear)}"
    if contest.left_out:
        yield f"left out, for a broken promise: {', '.join(contest.left_out)}"
    durability = contest.need.durability
    crashed = {figure["backend"] for figure in figures["crash"] if figure["durability"] == durability}
    if contest.ranking and contest.ranking.best not in crashed:
        yield "not crashed at this level in this run"


def _busy(row: Figure) -> int:
    """Return the number of busy repeats of a figure; one that is made of a single row has its load."""
    return int(is_busy(row) if row.get("busy") is None else row["busy"])
