"""The sentences about large steps that fail a run."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report import text
from harness.report.figures import Figure


def wrong_step_lines(large_steps: Sequence[Figure]) -> list[str]:
    """Return a sentence for every large step that exceeded its memory bound or was not one commit."""
    lines = []
    for figure in large_steps:
        step = f"{figure['backend']} at {figure['durability']}, one step of {text.size(figure['step_bytes'])}"
        if figure["bounded"] is False:
            lines.append(f"{step}: took {text.size(figure['peak_bytes'])}, above {text.size(figure['bound_bytes'])}")
        if not figure["atomic"]:
            lines.append(
                f"{step}: {figure['commits']} commits, {figure['seen_early']} of the keys looked up were seen before, "
                f"and the state after a reopening is {figure['state']}"
            )
    return lines
