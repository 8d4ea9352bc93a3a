"""``make release``: build both packages from the last commit, check them, and try the wheels. Nothing is uploaded.

Each wheel is installed in a fresh environment of each Python that is here, with what the package index has now. There
the Python of README runs, and the commands say their version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.folders import PREFIX, ROOT
from stores.version import __version__

PACKAGES = {"txstores": ".", "txstores-harness": "txstores-harness"}
"""The folder of each package. The first one is the library."""
PYTHONS = ("3.11", "3.12", "3.13")
TOOLS = ROOT / ".venv-release" / "bin" / "python"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


class ReleaseError(Exception):
    """A step of the release has failed; the text says which, and what it printed."""


def main() -> int:
    """Build into ``dist/``, check and try. Return 0 if all of it passed, else 1."""
    folder = ROOT / "dist"
    try:
        files = build(folder)
        print(f"Built from the last commit: {', '.join(file.name for file in files)}", flush=True)
        _run(TOOLS, "-m", "twine", "check", "--strict", *files)
        print("twine check --strict: passed", flush=True)
        for version in PYTHONS:
            python = find_python(version)
            if python is None:
                print(f"Python {version}: NOT TRIED, there is none here (on PATH, or of pyenv)")
                continue
            for name in PACKAGES:
                try_wheel(name, folder, python)
            print(f"Python {version}: both wheels are installed and run, from {python}", flush=True)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(next_steps(folder, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))))
    return 0


def build(folder: Path) -> list[Path]:
    """Build sdists and wheels of the last commit into ``folder``, each wheel from its sdist. Return them.

    What the folder had is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}release-") as tree:
        _run("git", "archive", "--output", f"{tree}/tree.tar", "HEAD", folder=ROOT)
        _run("tar", "-xf", "tree.tar", folder=Path(tree))
        for place in PACKAGES.values():
            _run(TOOLS, "-m", "build", "--no-isolation", "--outdir", folder, place, folder=Path(tree))
    return sorted(folder.iterdir())


def find_python(version: str) -> Path | None:
    """Return a Python of ``version``, such as 3.12, that can make environments; None if this machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    on_path = shutil.which(f"python{version}")
    for candidate in [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        # Asked by running it: a name on PATH may be a shim for a version that is not there.
        code = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
        asked = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if (asked.returncode, asked.stdout.strip()) == (0, version):
            return candidate
    return None


def try_wheel(name: str, folder: Path, python: Path) -> None:
    """Install the wheel of package ``name`` in a fresh environment, and run its command; of the library README as well.

    Raises: ReleaseError.
    """
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}release-") as place:
        environment, work = Path(place, "venv"), Path(place, "work")
        work.mkdir()
        _run(python, "-m", "venv", environment)
        programs = environment / "bin"
        [wheel] = folder.glob(f"{name.replace('-', '_')}-*.whl")
        _run(programs / "python", "-m", "pip", "install", "-q", "--no-compile", "--find-links", folder, wheel)
        said = _run(programs / name, "--version", folder=work)
        if said != f"{name} {__version__}\n":
            raise ReleaseError(f"{name} --version says {said!r}, not {__version__}")
        if name == "txstores":
            for code, expected in blocks((ROOT / "README.md").read_text(encoding="utf-8")):
                printed = _run(programs / "python", "-c", code, folder=work)
                if printed.splitlines() != expected:
                    raise ReleaseError(f"a block of README prints {printed!r}, not {expected}:\n{code}")
        else:
            _run(programs / name, "list", folder=work)


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each block of Python in ``page``, and the lines that it says it prints: the comments of its calls."""
    for code in _BLOCK.findall(page):
        yield code, re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)


def next_steps(folder: Path, changelog: str) -> list[str]:
    """Return what is left to do, as lines."""
    dated = re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE)
    return [
        "Nothing was uploaded. What is left to do:",
        *(
            []
            if dated
            else [f"  write the date of {__version__} into CHANGELOG.md, commit, and run make release again"]
        ),
        f"  git tag v{__version__}, on the commit of which this was built, after .ci/run has passed on it",
        f"  .venv-release/bin/python -m twine upload {folder.name}/*",
    ]


def _run(program: str | Path, *arguments: str | Path, folder: Path | None = None) -> str:
    """Return what a program prints. Raises: ReleaseError if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(program), *map(str, arguments)]
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise ReleaseError(f"{' '.join(command)} ended with status {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
