"""The Python of README and of the documents works when pasted, and what they name exists."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from pyspark.find_spark_home import _find_spark_home

from harness.answer import write
from harness.answer.results import all_figures, all_pages, summary_table
from harness.answer.write import (
    ENVIRONMENT_FILE,
    FIGURES_FILE,
    RESULTS,
    TABLE_BEGIN,
    TABLE_END,
    with_table,
    write_report,
)
from harness.experiments.registry import experiments
from harness.processes.spark_cluster import SparkCluster
from harness.tests.made_up_rows import SPEEDS, made_up_rows, run_of

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*s/README.md")])
PRINTED: Mapping[str, list[str | None]] = {
    "README.md": ["b'3' 41\n", ""],
    "docs/adding-a-backend.md": ["", ""],
    "docs/operations.md": ["", "1 0\n"],
    "docs/scale.md": [
        "1 TB: 200 partitions on 2 machines\n"
        "one is lost: 500 GB to each other, 26 min by replay, 9 min by files\n"
        "a month of snapshots: 21 million requests $103, storage $33\n"
        "all of it fetched once: $0.05\n"
        "100 TB: 20,000 partitions on 100 machines\n"
        "one is lost: 10 GB to each other, 32 s by replay, 11 s by files\n"
        "a month of snapshots: 2,063 million requests $10,317, storage $3,266\n"
        "all of it fetched once: $4.77\n"
    ],
    "docs/snapshots.md": [""],
    "docs/stores.md": [
        "DISK\n",
        "",
        "b'3' b'4'\n[(b'apples', b'3')]\n9\n",
        "b'10' b'0' [(b'ann', b'10'), (b'bob', b'0')]\n",
        "{'to': 1} {TopicPartition(topic='changelog', partition=0): 0}\n"
        "{'be': 1, 'to': 1} 2 {TopicPartition(topic='words', partition=0): 2}\n",
        "{'page': 'home'} 1000 ['ann', 'anna']\n",
        "{'be': 2, 'do': 1, 'not': 1, 'or': 1, 'to': 3}\n",
        "1\n{0: 3, 60000: 1} 0\n(Windowed(key='ann', start_ms=1000, end_ms=9000), 3)\n",
        "a-1 500 1000 ()\na-2 700 2000 (('trace', b'4bf9'), ('origin', None))\n",
        "0 3 1000 (('trace', b'4bf9'),)\n60000 1 61000 (('trace', b'77aa'),)\n",
        "True True\nFalse\nNone 5.0\n4.5 10 20\n5.0 20 30\n",
        "{'home': 5, 'shop': 1} 9000 4\n",
    ],
    "docs/tasks.md": [
        "[(b'apples', b'1'), (b'pears', b'1'), (b'apples', b'2')]\n",
        "{'be': 2, 'not': 1, 'or': 1, 'to': 2}\n",
        "{b'orders': b'2', b'sum': b'7'} 1\nb'three' b'ValueError'\n",
        "",
        "[(0, 2), (60000, 1)]\n",
        "[('ann', 30), ('ann', 42)]\n",
        "[(b'home', b'2')]\n",
        "[(b'o2', b'12')]\n",
        "",
        "b'1f'\n",
        "True\n",
    ],
    "docs/kafka.md": [None, "", "5\n"],
    "docs/worker.md": ["", "[]\n", "", "[b'30', b'17']\n", ""],
    "docs/spark.md": [
        "[('be', '2'), ('not', '1'), ('or', '1'), ('to', '2')]\n",
        "[('be', 2), ('not', 1), ('or', 1), ('to', 2)]\n",
        "",
    ],
}
"""The output of each block of Python, by document. Those with None need a broker, and
``stores/tests/kafka/test_documentation.py`` runs them."""
ON_SPARK = "docs/spark.md"
"""A document whose blocks start Spark, which writes its own messages to standard error."""


SPARK_VARIABLES = {
    **{name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ},
    "SPARK_LOCAL_IP": "127.0.0.1",
}
"""Without ``PYSPARK_PYTHON``: on a local master the page promises the Python of the driver."""


def blocks_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_every_block_of_python_is_listed() -> None:
    found = {str(file.relative_to(ROOT)): len(blocks_of(str(file.relative_to(ROOT)))) for file in DOCUMENTS}
    assert {document: count for document, count in found.items() if count} == {
        document: len(printed) for document, printed in PRINTED.items()
    }


@pytest.mark.parametrize(
    ("document", "block", "printed"),
    [
        pytest.param(document, block, printed, marks=[pytest.mark.spark] if document == ON_SPARK else [])
        for document, some in PRINTED.items()
        for block, printed in enumerate(some)
        if printed is not None
    ],
)
def test_a_block_of_python_runs_and_prints_what_it_says(
    tmp_path: Path, document: str, block: int, printed: str
) -> None:
    code = blocks_of(document)[block]
    made = spark_input(tmp_path) if document == ON_SPARK else {"log.sqlite"} if document == "docs/worker.md" else set()
    assert all(f"# {line}\n" in code for line in printed.splitlines())
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)} | (SPARK_VARIABLES if document == ON_SPARK else {}),
        capture_output=True,
        text=True,
        timeout=600 if document == ON_SPARK else 60,
        check=False,
    )
    assert (run.returncode, run.stdout, "" if document == ON_SPARK else run.stderr) == (0, printed, ""), run.stderr
    assert {file.name for file in tmp_path.iterdir()} <= made


def spark_input(folder: Path) -> set[str]:
    """Run the shell line of the document that makes the input; return the names that the program may leave."""
    [line] = re.findall(r"^    (mkdir .*)$", (ROOT / ON_SPARK).read_text(), re.MULTILINE)
    subprocess.run(["sh", "-c", line], cwd=folder, check=True)
    return {"words", "state", "totals", "sink", "checkpoint"}


@pytest.mark.spark
def test_the_program_on_spark_has_fifteen_lines_and_runs_on_a_cluster(tmp_path: Path) -> None:
    code = blocks_of(ON_SPARK)[0]
    assert sum(1 for line in code.splitlines() if line and not line.startswith("#")) <= 15
    spark_input(tmp_path)
    (tmp_path / "count.py").write_text(code)
    submit = Path(_find_spark_home()) / "bin" / "spark-submit"
    with SparkCluster(workers=1) as cluster:
        run = subprocess.run(
            [submit, "--master", cluster.master, "count.py"],
            cwd=tmp_path,
            env=SPARK_VARIABLES | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert (run.returncode, run.stdout) == (0, PRINTED[ON_SPARK][0]), run.stderr
    assert {path.name for path in (tmp_path / "state").iterdir()} > {"log.json"}


@pytest.mark.parametrize("document", ["docs/operations.md", "docs/stores.md", "docs/tasks.md"])
def test_the_contents_of_a_page_list_each_heading(document: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^##(#?) (.*)$", text, re.MULTILINE)
    anchors = {title: re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in headings}
    listed = [f"{'  ' * bool(below)}* [{title}](#{anchors[title]})" for below, title in headings]
    assert re.findall(r"^ *\* \[.*\]\(#.*\)$", text, re.MULTILINE) == listed


@pytest.mark.parametrize("document", [str(file.relative_to(ROOT)) for file in DOCUMENTS])
def test_every_file_scenario_and_link_that_a_document_names_is_there(document: str) -> None:
    file = ROOT / document
    text = file.read_text()
    for scenario in re.findall(r"\bS=([a-z]\w*)", text):
        assert (ROOT / "scenarios" / f"{scenario}.py").is_file()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if not target.startswith("http"):
            linked = (file.parent / target) if target else file
            assert is_there(linked), link
            assert not anchor or not linked.exists() or anchor in anchors_of(linked), link
    for path in re.findall(r"`((?:stores|harness|scenarios|docs|results)/[\w./-]*\w)`", text):
        assert is_there(ROOT / path), path


def is_there(file: Path) -> bool:
    """Return whether a file is in the repository. A run of one's own may have replaced the published results."""
    file = file.resolve()
    return file.name in published() if file.parent == RESULTS else file.exists()


