"""The keys that requests pick: frequencies agree with the theory, and a seed gives the same keys everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.workloads.ycsb import (
    SCRAMBLED_ITEMS,
    ZIPFIAN_CONSTANT,
    Source,
    fnv1a_64,
    latest,
    scrambled_zipfian,
    uniform,
    zeta,
    zipfian,
)

DRAWS = 400_000


def fnv1a_64_of_bytes(data: bytes) -> int:
    """The hash as its definition has it, over any bytes."""
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


@pytest.mark.parametrize("items", [1, 2, 3, 999, 1_000, 1_001, 50_000])
def test_zeta_is_the_sum_it_stands_for(items: int) -> None:
    assert zeta(items) == pytest.approx(math.fsum(i**-ZIPFIAN_CONSTANT for i in range(1, items + 1)), abs=2e-12)


def test_zeta_of_ten_billion_is_the_constant_that_ycsb_carries() -> None:
    assert zeta(SCRAMBLED_ITEMS) == pytest.approx(26.46902820178302, rel=1e-10)


@pytest.mark.parametrize("items", [100, 10_000])
def test_zipfian_ranks_come_as_often_as_their_theory_says(items: int) -> None:
    """Gray's formula is exact for the first two ranks and approximates the others, within a few percent."""
    counts = np.bincount(zipfian(Source(1), items, DRAWS), minlength=items) / DRAWS
    theory = np.arange(1, items + 1) ** -ZIPFIAN_CONSTANT / zeta(items)
    assert counts[:2] == pytest.approx(theory[:2], rel=0.02)
    for bound in (10, items // 2, items):
        assert counts[:bound].sum() == pytest.approx(theory[:bound].sum(), rel=0.06)


@settings(max_examples=30, deadline=None)
@given(items=st.integers(1, 10**10), seed=st.integers(0, 2**32))
def test_zipfian_ranks_stay_below_the_number_of_items(items: int, seed: int) -> None:
    ranks = zipfian(Source(seed), items, 200)
    assert ranks.min() >= 0
    assert ranks.max() < items


def test_scrambled_zipfian_keeps_the_popularity_and_scatters_the_popular_keys() -> None:
    items = 1_000
    counts = np.bincount(scrambled_zipfian(Source(2), items, DRAWS), minlength=items)
    popular = np.argsort(counts)[::-1]
    assert popular[:2].tolist() == (fnv1a_64(np.arange(2, dtype=np.int64)) % items).tolist()
    tail = (1 - 1 / zeta(SCRAMBLED_ITEMS)) / items
    assert counts[popular[0]] / DRAWS == pytest.approx(1 / zeta(SCRAMBLED_ITEMS), abs=2 * tail)


def test_latest_prefers_the_newest_and_never_passes_it() -> None:
    newest = np.repeat(np.array([1, 50, 1_000], dtype=np.int64), 50_000)
    chosen = latest(Source(3), newest)
    assert (chosen >= 1).all()
    assert (chosen <= newest).all()
    last = chosen[100_000:]
    assert np.bincount(last).argmax() == 1_000
    assert np.mean(last == 1_000) == pytest.approx(1 / zeta(1_000), rel=0.03)


def test_uniform_gives_every_key_its_share() -> None:
    counts = np.bincount(uniform(Source(4), 10, 100_000), minlength=10)
    assert counts == pytest.approx(np.full(10, 10_000), rel=0.05)


@pytest.mark.parametrize(
    ("data", "hashed"), [(b"", 0xCBF29CE484222325), (b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)]
)
def test_the_reference_hash_gives_the_published_vectors(data: bytes, hashed: int) -> None:
    """Source: Fowler, Noll, Vo, draft-eastlake-fnv, appendix with test vectors."""
    assert fnv1a_64_of_bytes(data) == hashed


@given(st.integers(0, 2**63 - 1))
def test_the_hash_of_a_number_is_fnv_1a_of_its_bytes_without_sign(number: int) -> None:
    unsigned = fnv1a_64_of_bytes(number.to_bytes(8, "little"))
    signed = unsigned - 2**64 if unsigned >= 2**63 else unsigned
    assert fnv1a_64(np.array([number], dtype=np.int64)).tolist() == [abs(signed)]


def test_a_seed_gives_the_same_numbers_on_every_machine() -> None:
    """Literal values: a change of them would make figures of different versions incomparable."""
    assert Source(7).below(1_000, 5).tolist() == [625, 897, 775, 225, 300]
    assert zipfian(Source(7), 1_000_000, 5).tolist() == [5274, 243950, 44828, 14, 44]
    assert scrambled_zipfian(Source(7), 1_000_000, 5).tolist() == [545544, 346295, 890396, 894949, 684437]
    assert Source(7).random_bytes(5).hex() == "8b4ae5f1a9"


def test_different_seeds_give_different_numbers() -> None:
    assert Source(1).below(2**40, 10).tolist() != Source(2).below(2**40, 10).tolist()
    assert Source(1, 1).below(2**40, 10).tolist() != Source(1, 2).below(2**40, 10).tolist()
