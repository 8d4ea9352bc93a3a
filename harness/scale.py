"""The size of a scenario in a profile: that of its file, a small part of it, or all of it."""

from __future__ import annotations

from dataclasses import replace

from harness.effect_scenario import EffectScenario
from harness.faults.registry import check_known
from harness.readers_scenario import ReadersScenario
from harness.scenario import CrashScenario, Scenario

PROFILES = ("smoke", "default", "full")

_SMOKE_POINTS, _SMOKE_STATES, _SMOKE_EVENTS = 4, 2, 10_000
_SMOKE_SECONDS = 0.5
_FULL_SEEDS, _FULL_EVENTS, _FULL_REPEATS, _FULL_SECONDS = 5, 10, 5, 10

Scalable = Scenario | EffectScenario | ReadersScenario


def scaled(scenario: Scalable, profile: str) -> Scalable:
    """Return ``scenario``, which must be valid, as ``profile`` scales it; ``default`` is what its file says.

    The profile smoke uses a few points, one seed, a few events or half a second, and checks no ratio. The profile full
    uses every point and every state, five times the seeds, ten times the events or seconds, and at least five repeats.

    Raises: ConfigError for an unknown profile.
    """
    check_known("profile", PROFILES, profile)
    if profile == "default":
        return scenario
    smoke = profile == "smoke"
    if isinstance(scenario, EffectScenario):
        points = min(scenario.points_max or _SMOKE_POINTS, _SMOKE_POINTS)
        return replace(
            scenario,
            points_max=points if smoke else None,
            states_per_position=_SMOKE_STATES if smoke else None,
        )
    if isinstance(scenario, CrashScenario):
        # A mutant shows with some of its seeds only.
        fewer = scenario.seeds if scenario.mutant else 1
        return replace(scenario, seeds=fewer if smoke else scenario.seeds * _FULL_SEEDS)
    if isinstance(scenario, ReadersScenario):
        return replace(scenario, seconds=_SMOKE_SECONDS if smoke else _FULL_SECONDS * scenario.seconds)
    events = scenario.events
    if smoke:
        return replace(scenario, events=min(events or _SMOKE_EVENTS, _SMOKE_EVENTS), repeats=1, at_least=())
    return replace(scenario, events=events and events * _FULL_EVENTS, repeats=max(_FULL_REPEATS, scenario.repeats))
