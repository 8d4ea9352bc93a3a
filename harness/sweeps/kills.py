"""A process is killed before each of its effects, or inside a write; or again, at each effect of what recovers it."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator

from harness.checkers.prefix import Demand, Found, Judgement, Promised
from harness.effects.recording import Effect, Kind
from harness.sweeps.workshop import Life, Plan, Row, Workshop

_TEARS = 2
_SECTOR_BYTES = 512


def kills(shop: Workshop, points: range, only: str = "") -> Iterator[Row]:
    """Kill before effect ``point``, for each of ``points``; behind the last effect the victim comes to its end."""
    for point in points:
        yield _killed(shop, point, "", ["Kill", point], f"killed before effect {point}")


def tears(shop: Workshop, points: range, only: str = "") -> Iterator[Row]:
    """Kill inside each write among ``points``, after some of its bytes.

    How long it is a recording tells: where background threads write, the effect may be another one this time.
    """
    effects = {effect.index: effect for effect in shop.recording() if effect.kind is Kind.WRITE}
    for point in points:
        if point in effects:
            for length in _lengths(effects[point], shop.seed):
                if only in ("", str(length)):
                    description = f"killed {length} bytes into effect {point}"
                    yield _killed(shop, point, str(length), ["Tear", point, length], description)


def kills_twice(shop: Workshop, points: range, only: str = "") -> Iterator[Row]:
    """Kill before effect ``point``, and then whoever recovers, before each of its own effects in turn."""
    demanded = shop.demanded("kill")
    crashed = shop.scratch("crashed")
    for point in points:
        told, so_far = _crashed(shop, demanded, point)
        if not so_far.expected:
            yield shop.row(point, "", f"killed before effect {point}", told, so_far)
            continue
        shutil.rmtree(crashed, ignore_errors=True)
        shutil.copytree(shop.root, crashed)
        again = int(only or 0)
        if again < 0:
            raise ValueError("the first effect is 0")
        killed = True
        while killed:
            killed, told_again, judgement = _killed_again(shop, told, demanded, again)
            description = f"killed before effect {point}, and its recovery before effect {again}"
            yield shop.row(point, str(again), description, told_again, judgement)
            again += 1
            if only:
                break


def _killed(shop: Workshop, point: int, only: str, plan: Plan, description: str) -> Row:
    demanded = shop.demanded("kill")
    life: Life | None = None

    def trial() -> tuple[Promised, Judgement]:
        nonlocal life
        life = shop.victim(plan)
        told = shop.told(life, demanded)
        return told, shop.judge(told, demanded)

    told, judgement = shop.patiently(trial)
    if life is not None and not life.killed:
        description += ", which was not reached"
    return shop.row(point, only, description, told, judgement)


def _crashed(shop: Workshop, demanded: Demand, point: int) -> tuple[Promised, Judgement]:
    """Kill before effect ``point``; what was promised, and what is wrong before anybody has looked at what was left."""

    def trial() -> tuple[Promised, Judgement]:
        told = shop.told(shop.victim(["Kill", point]), demanded)
        if told.trouble:
            return told, Judgement(Found.HARNESS_ERROR, None, False, told.trouble)
        if told.broken is not None:
            return told, Judgement(told.broken[0], None, False, told.broken[1])
        return told, Judgement(Found.VALID, None, True)

    return shop.patiently(trial)


def _killed_again(shop: Workshop, told: Promised, demanded: Demand, again: int) -> tuple[bool, Promised, Judgement]:
    killed = False

    def trial() -> tuple[Promised, Judgement]:
        nonlocal killed
        shutil.rmtree(shop.root)
        shutil.copytree(shop.scratch("crashed"), shop.root)
        recovery = shop.recover(["Kill", again], boot="")
        killed = recovery.signal == signal.SIGKILL and not recovery.timed_out
        if recovery.timed_out:
            return told, Judgement(Found.HANGING, None, False, "the recovery did not come to an end")
        if not killed and recovery.signal is not None:
            return told, Judgement(Found.DEADLY, None, False, f"the recovery was ended by signal {recovery.signal}")
        if recovery.error:
            return told, Judgement(Found.HARNESS_ERROR, None, False, f"the recovery raised {recovery.error}")
        if not killed and recovery.result["leaked"]:
            return told, Judgement(Found.LEAKED_EXCEPTION, None, False, recovery.result["leaked"])
        return told, shop.judge(told, demanded)

    told_again, judgement = shop.patiently(trial)
    return killed, told_again, judgement


def _lengths(effect: Effect, seed: int) -> list[int]:
    """Where to tear a write: anywhere, and at a sector's end."""
    size = len(effect.data)
    choose = random.Random(f"tear {seed} {effect.index}")
    anywhere = {choose.randrange(1, size) for _ in range(_TEARS - 1)} if size > 1 else set()
    sectors = range(_SECTOR_BYTES - effect.offset % _SECTOR_BYTES, size, _SECTOR_BYTES)
    return sorted(anywhere | ({choose.choice(sectors)} if sectors else set()))
