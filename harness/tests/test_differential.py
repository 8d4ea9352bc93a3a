"""The comparer finds each kind of difference; ours does what its models say; a trial finds a broken task.

All trials: ``make differential``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.tests.differential.__main__ import main, table
from harness.tests.differential.comparer import (
    ERROR_HEADERS,
    ERROR_TEXT,
    MARKERS,
    NO_KEY,
    Comparison,
    Output,
    Seen,
    compare,
)
from harness.tests.differential.course import Course, Site, site
from harness.tests.differential.model import BY_STARTS, FORGOTTEN, WRITE_KEPT, Plain, explanations, replay
from harness.tests.differential.topologies import OURS, OUTSIDE, STORE, Topology
from harness.tests.differential.trial import (
    COUNT,
    GRACE_MS,
    JOIN,
    LETTERS,
    RAISING,
    SESSIONS,
    SIZE_MS,
    START_MS,
    TOPOLOGIES,
    WINDOWS,
    Input,
    Trial,
    committed_inputs,
)
from stores.records import ValueAndTimestamp
from stores.testing import AppDriver
from stores.tests.kafka.java_programs import skip_without_compiler

ENDS = {("input", 0): (3, 5)}
LETTER_HEADERS = tuple((name, b"here") for name in sorted(ERROR_HEADERS))
SEEN = Seen(
    [
        Output("output", 0, b"a", b"1", 10),
        Output("output", 0, b"b", b"1", 11),
        Output("output", 0, b"a", b"2", 12),
        Output("letters", 0, b"a", b"x", 13, (("origin", b"7"), *LETTER_HEADERS)),
    ],
    [{"key": "a", "value": 2, "timestamp_ms": 12}, {"key": "b", "value": 1, "timestamp_ms": 11}],
    {("input", 0): 3},
)
FIRST = SEEN.outputs[0]


def compared(ours: Seen) -> Comparison:
    return compare(COUNT, [], ENDS, ours, SEEN)


def with_outputs(change: Callable[[list[Output]], list[Output]]) -> Seen:
    return SEEN._replace(outputs=change(list(SEEN.outputs)))


BROKEN = {
    "lost": with_outputs(lambda outputs: outputs[1:]),
    "repeated": with_outputs(lambda outputs: [*outputs, FIRST]),
    "more": with_outputs(lambda outputs: [*outputs, Output("output", 0, b"c", b"1", 14)]),
    "order": with_outputs(lambda outputs: outputs[::-1]),
    "value": with_outputs(lambda outputs: [FIRST._replace(value=b"9"), *outputs[1:]]),
    "time": with_outputs(lambda outputs: [FIRST._replace(timestamp_ms=9), *outputs[1:]]),
    "partition": with_outputs(lambda outputs: [FIRST._replace(partition=1), *outputs[1:]]),
    "header": with_outputs(lambda outputs: [FIRST._replace(headers=(("more", b""),)), *outputs[1:]]),
    "lost header": with_outputs(lambda outputs: [*outputs[:3], outputs[3]._replace(headers=LETTER_HEADERS)]),
    "no error": with_outputs(lambda outputs: [*outputs[:3], outputs[3]._replace(headers=(("origin", b"7"),))]),
    "lost entry": SEEN._replace(entries=SEEN.entries[1:]),
    "other entry": SEEN._replace(entries=[{**SEEN.entries[0], "value": 3}, SEEN.entries[1]]),
    "entry twice": SEEN._replace(entries=[*SEEN.entries, SEEN.entries[0]]),
    "no offset": SEEN._replace(offsets={}),
    "offset behind": SEEN._replace(offsets={("input", 0): 2}),
    "offset beyond": SEEN._replace(offsets={("input", 0): 6}),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_comparer_reports(what: str) -> None:
    assert len(compared(BROKEN[what]).differences) == 1


def test_equal_results_differ_in_the_texts_of_errors_at_most() -> None:
    assert compared(SEEN) == ([], {})
    letter = SEEN.outputs[3]._replace(headers=(("origin", b"7"), *((name, b"") for name in ERROR_HEADERS)))
    assert compared(with_outputs(lambda outputs: [*outputs[:3], letter])) == ([], {ERROR_TEXT: 1})


def test_an_offset_may_be_before_the_markers_or_after_them() -> None:
    assert compared(SEEN._replace(offsets={("input", 0): 5})) == ([], {MARKERS: 1})


def test_letters_without_a_key_may_be_in_any_partition_and_order() -> None:
    letters = [Output("letters", number, None, b"%d" % number, 10, LETTER_HEADERS) for number in range(2)]
    own, other = SEEN._replace(outputs=letters), SEEN._replace(outputs=[letters[1]._replace(partition=0), letters[0]])
    assert compare(LETTERS, [], ENDS, own, other) == ([], {NO_KEY: 1})
    assert compare(LETTERS, [], ENDS, own, other._replace(outputs=letters[:1])).differences != []


def results_of_ours(topology: str, inputs: list[Input]) -> Seen:
    """Return the results of our topology without a broker, in one partition."""
    name = f"trial-{OURS}-output"
    with AppDriver(Topology(topology, "trial").application(), topics=[name, f"trial-{OURS}-letters"]) as driver:
        keys, values, times_ms, headers = map(list, zip(*[each[2:] for each in inputs], strict=True))
        driver.pipe_many("trial-input", keys, values, times_ms, headers)
        outputs = [Output("output", 0, *record[1:]) for record in driver.read(name)]
        return Seen(outputs, list(entries(driver.store(STORE))), {})


def entries(store: Any) -> Iterator[dict[str, Any]]:
    """Yield the entries of a store as ``txstores dump`` names their parts."""
    with store.all() if hasattr(store, "all") else store.fetch_range(None, None) as pairs:
        for key, value in pairs:
            if isinstance(value, ValueAndTimestamp):
                times = {"window_start_ms": key.start_ms, "timestamp_ms": value.timestamp_ms}
                yield {"key": key.key, "value": value.value, **times}
            elif isinstance(key, str):
                yield {"key": key, "value": value}
            else:
                yield {"key": key.key, "value": value, "session_start_ms": key.start_ms, "session_end_ms": key.end_ms}


def inputs_of(topology: str) -> list[Input]:
    return [each._replace(partition=0) for each in committed_inputs(Trial(topology, 7, records=600).steps())]


def results_of_theirs(topology: str, inputs: list[Input], taken_of: str = "") -> Seen:
    """Return what the models say of Kafka Streams; of one key all late records are taken, as after a restart."""
    outputs, kept = [], []
    for key in sorted({each.key for each in inputs if each.key is not None}):
        found = explanations(topology, inputs, checked=False)(key, [], [])
        assert found is not None
        of_key = found.theirs
        if key.decode() == taken_of:
            of_key = replay(topology, taken_of, [(each.timestamp_ms, 0) for each in inputs if each.key == key])
        outputs += [Output("output", 0, *plain) for plain in of_key.outputs]
        kept += of_key.entries
    return Seen(outputs, kept, {})


@pytest.mark.parametrize(("topology", "reasons"), [(WINDOWS, {BY_STARTS}), (SESSIONS, set()), (LETTERS, {WRITE_KEPT})])
def test_ours_differs_from_a_model_of_theirs_by_design_only(topology: str, reasons: set[str]) -> None:
    inputs = inputs_of(topology)
    differences, by_design = compare(
        topology, inputs, {}, results_of_ours(topology, inputs), results_of_theirs(topology, inputs)
    )
    assert differences == []
    assert set(by_design) == reasons


def test_a_write_before_an_error_may_be_the_last_of_its_key() -> None:
    """Then it shows in the store alone."""
    good = Input("input", 0, b"a", b"5", 10)
    inputs = [good, good._replace(value=RAISING, timestamp_ms=11)]
    ours, theirs = results_of_ours(LETTERS, inputs), results_of_theirs(LETTERS, inputs)
    letters = [each for each in ours.outputs if each.topic == "letters"]
    assert ours.outputs == [*theirs.outputs, *letters]
    assert compare(LETTERS, inputs, {}, ours, theirs) == ([], {WRITE_KEPT: 1})
    assert compare(LETTERS, inputs, {}, ours, ours).by_design == {}
    assert len(compare(LETTERS, inputs, {}, theirs, ours).differences) == 2


@pytest.mark.parametrize("topology", [WINDOWS, SESSIONS])
def test_late_records_that_theirs_takes_after_a_restart_are_counted(topology: str) -> None:
    inputs = inputs_of(topology)
    ours, theirs = results_of_ours(topology, inputs), results_of_theirs(topology, inputs, "k6")
    differences, by_design = compare(topology, inputs, {}, ours, theirs)
    assert differences == []
    assert by_design[FORGOTTEN] >= 1
    # Ours must not do that, and theirs must have taken these records, and no others.
    assert compare(topology, inputs, {}, theirs, ours).differences != []
    without_late = [each for each in inputs if each.key != b"k6"]
    assert compare(topology, without_late, {}, ours, theirs).differences != []
    lost = [each for each in theirs.outputs if each.base_key == b"k6"][-1]
    fewer = theirs._replace(outputs=[each for each in theirs.outputs if each != lost])
    assert compare(topology, inputs, {}, ours, fewer).differences != []
    other_entries = [{**each, "value": 99} if each["key"] == "k6" else each for each in theirs.entries]
    assert len(compare(topology, inputs, {}, ours, theirs._replace(entries=other_entries)).differences) == 1


def test_a_window_of_theirs_closes_by_the_times_of_records() -> None:
    closed_ms = START_MS + SIZE_MS + GRACE_MS
    [output] = replay(WINDOWS, "a", [(START_MS, closed_ms - 1), (START_MS, closed_ms)]).outputs
    assert output == Plain(f"a@{START_MS}".encode(), b"1", START_MS)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_seed_draws_the_same_trial_again(topology: str) -> None:
    trial = Trial(topology, 3, records=1_000)
    assert trial.steps() == Trial(topology, 3, records=1_000).steps() != Trial(topology, 4, records=1_000).steps()
    assert trial.settings() == Trial(topology, 3).settings()
    values = {each.value for each in committed_inputs(trial.steps())}
    assert None in values
    assert any(step.aborted for step in trial.steps())
    assert any(step.waits for step in trial.steps()) == (topology == JOIN)


def test_the_table_sums_trials_and_counts_what_is_by_design() -> None:
    row = {
        "topology": COUNT,
        "differences": ["one"],
        "kills": [2, 3],
        "inputs": 1_000,
        "outputs": [900, 901],
        "aborted": [5, 6],
        "entries": [7, 8],
        "by_design": {MARKERS: 4},
    }
    lines = table([row, row, {"topology": JOIN, "differences": ["it ended"]}]).splitlines()
    assert lines[2] == f"| {COUNT} | 2 | 2,000 | 4 / 6 | 1,800 / 1,802 | 10 / 12 | 14 / 16 | 2 |"
    assert lines[4] == "| all | 3 | 2,000 | 4 / 6 | 1,800 / 1,802 | 10 / 12 | 14 / 16 | 3 |"
    assert lines[-1] == f"| {MARKERS} | 8 in {COUNT} |"


def test_an_unknown_topology_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["differential", "--topology", "counts"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    """A broker, and the program for Kafka Streams."""
    skip_without_compiler()
    with site() as made:
        yield made


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize("topology", [SESSIONS, LETTERS])
def test_killed_tasks_do_what_kafka_streams_does(place: Site, tmp_path: Path, topology: str) -> None:
    row = Course(Trial(topology, 1, kills=2, records=600), place, tmp_path).row()
    assert row["differences"] == []
    assert row["kills"] == [2, 2]
    assert min(row["outputs"]) > 300


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize(("mutant", "seed", "found"), [(OUTSIDE, 1, "repeats"), ("write-through", 18, "store at")])
def test_broken_tasks_are_detected(place: Site, tmp_path: Path, mutant: str, seed: int, found: str) -> None:
    """Broken variants: outputs outside of transactions, and a store over LMDB that is not rolled back."""
    row = Course(Trial(COUNT, seed, kills=4, records=1_200), place, tmp_path, mutant).row()
    assert any(found in each for each in row["differences"])
