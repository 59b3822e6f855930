"""pytest-rerunfailures for isolated tests: each attempt has a process of its own.

Its own loop cannot run here, as it repeats the setup in the process that failed. Its settings
are asked for by its functions, those of versions 15 and 16 (not 16.0, which 16.0.1 took back).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest


def _plugin(config: pytest.Config) -> Any:
    module = sys.modules.get("pytest_rerunfailures")
    return module if module and config.pluginmanager.is_registered(module) else None


class Reruns:
    """How often one isolated item may be tried again, asked by pytest."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._plugin = _plugin(item.config)
        excluded = getattr(self._plugin, "_is_rerun_path_excluded", lambda item: False)
        self.count = 0
        if self._plugin is not None and not excluded(item):
            self.count = self._plugin.get_reruns_count(item) or 0

    def crash_is_final(self, report: pytest.TestReport, error: Exception) -> bool:
        """Do the filters (``--only-rerun`` and others) exclude this crash?"""
        if not self.count:
            return True
        try:
            raise error
        except Exception:
            excinfo = pytest.ExceptionInfo.from_current()
        final = self._plugin._should_hard_fail_on_error(self._item, report, excinfo)
        return bool(final) or not _condition(self._plugin, self._item, ())

    def again(self, attempt: int) -> bool:
        """Is another attempt left after this one (from 0)? Waits for the delay before it."""
        if attempt >= self.count:
            return False
        limit = getattr(self._item.config.option, "max_suite_reruns", None)
        if limit is not None:
            database = self._item.config.failures_db  # type: ignore[attr-defined]
            if not database.try_increment_suite_reruns(limit):
                return False
        factor = getattr(self._plugin, "get_reruns_delay_backoff_factor", lambda item: 1.0)
        delay = self._plugin.get_reruns_delay(self._item)
        time.sleep(delay * factor(self._item) ** attempt)
        return True


def allowed(item: pytest.Item, failed: bool) -> bool:
    """In the child, after its test: do the plugin's filters and conditions allow another try?"""
    plugin = _plugin(item.config)
    if plugin is None or not failed:
        return True
    if any(getattr(item, "_terminal_errors", {}).values()):
        return False
    failures = getattr(plugin, "_get_reruns_condition_failures", lambda item: ())
    return _condition(plugin, item, failures(item))


def _condition(plugin: Any, item: pytest.Item, failures: Sequence[Any]) -> bool:
    """The condition of the item's mark, true without one. Version 15 knows no failures."""
    known = (failures,) if hasattr(plugin, "_get_reruns_condition_failures") else ()
    return bool(plugin.get_reruns_condition(item, *known))
