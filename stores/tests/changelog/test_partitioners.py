"""The partitioners choose as Kafka's do: by its own vectors, and beside its producer in ``kafka/test_partitions``."""

from __future__ import annotations

from random import Random

import pytest

from stores.changelog import partitioners
from stores.changelog.partitioners import PARTITIONERS, all_of_murmur2, murmur2, murmur2_of_all, partitioner_named
from stores.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(key: bytes, signed: int) -> None:
    """Source: Kafka, ``UtilsTest.testMurmur2``."""
    assert murmur2(key) == signed % 2**32
    for count in (1, 2, 3, 7, 12, 1_000):
        assert PARTITIONERS["murmur2"](key, count) == (signed & 0x7FFF_FFFF) % count


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"", 0x106E08D9),
        (b"kafka", 0xD067CF64),
        (b"giberish123456789", 0x8F552B0C),
        (b"1234", 0x9FC97B14),
        (b"234", 0xE7C009CA),
        (b"34", 0x873930DA),
        (b"4", 0x5A4B5CA1),
        (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x78424F1C),
        (b"reAmbleWillBeRemoved,ThePrePartThatIs", 0x4A62B377),
        (b"eAmbleWillBeRemoved,ThePrePartThatIs", 0xE0E4E09E),
        (b"AmbleWillBeRemoved,ThePrePartThatIs", 0x62B8B43F),
    ],
)
def test_murmur2_is_that_of_librdkafka(key: bytes, number: int) -> None:
    """Source: librdkafka, ``rdmurmur2.c``, ``unittest_murmur2``, whose numbers a Java program gave."""
    assert murmur2(key) == number
    assert PARTITIONERS["murmur2_random"](key, 1_000) == (number & 0x7FFF_FFFF) % 1_000


def test_a_key_too_long_for_the_cache_is_hashed_in_the_same_way() -> None:
    """Around the limit of 64 bytes, each key twice: the second answer of a short one comes from the cache."""
    choose = Random(8)
    for size in range(130):
        key = choose.randbytes(size)
        expected = (murmur2(key) & 0x7FFF_FFFF) % 97
        assert [PARTITIONERS["murmur2"](key, 97) for _ in range(2)] == [expected, expected]


@pytest.mark.parametrize("count", [1, 31, 32, 100])
def test_many_keys_are_hashed_as_each_of_them_is(count: int) -> None:
    """``count`` keys of each length, of which 32 or more are hashed at once: all lengths mixed, and one alone."""
    choose = Random(count)
    keys = [choose.randbytes(size) for size in range(70) for _ in range(count)]
    for some in (choose.sample(keys, len(keys)), keys[-count:], [b"\xff" * 8] * count, []):
        assert murmur2_of_all(some) == [murmur2(key) for key in some]
        for partitions in (1, 7):
            each = [PARTITIONERS["murmur2"](key, partitions) for key in some]
            assert all_of_murmur2(some, partitions) == each


def test_only_short_keys_are_kept_in_the_cache() -> None:
    """Its memory is bounded: long keys could take any amount of it."""
    cache = partitioners._cached_murmur2
    cache.cache_clear()
    for size in (64, 65, 1_000_000):
        PARTITIONERS["murmur2"](b"k" * size, 7)
    assert cache.cache_info().currsize == 1


def test_an_unknown_partitioner_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'murmur2'"):
        partitioner_named("murmur")
