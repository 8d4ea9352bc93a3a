"""Numbers of sub-topologies from a hash of their topics: the same as long as the topics are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.errors import ConfigError
from stores.tasks import Subtopology, TaskId, Topology, topology
from stores.tasks.topology import murmur2_64

TOPIC = st.text("abc.-_0", min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
TOPICS = st.lists(TOPIC, min_size=1, max_size=4, unique=True)


def numbers(subtopologies: list[list[str]]) -> dict[frozenset[str], int]:
    topology = Topology.by_topics(Subtopology(inputs=tuple(topics)) for topics in subtopologies)
    return {frozenset(subtopology.inputs): number for number, subtopology in topology.subtopologies.items()}


def test_the_hash_is_that_of_smhasher() -> None:
    """Source: SMHasher, ``VerificationTest`` in KeysetTest.cpp; the value for MurmurHash64A is in main.cpp."""
    hashes = b"".join(murmur2_64(bytes(range(length)), 256 - length).to_bytes(8, "little") for length in range(256))
    assert murmur2_64(hashes) & 0xFFFFFFFF == 0x1F0D3804


@given(st.lists(TOPICS, min_size=1, max_size=6, unique_by=frozenset), st.randoms(use_true_random=False))
def test_a_number_depends_on_its_topics_alone(subtopologies: list[list[str]], random: object) -> None:
    numbers_by_topics = numbers(subtopologies)
    assert len(set(numbers_by_topics.values())) == len(subtopologies)
    shuffled = [random.sample(topics, len(topics)) for topics in subtopologies]  # type: ignore[attr-defined]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert numbers(shuffled) == numbers_by_topics
    for topics in subtopologies:
        assert numbers([topics]) == {frozenset(topics): numbers_by_topics[frozenset(topics)]}
        assert (
            str(TaskId.parse(f"{numbers_by_topics[frozenset(topics)]}_7"))
            == f"{numbers_by_topics[frozenset(topics)]}_7"
        )


@given(st.lists(TOPICS, min_size=2, max_size=6, unique_by=frozenset), st.randoms(use_true_random=False))
def test_colliding_hashes_are_distinguished_in_any_order(subtopologies: list[list[str]], random: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "murmur2_64", lambda data, seed=0: seed)
        numbers_by_topics = numbers(subtopologies)
        assert sorted(numbers_by_topics.values()) == list(range(len(subtopologies)))
        random.shuffle(subtopologies)  # type: ignore[attr-defined]
        assert numbers(subtopologies) == numbers_by_topics


@pytest.mark.parametrize("subtopologies", [[[]], [["a", "b"], ["b", "a"]]])
def test_what_has_no_hash_of_its_own_is_refused(subtopologies: list[list[str]]) -> None:
    with pytest.raises(ConfigError):
        numbers(subtopologies)
