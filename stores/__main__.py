"""``python -m stores``: the shell tool for stores on disk (``stores.shell.command``)."""

from stores.shell.command import main

if __name__ == "__main__":
    raise SystemExit(main())
