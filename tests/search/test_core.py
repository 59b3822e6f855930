"""CompileIQ 1.0 has its engine in a process of its own: of the paths it reads, and of its death."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from compileiq.ciq import Search
from compileiq.search_spaces import base as ss

from pytest_compileiq.errors import CiqError
from pytest_compileiq.search.engine import GuardedSearch, open_search


def opened(folder: Path, *, keep: bool = False) -> GuardedSearch:
    space = {"x": ss.range(0, 1000, 1)}
    return open_search(lambda config: 1.0, space, folder=folder, generations=1, keep=keep)


@pytest.mark.parametrize("name", ["test_it[0]", "a folder", "it's", "plain"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_folder_may_have_any_name(name: str, keep: bool, tmp_path: Path) -> None:
    """1.0 read from its dead core for ever, at 100 % of a processor."""
    folder = tmp_path / name
    folder.mkdir()
    search = opened(folder, keep=keep)
    assert len(search.sample(1)) == 1
    cache = Path(str(search.cache_folder))
    elsewhere = not cache.is_relative_to(folder)
    assert elsewhere == ("engine" not in Search.model_fields and name != "plain")
    assert any(str(cache.parent) in note for note in search.notes) == (keep and elsewhere)
    search.close()
    del search
    assert cache.parent.exists() == (keep or not elsewhere)
    assert cache.exists() == keep
    if elsewhere:
        shutil.rmtree(cache.parent, ignore_errors=True)


DYING = """#!{python}
import os, socket
line = socket.create_connection((os.environ["CIQ_HOST"], int(os.environ["CIQ_PORT"])))
line.sendall(b'{{"half of a mess')
"""


@pytest.mark.skipif("engine" in Search.model_fields, reason="this compileiq has no core process")
@pytest.mark.filterwarnings("ignore:CIQ_CORE_BINARY")
def test_a_core_that_dies_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = tmp_path / "core"
    core.write_text(DYING.format(python=sys.executable))
    core.chmod(0o755)
    monkeypatch.setitem(os.environ, "CIQ_CORE_BINARY", str(core))
    with pytest.raises(CiqError, match="core of CompileIQ, which chooses the candidates, has died"):
        opened(tmp_path).start()
