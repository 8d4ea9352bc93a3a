"""The Python of README and of the documents works when pasted, and what they name exists."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from harness.spark.cluster import Cluster

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "results/README.md"])
PRINTED = {
    "README.md": ["b'3' 41\n", ""],
    "docs/adding-a-backend.md": ["", ""],
    "docs/guide.md": [
        "DISK\n",
        "",
        "b'3' b'4'\n[(b'apples', b'3')]\n9\n",
        "b'10' b'0' [(b'ann', b'10'), (b'bob', b'0')]\n",
        "{'page': 'home'} 1000 ['ann', 'anna']\n",
        "{'home': 5, 'shop': 1} 9000 4\n",
        "[(b'apples', b'1'), (b'pears', b'1'), (b'apples', b'2')]\n",
        "{b'orders': b'2', b'sum': b'7'} 1\nb'three' b'ValueError'\n",
        "",
        "[(0, 2), (60000, 1)]\n",
        "",
        "b'1f'\n",
        "True\n",
        "",
        "1 0\n",
    ],
    "docs/worker.md": ["", ""],
    "docs/spark.md": ["[('be', '2'), ('not', '1'), ('or', '1'), ('to', '2')]\n", ""],
}
"""The output of each block of Python, by document."""
ON_BROKER = {"docs/kafka.md": 1}
"""The blocks of documents that need a broker: ``stores/tests/kafka/test_documentation.py`` runs them."""
ON_SPARK = "docs/spark.md"
"""A document whose blocks start Spark, which writes its own messages to standard error."""


SPARK_VARIABLES = {
    **{name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ},
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}


def blocks_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_every_block_of_python_is_listed() -> None:
    found = {str(file.relative_to(ROOT)): len(blocks_of(str(file.relative_to(ROOT)))) for file in DOCUMENTS}
    assert {document: count for document, count in found.items() if count} == {
        document: len(printed) for document, printed in PRINTED.items()
    } | ON_BROKER


@pytest.mark.parametrize(
    ("document", "block", "printed"),
    [
        pytest.param(document, block, printed, marks=[pytest.mark.stateful] if document == ON_SPARK else [])
        for document, some in PRINTED.items()
        for block, printed in enumerate(some)
    ],
)
def test_a_block_of_python_runs_and_prints_what_it_says(
    tmp_path: Path, document: str, block: int, printed: str
) -> None:
    code = blocks_of(document)[block]
    made = spark_input(tmp_path) if document == ON_SPARK else set()
    assert all(f"# {line}\n" in code for line in printed.splitlines())
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)} | (SPARK_VARIABLES if document == ON_SPARK else {}),
        capture_output=True,
        text=True,
        timeout=240 if document == ON_SPARK else 60,
        check=False,
    )
    assert (run.returncode, run.stdout, "" if document == ON_SPARK else run.stderr) == (0, printed, ""), run.stderr
    assert {file.name for file in tmp_path.iterdir()} <= made


def spark_input(folder: Path) -> set[str]:
    """Run the shell line of the document that makes the input; return the names that the program may leave."""
    [line] = re.findall(r"^    (mkdir .*)$", (ROOT / ON_SPARK).read_text(), re.MULTILINE)
    subprocess.run(["sh", "-c", line], cwd=folder, check=True)
    return {"words", "state", "sink", "checkpoint"}


@pytest.mark.stateful
@pytest.mark.timeout(600)
def test_the_program_on_spark_has_fifteen_lines_and_runs_on_a_cluster(tmp_path: Path) -> None:
    code = blocks_of(ON_SPARK)[0]
    assert sum(1 for line in code.splitlines() if line and not line.startswith("#")) <= 15
    spark_input(tmp_path)
    (tmp_path / "count.py").write_text(code)
    submit = Path(_find_spark_home()) / "bin" / "spark-submit"
    with Cluster(workers=1) as cluster:
        run = subprocess.run(
            [submit, "--master", cluster.master, "count.py"],
            cwd=tmp_path,
            env=SPARK_VARIABLES | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
    assert (run.returncode, run.stdout) == (0, PRINTED[ON_SPARK][0]), run.stderr
    assert {path.name for path in (tmp_path / "state").iterdir()} > {"log.json"}


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
            assert linked.exists(), link
            assert not anchor or anchor in anchors_of(linked), link
    for path in re.findall(r"`((?:stores|harness|scenarios|docs|results)/[\w./-]*\w)`", text):
        assert (ROOT / path).exists(), path


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
    report = {f"harness/experiments/crash/{name}.py" for name in ("figures", "report", "tables")}
    assert {needed for file in files for needed in imported_by(ROOT / file)} <= {*files, *report}


def imported_by(file: Path) -> set[str]:
    """The files of crash trials, checkers and faults that a file imports, packages left out."""
    modules = {node.module or "" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)}
    rooms = ("harness.experiments.crash.", "harness.checkers.", "harness.faults.")
    return {f"{module.replace('.', '/')}.py" for module in modules if module.startswith(rooms)}


def anchors_of(document: Path) -> set[str]:
    """The anchors that a web page of the document has for its headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
