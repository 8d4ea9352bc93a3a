"""A store of an older format is upgraded to the present one, however often that is killed or loses power.

A task's upgrade to a format of the user's, built beside the store and swapped, is tried like the library's own steps.

Source: KIP-892, "Upgrading"; KIP-258: a store is upgraded in place, and never half.
"""

from harness.effect_scenario import EffectScenario

SCENARIO = EffectScenario(
    faults=("kill", "kill_twice", "power names"),
    backends=("format-migration", "lazy-upgrade", "format-upgrade"),
    points_max=6,
    mutants=("migration-noted-first", "upgraded-outside", "swapped-without-note"),
)


if __name__ == "__main__":
    from harness.cli import run_scenario

    raise SystemExit(run_scenario(__file__))
