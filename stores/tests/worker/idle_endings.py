"""Two idle workers with standby copies get SIGTERM at the same moment: both end within two seconds, with status 0.

    .venv/bin/python -m stores.tests.worker.idle_endings kafka --tries 200 --seed 1

Each try has workers, state directories and a group of its own. One line for each try: the statuses, and the seconds
until each process had ended. The exit status is 1 if a worker took longer, or ended with another status.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.shared_broker import FOLDER
from stores.tests.worker.places import EmbeddedPlace, KafkaPlace, Place
from stores.tests.worker.worker_process import DEADLINE_S, WorkerProcess

WORDS = ["to", "be", "or", "not"]
FOLLOWING = r"2 tasks, [\d,]+ records/s, lag 0; 2 standby copies, lag 0$"
WAIT_S_MAX = 1.5
"""The copies look at the group once in a second: the signals come anywhere between two looks."""
APART_S_MAX = 0.3
ENDED_S_MAX = 2.0
"""The time in which an idle worker ends, even if another one ends at the same time."""
LATE_S = 300.0
"""The time after which a worker is ended with the stacks of its threads in its log."""


class Ending(NamedTuple):
    """The end of one worker."""

    status: int
    took_s: float
    errors: str

    @property
    def in_order(self) -> bool:
        """True if it ended with status 0, in time."""
        return self.status == 0 and self.took_s <= ENDED_S_MAX

    def __str__(self) -> str:
        return f"status {self.status} after {self.took_s:.2f} s"


def end_two(place: Place, chance: random.Random) -> list[Ending]:
    """Start two workers, wait until both are idle, and send SIGTERM to both; return how they ended."""
    place.feed(WORDS)
    folders = {name: {"state.dir": str(place.folder / f"state-{name}")} for name in ("first", "second")}
    settings = {**place.properties(), "num.standby.replicas": "1"}
    with (
        WorkerProcess(place.folder, "first", {**settings, **folders["first"]}, verbose=True) as first,
        WorkerProcess(place.folder, "second", {**settings, **folders["second"]}, verbose=True) as second,
    ):
        for worker in (first, second):
            worker.await_line(FOLLOWING)
        time.sleep(chance.uniform(0, WAIT_S_MAX))
        apart_s = chance.choice([0.0, chance.uniform(0, APART_S_MAX)])
        began = {}
        for worker in chance.sample([first, second], 2):
            began[worker] = time.monotonic()
            worker.send(signal.SIGTERM)
            time.sleep(apart_s)
        end_times: dict[WorkerProcess, float] = {}
        while len(end_times) < 2:
            for worker in (first, second):
                if worker not in end_times and not worker.runs:
                    end_times[worker] = time.monotonic()
                elif worker not in end_times and time.monotonic() > began[worker] + LATE_S:
                    worker.send(signal.SIGABRT)  # The interpreter writes the stacks of all threads.
            assert time.monotonic() < max(began.values()) + DEADLINE_S, f"{first.report}\n{second.report}"
            time.sleep(0.01)
        return [Ending(each.ended(), end_times[each] - began[each], each.errors) for each in (first, second)]


def endings(kind: str, tries: int, seed: int) -> Iterator[list[Ending]]:
    """Yield the ends of the two workers of each try, over the embedded changelog or a broker that is started for it."""
    chance = random.Random(seed)
    os.environ["PYTHONFAULTHANDLER"] = "1"
    with TemporaryDirectory(prefix="idle-endings-") as folder:
        if kind == "embedded":
            for number in range(tries):
                own = Path(folder, str(number))
                own.mkdir()
                yield end_two(EmbeddedPlace(own), chance)
            return
        with Broker(Path(folder, "broker"), FOLDER) as broker:
            for number in range(tries):
                own = Path(folder, str(number))
                own.mkdir()
                os.environ["APPLICATION_NAME"] = f"idle-{number}"
                remove_all(broker)
                yield end_two(KafkaPlace(own, broker.address), chance)


def main() -> int:
    """Make the tries; return 1 if a worker ended with another status than 0, or too late."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changelog", choices=["kafka", "embedded"])
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    failures = 0
    times: list[tuple[float, int]] = []
    for number, both in enumerate(endings(options.changelog, options.tries, options.seed)):
        print(number, *(f"{each};" for each in both), flush=True)
        times += [(each.took_s, number) for each in both]
        for each in both:
            if not each.in_order:
                failures += 1
                print(each.errors[-3000:], flush=True)
    slowest_s, slowest = max(times)
    print(
        f"seed {options.seed}: {failures} of {len(times)} ended with another status than 0, or after more than "
        f"{ENDED_S_MAX:g} s; the slowest took {slowest_s:.2f} s, in try {slowest}, and half of them up to "
        f"{median(took_s for took_s, _ in times):.2f} s. To repeat it:\n"
        f"    .venv/bin/python -m stores.tests.worker.idle_endings {options.changelog} --tries {options.tries} "
        f"--seed {options.seed}"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
