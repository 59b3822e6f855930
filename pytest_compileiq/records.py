"""Names under which what a test found rides on its reports, through workers and forks too.

Each is the name of a user property of pytest's reports.
"""

from __future__ import annotations

#: A verdict, as JSON.
VERDICT = "ciq"
#: What the test's GPU did, as JSON.
GPU = "ciq-gpu"
#: The folder that ``--ciq-keep`` left.
KEPT = "ciq-kept"
#: What may mislead the reader of a search's result, one line.
NOTE = "ciq-note"
