"""The arrows between the parts point one way: read from the imports of every file, with ``ast``, none of it run.

The rules stand in ``violations``; the tests below first break each rule in a made-up tree, so that a rule that finds
nothing has been seen to find something.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import stores

ROOT = Path(stores.__file__).parents[1]
HOUSES = ("stores", "harness", "scenarios")

SEAM = "stores.engines.engine"
"""The interface of all engines. It belongs to none of them, and the batch and the strategies may import it."""

LAYERS: Mapping[str, frozenset[str]] = {
    name: frozenset(f"stores.{part}" for part in parts.split())
    for name, parts in {
        "words": "errors failpoints metrics ordered process version",
        "programs and keys": "changed_keys java",
        "values of the contract": "contract extras",
        "contract": "interface",
        "seam": "engines.engine forwarding meta_entries",
        "files": "files",
        "engines": "batch engines",
        "strategies": "strategies",
        "changelog and registry": "changelog records registry",
        "readers of files": "read_only snapshots",
        "settings": "memory_limit settings",
        "configuration": "config topic",
        "declarations": "declarations",
        "tasks": "tasks telemetry",
        "tools": "relocate shell spark worker",
        "tests of users": "testing",
        "commands": "command",
        "programs of Python": "__main__",
    }.items()
}
"""The parts of ``stores`` from the bottom up: an import goes to a lower layer, or stays within its own part."""

ENGINES: Mapping[str, frozenset[str]] = {
    "rocksdb": frozenset({"rocksdict"}),
    "lmdb": frozenset({"lmdb"}),
    "sqlite": frozenset({"sqlite3", "sqlite_utils", "apsw"}),
    "memory": frozenset(),
}
"""The engines and the libraries that only they may import."""

STRATEGIES = re.compile(r"(dual_store|indexed_batch|native|direct)\.")
"""The first words of the failpoints of our strategies."""
RESULTS = re.compile(r"(\./)?results(/|$)")


@dataclass(frozen=True)
class Module:
    """One file: its dotted name, what it imports, its public classes, the strings (no docstrings) and names in it.

    Of a test it has no strings and names.
    """

    name: str
    imports: frozenset[str]
    strings: tuple[str, ...]
    names: frozenset[str]
    classes: tuple[str, ...]

    def within(self, *parts: str) -> bool:
        return any(is_within(self.name, part) for part in parts)

    def is_test(self) -> bool:
        return is_test(self.name)


def is_test(name: str) -> bool:
    return ".tests." in f"{name}."


def is_within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def modules_of(root: Path) -> dict[str, Module]:
    """Every module of the three houses below ``root``, by name."""
    files = {name_of(file.relative_to(root)): file for house in HOUSES for file in sorted((root / house).rglob("*.py"))}
    gc.disable()  # Trees of many nodes, and no garbage.
    try:
        return {name: read_module(name, file, files) for name, file in files.items()}
    finally:
        gc.enable()


def name_of(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_module(name: str, file: Path, known: Mapping[str, Path]) -> Module:
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    # No rule looks at a test's strings and names.
    nodes = [] if is_test(name) else list(ast.walk(tree))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    documentation = set(docstrings(nodes))
    constants = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return Module(
        name,
        frozenset(imported(statements(tree), package, known)),
        tuple(str(node.value) for node in constants if node not in documentation),
        frozenset(
            {node.id for node in nodes if isinstance(node, ast.Name)}
            | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        ),
        tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")),
    )


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, wherever it stands. No import is within an expression."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Every string that stands alone as a statement."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def imported(nodes: Iterable[ast.AST], package: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Names of modules, absolute; ``from a import b`` gives ``a.b`` where that is a module of ours, else ``a``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield inner if inner in known else origin


def violations(modules: Mapping[str, Module]) -> list[str]:
    """Every import or word of ``modules`` that breaks an arrow, as one sentence each."""
    return [
        *against_the_houses(modules),
        *against_the_layers(modules),
        *cycles(modules),
        *module_cycles(modules),
        *engines_named(modules),
        *outsiders(modules),
        *strategies_known(modules),
        *impure_checkers(modules),
        *impure_oracle(modules),
        *results_written(modules),
        *rooms_of_the_report(modules),
        *below_experiments(modules),
        *rooms_of_tasks(modules),
        *namesakes(modules),
    ]


def against_the_houses(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        own = HOUSES.index(module.name.split(".")[0])
        for target in sorted(module.imports):
            house = target.split(".")[0]
            if house in HOUSES and HOUSES.index(house) > own and not module.name.startswith("harness.tests"):
                yield f"{module.name} imports {target}: {HOUSES[own]} must not know {house}"


def against_the_layers(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if not module.within("stores") or module.name == "stores" or module.is_test():
            continue
        own = layer_of(module.name)
        if own is None:
            yield f"{module.name} has no layer: put {part_of(module.name)} into LAYERS"
            continue
        for target in sorted(module.imports):
            other = layer_of(target)
            if other is not None and other >= own and part_of(target) != part_of(module.name):
                yield f"{module.name} imports {target}, which is not below it"


def layer_of(name: str) -> int | None:
    return next((level for level, parts in enumerate(LAYERS.values()) if part_of(name) in parts), None)


def part_of(name: str) -> str:
    """The part of ``stores`` that a module belongs to: ``stores.tasks`` for ``stores.tasks.stores.log_follower``."""
    return SEAM if name == SEAM else ".".join(name.split(".")[:2])


def cycles(modules: Mapping[str, Module]) -> Iterator[str]:
    """Parts of ``stores`` that know each other; its front door ``stores`` itself belongs to none of them."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        if module.within("stores") and module.name != "stores" and not module.is_test():
            parts = {part_of(target) for target in module.imports if is_within(target, "stores")}
            graph.setdefault(part_of(module.name), set()).update(parts - {part_of(module.name)})
            if "stores" in module.imports:
                yield f"{module.name} goes through the front door: it must import the part of stores that it means"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"parts of stores know each other: {' -> '.join(error.args[1])}"


