"""The contrast of two colours."""

from __future__ import annotations


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.2, "relative luminance", of two colours as ``#rgb`` or ``#rrggbb``."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        parts = [int(digits[at] * 2, 16) for at in range(3)] if len(digits) == 3 else list(bytes.fromhex(digits))
        linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
