"""The chart library of the page for browsers, and the charts in its language.

The charts are Vega-Lite (``charts/``), and need figures, colours and a type of scale. The library is Vega-Embed with
Vega and Vega-Lite, as one script from the package vl-convert-python; nothing is fetched.
Source: https://vega.github.io/vega-lite/docs/
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

_CHARTS = files(__package__) / "charts"


@cache
def library() -> str:
    """Return the script that defines ``window.vegaEmbed``, about 900 kB. It takes some seconds once in a process."""
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


@cache
def charts() -> dict[str, Any]:
    """Return each chart without figures, by its kind. The scale of its numbers is the word ``SCALE``."""
    found = sorted(_CHARTS.iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".json"): json.loads(file.read_text("utf-8"))
        for file in found
        if file.name.endswith(".json")
    }
