"""``python -m pytest_compileiq COMMAND``: what runs no tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

#: Command -> (module with ``main(arguments) -> exit status``, one line of help).
COMMANDS = {
    "doctor": ("pytest_compileiq.doctor", "look at what the tests need, and name each cure"),
    "history": ("pytest_compileiq.report.history", "print and plot the reports of many runs"),
    "selfcheck": ("pytest_compileiq.selfcheck", "how often is a verdict wrong on this GPU?"),
    "replay": ("pytest_compileiq.replay", "recompute the verdicts of a JSON report"),
    "diagnose": ("pytest_compileiq.diagnose", "name what is wrong with a search's results.csv"),
    "reset-clocks": ("pytest_compileiq.gpu.recovery", "undo clock locks that killed runs left"),
}


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit status, 2 for a command that does not exist."""
    name = arguments[0] if arguments else "--help"
    if name in COMMANDS:
        command = importlib.import_module(COMMANDS[name][0])
        return int(command.main(arguments[1:]))
    asked = name in ("-h", "--help")
    stream = sys.stdout if asked else sys.stderr
    if not asked:
        print(f"there is no command {name!r}", file=stream)
    print("usage: python -m pytest_compileiq COMMAND [--help]", file=stream)
    for known, (_, line) in COMMANDS.items():
        print(f"  {known:<14}{line}", file=stream)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