def published() -> set[str]:
    """Return the names of the published results, as the repository has them."""
    tracked = subprocess.run(
        ["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return {Path(name).name for name in tracked}


def test_a_power_loss_trial_is_understood_from_at_most_18_files_that_are_there() -> None:
    text = (ROOT / "docs/power-loss-model.md").read_text()
    listed = re.findall(r"^(\d+)\. `(harness/[^`]+)`", text, re.MULTILINE)
    files = [ROOT / path for _, path in listed]
    assert [int(number) for number, _ in listed] == [*range(1, len(listed) + 1)]
    assert 0 < len(set(files)) == len(files) <= 18
    for file in files:
        assert file.is_file(), file


def test_every_folder_that_the_readme_lists_is_there() -> None:
    folders = re.findall(r"^    (\w+)/ ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert folders
    for folder in folders:
        assert folder == "runs" or (ROOT / folder).is_dir()


def test_a_crash_trial_is_understood_from_fifteen_files() -> None:
    section = (ROOT / "docs/harness.md").read_text().split("## How a crash trial works")[1].split("\n## ")[0]
    files = re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)
    assert 0 < len(files) == len(set(files)) <= 15
    assert [file for file in files if not (ROOT / file).is_file()] == []
    # No file of the list needs another one of the trial or of its checkers, but for the parts of the report.
    report = "harness/experiments/crash/report.py"
    assert {needed for file in files for needed in imported_by(ROOT / file)} <= {*files, report}


def imported_by(file: Path) -> set[str]:
    """The files of crash trials, checkers and faults that a file imports, packages left out."""
    modules = {node.module or "" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)}
    rooms = ("harness.experiments.crash.", "harness.checkers.", "harness.faults")
    return {f"{module.replace('.', '/')}.py" for module in modules if module.startswith(rooms)}


def anchors_of(document: Path) -> set[str]:
    """The anchors that a web page of the document has for its headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows_of(document: str, heading: str) -> set[str]:
    """Return the names in the first column of the table of a document that has this heading."""
    text = (ROOT / document).read_text(encoding="utf-8")
    [table] = re.findall(rf"^\| file \| {heading} \|\n\|[- |]+\|\n((?:\|.*\|\n)+)", text, re.MULTILINE)
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def test_the_tables_of_results_list_each_file_that_is_there_and_no_other_one() -> None:
    """When a run with other pages is published, move their rows from one table to the other."""
    files = published() - {"README.md"}
    there, missing = rows_of("results/README.md", "what it holds"), rows_of("results/README.md", "what it would hold")
    plots = {name for name in files if name.endswith(".svg")}
    assert there - {"*.svg"} == files - plots
    assert missing & files == set()
    pages = {page.file for page in all_pages(all_figures({}), {}, {})}
    assert {name for name in there | missing if name.endswith(".md")} - {"report.md", "machine.md"} == pages


def table_of(results: Path) -> str:
    """The table of README, from the figures that are published in ``results``."""
    figures: defaultdict[str, list[Any]] = defaultdict(list)
    for line in (results / FIGURES_FILE).read_text(encoding="utf-8").splitlines():
        figure = json.loads(line)
        figures[figure["kind"]].append(figure)
    backends = json.loads((results / ENVIRONMENT_FILE).read_text(encoding="utf-8"))["backends"]
    return summary_table(figures, backends, intervals=False).markdown()


def test_the_table_of_readme_is_that_of_the_published_figures() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme, table_of(RESULTS)) == readme


def test_a_number_is_rounded_once_for_readme_and_for_the_published_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 117,499.7 the figures have 117,500, of which the next digit would be rounded up."""
    of_speed_1 = median(
        row["records_per_s"]
        for row in made_up_rows()["throughput"]
        if (row["backend"], row["durability"], row["records_per_commit"]) == ("rocksdb-direct", "CHANGELOG", 1_000)
    )
    monkeypatch.setitem(SPEEDS, "lmdb-indexed-batch", 117_499.7 / of_speed_1)
    monkeypatch.setattr(write, "draw", lambda *given: [])
    readme = tmp_path / "README.md"
    readme.write_text(f"{TABLE_BEGIN}\n{TABLE_END}\n")
    write_report(run_of(tmp_path), tmp_path / "results", readme)
    assert "| 118,000 |" in readme.read_text()
    assert with_table(readme.read_text(), table_of(tmp_path / "results")) == readme.read_text()


def test_the_page_about_the_architecture_names_every_part() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    parts = [path.parent for house in ("stores", "harness") for path in (ROOT / house).glob("*/__init__.py")]
    names = [part.relative_to(ROOT).as_posix() for part in parts if part.name != "tests"]
    assert [name for name in names if f"`{name}/`" not in text] == []


def test_the_page_about_the_architecture_lists_every_experiment() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"a module or a folder per experiment: ([^.]+)\.", text)
    modules = {type(each).__module__.split(".")[2] for each in experiments().values()}
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(modules)