def module_cycles(modules: Mapping[str, Module]) -> Iterator[str]:
    """Modules of one house that import each other, wherever the import stands: in a function or for types only, too.

    A package is the file that it exports from, so a module that imports from its own package is in a circle as well.
    """
    graph = {
        module.name: {target for target in module.imports if target in modules}
        for module in modules.values()
        if module.within("stores", "harness")
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"modules import each other: {' -> '.join(error.args[1])}"


def engines_named(modules: Mapping[str, Module]) -> Iterator[str]:
    """No engine is named by another, nor by a strategy, the buffer or the merge: not by import, name or string."""
    for module in modules.values():
        if not module.within("stores.engines", "stores.strategies", "stores.batch.buffer", "stores.batch.merge"):
            continue
        for engine, libraries in ENGINES.items():
            if module.within(f"stores.engines.{engine}"):
                continue
            forbidden = {f"stores.engines.{engine}", *libraries}
            for target in sorted(module.imports):
                if any(is_within(target, name) for name in forbidden):
                    yield f"{module.name} imports {target}"
            words = re.compile("|".join({engine, *libraries}), re.IGNORECASE)
            # "memory" is also a plain English word.
            if engine != "memory" and any(words.search(text) for text in [*module.strings, *module.names]):
                yield f"{module.name} names the engine {engine}"


ON_SPARK = ("stores.spark", "harness.spark", "harness.tests")


def outsiders(modules: Mapping[str, Module]) -> Iterator[str]:
    """Spark is for ``stores.spark`` and ``harness.spark`` alone."""
    for module in modules.values():
        for target in sorted(module.imports):
            if is_within(target, "pyspark") and not module.within(*ON_SPARK):
                yield f"{module.name} imports {target}: only stores.spark and harness.spark know Spark"
            if is_within(target, "harness.spark") and module.within("harness.experiments"):
                yield f"{module.name} imports {target}: an experiment starts what is on Spark as a process"


BREAKERS = ("harness.mutants", "harness.tests")
"""Modules that build defects into strategies, and so have to know them."""


def strategies_known(modules: Mapping[str, Module]) -> Iterator[str]:
    """All else in the harness asks a backend what it declares, and so takes another package's strategy as ours."""
    for module in modules.values():
        if not module.within("harness") or module.within(*BREAKERS):
            continue
        for target in sorted(module.imports):
            if is_within(target, "stores.strategies"):
                yield f"{module.name} imports {target}: it must ask the backend"
        yield from (f"{module.name} names {text!r}" for text in module.strings if STRATEGIES.match(text))


def impure_checkers(modules: Mapping[str, Module]) -> Iterator[str]:
    """A checker shares no code with the library that it checks, not even by way of a third module."""
    for checker in [module for module in modules.values() if module.within("harness.checkers")]:
        seen: set[str] = set()
        waiting = [checker.name]
        while waiting:
            name = waiting.pop()
            if is_within(name, "stores"):
                yield f"{checker.name} reaches {name}: a checker shares no code with stores"
            elif name in modules and name not in seen:
                seen.add(name)
                packages = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
                waiting.extend([*sorted(modules[name].imports), *packages])


ORACLE = "harness.experiments.crash.operations"
"""The module that computes the correct result of a crash trial's input, with dictionaries."""


def impure_oracle(modules: Mapping[str, Module]) -> Iterator[str]:
    """The oracle knows nothing of stores but the error for a wrong setting, and no other module that does."""
    allowed = ("stores.errors", "harness.checkers")
    for target in sorted(modules[ORACLE].imports if ORACLE in modules else ()):
        if target.split(".")[0] in HOUSES and not any(is_within(target, part) for part in allowed):
            yield f"{ORACLE} imports {target}: an oracle shares no code with what it checks"


def results_written(modules: Mapping[str, Module]) -> Iterator[str]:
    """Only ``harness.answer`` writes to ``results/``, so nobody else has a use for that folder's name."""
    for module in modules.values():
        if not module.within("harness.answer") and not module.is_test():
            yield from (f"{module.name} names {text!r}" for text in module.strings if RESULTS.match(text))


def rooms_of_the_report(modules: Mapping[str, Module]) -> Iterator[str]:
    """A report is made of parts that know no experiment; experiments use them, and the answer uses experiments."""
    above = ("harness.experiment", "harness.experiments", "harness.answer", "harness.run", "harness.scenario")
    for module in modules.values():
        for target in sorted(module.imports):
            if module.within("harness.report") and any(is_within(target, part) for part in above):
                yield f"{module.name} imports {target}: harness.report knows no experiment"
            if module.within("harness.experiments") and is_within(target, "harness.answer"):
                yield f"{module.name} imports {target}: an experiment does not know what others found"


BELOW_EXPERIMENTS = ("harness.scenario", "harness.budget", "harness.experiment")


def below_experiments(modules: Mapping[str, Module]) -> Iterator[str]:
    """A scenario names its experiment and a profile has no sizes of any: each experiment brings its own."""
    for module in modules.values():
        if module.name in BELOW_EXPERIMENTS:
            for target in sorted(module.imports):
                if is_within(target, "harness.experiments"):
                    yield f"{module.name} imports {target}: it knows no experiment"


def rooms_of_tasks(modules: Mapping[str, Module]) -> Iterator[str]:
    """The state directory finds and moves the folders of stores, and knows nothing of their changelogs and formats."""
    for module in modules.values():
        if module.within("stores.tasks.directory"):
            for target in sorted(module.imports):
                if is_within(target, "stores.tasks.stores"):
                    yield f"{module.name} imports {target}: stores.tasks.directory is below stores.tasks.stores"


def namesakes(modules: Mapping[str, Module]) -> Iterator[str]:
    """A public class has a name of its own: only imports distinguish two of one name."""
    homes: dict[str, list[str]] = {}
    for module in modules.values():
        if not module.is_test():
            for name in module.classes:
                homes.setdefault(name, []).append(module.name)
    yield from (f"the class {name} is in {' and in '.join(of)}" for name, of in homes.items() if len(of) > 1)


def test_every_import_of_the_project_follows_the_arrows() -> None:
    modules = modules_of(ROOT)
    assert {"stores.interface", "stores.errors"} <= set(modules)
    assert violations(modules) == []


def test_an_orderly_tree_breaks_no_rule(tmp_path: Path) -> None:
    plant(tmp_path, ORDERLY)
    assert violations(modules_of(tmp_path)) == []


ORDERLY = {
    "stores/__init__.py": "from stores.interface import Store",
    "stores/errors.py": "class StoreError(Exception): ...",
    "stores/interface.py": "from .errors import StoreError\nclass Store: ...",
    "stores/engines/__init__.py": "",
    "stores/engines/engine.py": "from stores.interface import Store",
    "stores/engines/lmdb.py": "import lmdb\nfrom stores.engines import engine",
    "stores/engines/memory.py": "from .engine import Engine",
    "stores/batch/buffer.py": "from stores.engines.engine import Writes",
    "stores/strategies/direct.py": '"""As rocksdb-direct does."""\nfrom stores.batch.buffer import Batch',
    "stores/tasks/__init__.py": "from . import task",
    "stores/tasks/task.py": "from stores.strategies import direct\nfrom stores.changelog import Changelog",
    "stores/changelog/__init__.py": "import sqlite3",
    "harness/__init__.py": "",
    "harness/spark/session.py": "import pyspark.sql",
    "harness/checkers/__init__.py": "",
    "harness/checkers/atomicity.py": "from harness.history import History",
    "harness/history.py": "import json",
    "harness/report/page.py": "import json",
    "harness/experiments/crash/operations.py": "from harness.checkers.atomicity import Found\nimport stores.errors",
    "harness/experiments/crash/report.py": "from harness.report import page",
    "harness/answer/write.py": "from harness.experiments.crash import report\nFOLDER = 'results/figures'",
    "scenarios/throughput.py": "from harness.spark import session",
}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("stores/interface.py", "import harness"),
        ("stores/tests/batch/test_buffer.py", "from harness.checkers import atomicity"),
        ("harness/spark/session.py", "def run():\n    import scenarios.throughput"),
        ("stores/errors.py", "from stores.interface import Store"),
        ("stores/engines/lmdb.py", "from stores.strategies import direct"),
        ("stores/engines/lmdb.py", "from ..strategies import direct"),
        ("stores/strategies/direct.py", "from stores.tasks.task import Task"),
        ("stores/changelog/__init__.py", "if True:\n    from stores.records import serdes"),
        ("stores/metrics.py", "from stores.meta_entries import b"),
        ("stores/errors.py", "import stores.errors"),
        ("stores/tasks/task.py", "if TYPE_CHECKING:\n    from stores.tasks import StreamTask"),
        ("stores/tasks/task.py", "def late():\n    import stores.tasks"),
        ("stores/tasks/directory/places.py", "from stores.tasks.stores.swap import ENDS"),
        ("stores/brand_new.py", ""),
        ("stores/brand_new/part.py", "import json"),
        ("stores/batch/buffer.py", "from stores import Store"),
        ("stores/strategies/direct.py", "from stores.engines.lmdb import LmdbEngine"),
        ("stores/strategies/direct.py", "from stores.engines import memory"),
        ("stores/strategies/direct.py", "import rocksdict"),
        ("stores/strategies/direct.py", "if engine.name == 'rocksdb': pass"),
        ("stores/strategies/direct.py", "class A: ...\nA.SqliteEngine"),
        ("stores/batch/buffer.py", "from stores.engines import lmdb"),
        ("stores/engines/memory.py", "from .lmdb import LmdbEngine"),
        ("stores/engines/lmdb.py", "hint = 'try sqlite instead'"),
        ("harness/history.py", "from pyspark.sql import Row"),
        ("harness/experiments/crash/report.py", "def late():\n    from harness.spark import session"),
        ("stores/tasks/task.py", "def late():\n    import pyspark"),
        ("stores/tasks/task.py", "import stores.spark.task"),
        ("scenarios/throughput.py", "import pyspark"),
        ("harness/checkers/atomicity.py", "from stores.interface import Store"),
        ("harness/plan.py", "from stores.strategies.direct import DirectStaging"),
        ("harness/plan.py", "first = 'dual_store.mid_copy'"),
        ("harness/history.py", "from stores import Store"),
        ("harness/history.py", "from harness.checkers.atomicity import Found"),
        ("harness/history.py", "if TYPE_CHECKING:\n    from harness.checkers import atomicity"),
        ("harness/experiments/crash/operations.py", "from stores.interface import Store"),
        ("harness/experiments/crash/operations.py", "from harness.typed_maps import as_map"),
        ("harness/__init__.py", "import stores.errors"),
        ("harness/history.py", "open('results/report.md', 'w')"),
        ("harness/history.py", "folder = root / 'results'"),
        ("harness/report/page.py", "FOLDER = 'results/figures'"),
        ("harness/report/page.py", "from harness.experiments.crash import report"),
        ("harness/report/page.py", "from harness.answer.write import publish"),
        ("harness/experiments/crash/report.py", "from harness.answer import write"),
        ("harness/scenario.py", "from harness.experiments.crash import report"),
        ("harness/budget.py", "def late():\n    from harness.experiments.crash import report"),
        ("harness/history.py", "class Store: ..."),
    ],
)
def test_each_rule_reports_an_import_that_breaks_it(tmp_path: Path, file: str, text: str) -> None:
    plant(tmp_path, ORDERLY | {file: text})
    offences = violations(modules_of(tmp_path))
    assert offences
    assert len(offences) == len(set(offences))


def plant(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
