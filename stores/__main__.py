"""``python -m stores`` is the command ``txstores`` (``stores.command``)."""

from stores.command import main

if __name__ == "__main__":
    raise SystemExit(main())
