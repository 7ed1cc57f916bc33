"""``python -m ds4trio``."""

from ds4trio.cli import main

main()
