"""Ratios with a threshold: reached, missed, level with it, or not decided."""

from __future__ import annotations

import pytest

from harness.answer.results import all_figures
from harness.report.ratios import is_clear, ratio_of, ratio_sentence, ratio_table, ratios, undecided_sentence
from harness.tests.made_up_rows import made_up_rows


def test_a_missed_ratio_is_marked_and_one_without_a_threshold_is_not_compared() -> None:
    met = {figure["claim"]: figure["met"] for figure in all_figures(made_up_rows())["ratio"]}
    assert met == {
        **dict.fromkeys(("an indexed batch beats direct writes", "beside others", "slow by the clock alone"), True),
        **dict.fromkeys(("and with long transactions", "fast by the clock alone"), False),
        **dict.fromkeys(("for the curious", "too close to say", "in a hurry")),
    }


def test_cpu_time_decides_where_it_was_measured_and_a_busy_machine_is_no_veto() -> None:
    verdicts = {figure["claim"]: figure["verdict"] for figure in all_figures(made_up_rows())["ratio"]}
    assert verdicts["beside others"] == "yes, by time"
    assert verdicts["slow by the clock alone"] == "yes, by CPU time"
    assert verdicts["fast by the clock alone"] == (
        "**no**: the same work takes 2.00 times the CPU time of rocksdb-direct; 1.00 times were promised"
    )


def test_a_ratio_is_undecided_without_an_interval_and_around_its_threshold() -> None:
    figures = all_figures(made_up_rows())
    said = {figure["claim"]: figure["verdict"] for figure in figures["ratio"]}
    assert said["too close to say"] == "undecided"
    assert said["in a hurry"] == "measured 2 times only"
    assert undecided_sentence(figures).startswith("2 ratios with a threshold are not decided")
    assert ratio_sentence(figures).startswith("**3 of 5 ratios with a threshold reached it.** 2 ratios")
    once = {"ratio": [figure for figure in figures["ratio"] if figure["met"] is None]}
    assert ratio_sentence(once) == undecided_sentence(once)
    assert ratio_sentence({"ratio": []}) == "No ratios with a threshold in this run."
    assert undecided_sentence({"ratio": []}) == ""
    assert {row[5] for row in ratio_table(figures).rows} >= {"1.30 (1.20 to 1.40)", "0.50"}


@pytest.mark.parametrize(
    ("repeats", "verdict", "needs_no_more"),
    [
        ([0.98, 0.99, 1.0, 1.01, 1.02], "level: within 10 % of it, by time", True),
        ([0.94, 0.97, 1.0, 1.03, 1.06], "level: within 10 % of it, by time", False),
        ([0.89, 0.97, 1.0, 1.03, 1.06], "undecided", False),
        ([0.94, 0.97, 1.0, 1.03, 1.11], "undecided", False),
        ([1.01, 1.01, 1.01, 1.01, 1.02], "yes, by time", True),
    ],
)
def test_a_ratio_near_its_threshold_is_level_with_it(repeats: list[float], verdict: str, needs_no_more: bool) -> None:
    row = {"claim": "c", "subject": "s", "yardstick": "y", "durability": "", "records_per_commit": 1, "kind": "ratio"}
    figures = {"ratio": ratios([{**row, **ratio_of(repeats), "at_least": 1.0}])}
    (figure,) = figures["ratio"]
    assert figure["verdict"] == verdict
    assert is_clear(figure) is needs_no_more
    level = "1 ratio is level with its threshold (within 10 % of it)."
    assert (undecided_sentence(figures) == level) is figure["level"] is verdict.startswith("level")
