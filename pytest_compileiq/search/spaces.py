"""Search spaces: what may be given for one, and what is known of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pytest_compileiq.errors import SettingsError


def resolve(space: Any, folder: Path) -> Any:
    """What ``Search`` takes: a dict, a path, a provider, or a list of them.

    A path of a ``.bin`` file is relative to ``folder``. Raises SettingsError when it is missing.
    """
    if isinstance(space, list | tuple):
        return [resolve(one, folder) for one in space]
    if isinstance(space, dict) or callable(getattr(space, "retrieve", None)):
        return space
    what = f"{space!r} ({type(space).__name__}) is no search space"
    if isinstance(space, str | os.PathLike):
        path = folder / Path(space)
        if path.is_file():
            return path.resolve()
        what = f"the search space {path} is not a file"
    raise SettingsError(
        what,
        remedy="give a dict, a provider such as PtxasSearchSpace(), the path of a .bin file, or "
        "a list of these",
    )


def makes_acfs(space: Any) -> bool:
    """Are its candidates ACFs, in full or in part?"""
    return any(not isinstance(one, dict) for one in (space if isinstance(space, list) else [space]))


def notes_on(space: Any) -> list[str]:
    """What will mislead whoever reads the result."""
    notes = []
    parts = space if isinstance(space, list) else [space]
    if len(parts) > 1 and makes_acfs(space):
        notes.append(
            "mixed space: the winner's ACF was found together with its other parameters, and "
            "the baseline {} has neither. Compare the ACF with none at the winner's parameters "
            "(Objective(..., mix=...)) before you call the ACF a win"
        )
    for part in parts:
        drifts = getattr(part, "tag", None) == "latest"
        if drifts and not os.environ.get("CIQ_SEARCH_SPACES_DIR"):
            notes.append(
                f"{type(part).__name__} has the tag 'latest': it is fetched over the network, "
                "and changes. Give tag=..., or set CIQ_SEARCH_SPACES_DIR to a mirror"
            )
    return notes
