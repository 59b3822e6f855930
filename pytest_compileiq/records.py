"""Names under which what a test found rides on its reports, through workers and forks too.

Each is the name of a user property of pytest's reports, one that no test gives to its own.
"""

from __future__ import annotations

PREFIX = "_pytest_compileiq."
#: A verdict, as JSON.
VERDICT = PREFIX + "verdict"
#: What the test's GPU did, as JSON.
GPU = PREFIX + "gpu"
#: The folder that ``--ciq-keep`` left.
KEPT = PREFIX + "kept"
#: What may mislead the reader of a search's result, one line.
NOTE = PREFIX + "note"
#: ACFs and sidecars that --ciq-accept writes at the end of the run, of a test that passed, as JSON.
OFFER = PREFIX + "offer"
