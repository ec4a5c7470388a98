"""The command line: verb -> function. Imports are lazy, so that help answers at once."""

import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit status.

    Without `argv` the arguments of this process are used; its standard streams are then repaired,
    and it ends when its parent ends.
    """
    try:
        from unitsphere.cli.app import run_line  # takes a while, and Ctrl-C may come in it

        return run_line(argv)
    except KeyboardInterrupt:
        print("unitsphere: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
