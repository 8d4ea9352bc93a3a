"""An experiment that no other file names has its rows on disk, its figures, its page and its plot in a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness.answer import results, write
from harness.experiment import Columns, Experiment, Failure, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.registry import experiments, kinds
from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.figures import Figure, Figures
from harness.report.page import Page, PageFinding
from harness.report.rows import Row, new_run, write_rows
from harness.tests.made_up_rows import FACTS

KIND: Mapping[str, Columns] = MappingProxyType({"dust": {"backend": str, "grains": int}})


class Dust(Experiment[str]):
    name = "dust"
    title = "counting dust"
    trial = str
    placement = TrialPlacement.LOCAL
    columns = KIND

    def plan(self, request: Request) -> list[str]:
        return ["rocksdb-direct"]

    def run(self, trial: str, worker: TrialWorker) -> Iterable[Row]:
        return [{"kind": "dust", "backend": trial, "grains": 3}]

    def figures(self, rows: Rows) -> dict[str, list[Figure]]:
        return {"dust": [dict(row) for row in rows.get("dust", ())]}

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        return [Failure(f"{row['backend']}: dusty") for row in figures["dust"] if row["grains"] > 2]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        own = figures["dust"]
        panels = [Panel("all", [Mark(row["backend"], row["grains"], hollow=True) for row in own])]
        clean = sum(figure["grains"] <= 2 for figure in own)
        body = [text.table(("backend", "grains"), [(row["backend"], str(row["grains"])) for row in own])] if own else []
        return Page(
            "dust",
            "Dust",
            ("Dust settles.", "It is counted."),
            body,
            "By eye.\n",
            (PageFinding("stores", len(own), clean, "were clean"),),
            (Chart("grains", "Grains of dust", "dots", panels, "grains", "grains", more_is_better=False),),
        )


@pytest.fixture
def with_dust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "experiments", lambda: {**experiments(), "dust": Dust()})
    monkeypatch.setattr(results, "kinds", lambda: {**kinds(), **KIND})


@pytest.mark.usefixtures("with_dust")
def test_a_new_experiment_is_reported_without_an_edit_elsewhere(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs", "smoke", FACTS)
    write_rows(run, "dust", [{"backend": "rocksdb-direct", "grains": 3}], KIND)
    report = write.write_report(run, tmp_path / "results")
    first, page = report.read_text(), (report.parent / "dust.md").read_text()
    assert "* **0 of 1 [stores](dust.md) were clean.**" in first
    assert "| [Dust](dust.md) | Dust settles. |" in first
    assert "![Grains of dust](grains.svg)" in first
    assert page.startswith("# Dust\n\nDust settles. It is counted. **0 of 1 stores were clean.**\n")
    assert "![Grains of dust](grains.svg)" in page
    assert "| rocksdb-direct | 3 |" in page
    assert page.endswith("## How it was measured\n\nBy eye.\n")
    assert (report.parent / "grains.svg").exists()
    (figure,) = map(json.loads, (report.parent / "figures.jsonl").read_text().splitlines())
    assert (figure["kind"], figure["grains"]) == ("dust", 3)
    rows = {"dust": [{"backend": "rocksdb-direct", "grains": 3}]}
    assert [str(failure) for failure in results.all_failures(results.all_figures(rows), rows)] == [
        "rocksdb-direct: dusty"
    ]


@pytest.mark.usefixtures("with_dust")
def test_a_new_experiment_that_was_not_measured_has_a_line_and_no_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs", "smoke", FACTS)
    report = write.write_report(run, tmp_path / "results")
    assert "| Dust | not measured in this run |" in report.read_text()
    assert {file.name for file in report.parent.glob("*.md")} == {"report.md", "machine.md"}
