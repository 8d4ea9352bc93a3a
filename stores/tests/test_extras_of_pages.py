"""A page says which extra a block of it needs, before the block or in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stores

ROOT = Path(stores.__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
NEEDS = {
    "stores.changelog.kafka": "kafka",
    "bootstrap.servers": "kafka",
    "application.server=": "http",
    "stores.telemetry.prometheus": "prometheus",
    "metrics.port=": "prometheus",
    "stores.telemetry.opentelemetry": "opentelemetry",
    "from stores.spark": "spark",
    "import pyspark": "spark",
    "Msgspec": "msgspec",
    "schema_registry": "schema-registry",
}
"""By a part of a block: the extra that the block needs."""
BLOCK = re.compile(r"^```(?!text|mermaid)\w+\n(?s:.*?)^```|^    \S.*\n(?:    .*\n)*", re.MULTILINE)


def lacking(page: str) -> list[str]:
    """Return the extras that a block needs and no text up to its end names."""
    extras = []
    for block in BLOCK.finditer(page):
        before = page[: block.end()]
        for part, extra in NEEDS.items():
            if part in block.group() and not re.search(rf"\[[\w,]*\b{extra}\b[\w,]*\]|extra `{extra}`", before):
                extras.append(extra)
    return extras


def test_a_block_whose_extra_is_not_named_is_found() -> None:
    block = "```python\nfrom stores.changelog.kafka import KafkaChangelog\n```\n"
    assert lacking(block) == ["kafka"]
    assert lacking(f"{block}\nThe extra `kafka`.") == ["kafka"]
    assert lacking(f"The extra `kafka`.\n\n{block}") == lacking(f"`pip install '.[http,kafka]'`\n\n{block}") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_the_extra_of_each_block(page: Path) -> None:
    assert lacking(page.read_text(encoding="utf-8")) == []
