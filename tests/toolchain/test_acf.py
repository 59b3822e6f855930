"""ACF files: staging, damage, debug packs, sidecars."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_compileiq.errors import AcfError, CiqError
from pytest_compileiq.toolchain import acf as _acf
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf, Staging
from pytest_compileiq.toolchain.sidecar import Sidecar


@given(st.binary(min_size=1, max_size=4096))
def test_damage_keeps_the_length_and_changes_the_middle(content: bytes) -> None:
    damaged = Acf(Path("x.acf"), content).damaged().content
    assert len(damaged) == len(content)
    changed = [i for i, (a, b) in enumerate(zip(content, damaged, strict=True)) if a != b]
    assert changed
    assert changed[0] == len(content) // 2
    assert len(changed) <= 16


def test_staging_is_named_by_content_and_has_a_plain_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "with space"
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    staging = Staging()
    one, two = Acf(Path("a b.acf"), b"1"), Acf(Path("a b.acf"), b"2")
    assert staging.path(one).name == f"{hashlib.sha256(b'1').hexdigest()}.acf"
    assert staging.path(two) != staging.path(one)
    assert staging.path(one).read_bytes() == b"1"
    assert " " not in str(staging.folder)
    staging.remove()
    assert not staging.folder.exists()


def test_no_plain_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise OSError("read-only")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(CiqError, match="no writable temporary folder"):
        Staging()


def make_pack(folder: Path, *, zipped: bool = False) -> Path:
    inner = folder / "pack" / "ptxas13.3"
    inner.mkdir(parents=True)
    (inner / "O0.acf").write_bytes(b"zero")
    (inner / "O3.acf").write_bytes(b"three")
    if not zipped:
        return folder / "pack"
    with zipfile.ZipFile(folder / "pack.zip", "w") as archive:
        for path in sorted((folder / "pack").rglob("*")):
            archive.write(path, path.relative_to(folder))
    return folder / "pack.zip"


@pytest.mark.parametrize("zipped", [False, True])
def test_a_debug_pack(tmp_path: Path, zipped: bool) -> None:
    pack = _acf.open_debug_pack(make_pack(tmp_path, zipped=zipped))
    assert pack.o0 is not None
    assert pack.o3 is not None
    assert (pack.o0.content, pack.o3.content) == (b"zero", b"three")
    assert pack.o0.name == "O0.acf"


def test_bad_debug_packs(tmp_path: Path) -> None:
    with pytest.raises(AcfError, match="neither a folder nor a zip"):
        _acf.open_debug_pack(tmp_path / "none.zip")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(AcfError, match="neither a folder nor a zip"):
        _acf.open_debug_pack(tmp_path / "text.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AcfError, match=r"neither O0.acf nor O3.acf"):
        _acf.open_debug_pack(tmp_path / "empty")
    pack = make_pack(tmp_path)
    (pack / "13.4").mkdir()
    (pack / "13.4" / "O0.acf").write_bytes(b"another")
    with pytest.raises(AcfError, match=r"several different o0\.acf"):
        _acf.open_debug_pack(pack)


def described(tmp_path: Path, **changes: object) -> tuple[Acf, Sidecar]:
    path = tmp_path / "x.acf"
    path.write_bytes(b"content")
    acf = _acf.load(path)
    return acf, replace(
        _sidecar.describe(acf, arch="sm_90", numbers={"ptxas": "13.3.73"}), **changes
    )  # type: ignore[arg-type]


def test_a_sidecar_comes_back_as_it_was_written(tmp_path: Path) -> None:
    acf, written = described(tmp_path, speedup=1.1, speedup_interval=(1.05, 1.15), gpu="H200")
    path = _sidecar.write(acf.source, written)
    assert path.name == "x.acf.json"
    assert _sidecar.read(acf.source) == written
    assert json.loads(path.read_text())["notice"] == "(c) NVIDIA Corporation, 2026."
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["x.acf", "x.acf.json"]
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o660)  # a folder that a group shares, or a file that is private
    _sidecar.write(acf.source, written)
    assert path.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"sha256": 1}', '{"schema": 1, "sha256": "", "size_bytes": ""}', "\xff"],
)
def test_an_unreadable_sidecar_says_so(tmp_path: Path, text: str) -> None:
    acf, _ = described(tmp_path)
    _sidecar.path_of(acf.source).write_bytes(text.encode("latin-1"))
    with pytest.raises(AcfError, match=r"sidecar .*cannot be read"):
        _sidecar.read(acf.source)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "sha256 and size_bytes"),
        ('{"size_bytes": 7}', "sha256"),
        ('{"sha256": "0"}', "size_bytes"),
    ],
)
def test_a_sidecar_names_what_it_lacks(tmp_path: Path, text: str, told: str) -> None:
    acf, _ = described(tmp_path)
    _sidecar.path_of(acf.source).write_text(text)
    with pytest.raises(AcfError) as raised:
        _sidecar.read(acf.source)
    assert raised.value.what.endswith(f"cannot be read: it lacks {told}")


def test_how_an_acf_differs(tmp_path: Path) -> None:
    acf, sidecar = described(tmp_path)
    assert _sidecar.altered(acf, sidecar) is None
    longer = Acf(acf.source, acf.content + b"!")
    assert "has 8 bytes, not 7" in str(_sidecar.altered(longer, sidecar))
    assert "(same size)" in str(_sidecar.altered(acf.damaged(), sidecar))


def test_refreshing_keeps_what_only_the_old_one_knows(tmp_path: Path) -> None:
    _, new = described(tmp_path)
    old = replace(new, gpu="H200", speedup=1.2, date="2026-01-01", arch=None)
    merged = _sidecar.refreshed(old, new)
    assert (merged.gpu, merged.speedup, merged.arch, merged.date) == (
        "H200", 1.2, "sm_90", new.date,
    )  # fmt: skip
    assert _sidecar.refreshed(merged, new) is merged  # accepting twice changes nothing
    stale = replace(old, sha256="0" * 64)
    assert _sidecar.refreshed(stale, new) == new  # a win of another ACF is not carried over
    other_kernel = replace(old, ptx_sha256="a")
    assert _sidecar.refreshed(other_kernel, replace(new, ptx_sha256="b")).speedup is None


def test_a_failed_write_leaves_the_old_sidecar_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acf, sidecar = described(tmp_path)
    path = _sidecar.write(acf.source, sidecar)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        _sidecar.write(acf.source, replace(sidecar, gpu="other"))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pipe_or_a_device_is_refused_and_never_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.acf")
    (tmp_path / "device.acf").symlink_to("/dev/zero")
    (tmp_path / "folder.acf").mkdir()
    for name in ("pipe", "device", "folder"):
        with pytest.raises(AcfError, match="cannot be read"):
            _acf.load(tmp_path / f"{name}.acf")


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": 5},
        {"ptxas": 13.3},
        {"score_ratio": -1},
        {"score_ratio": "x"},
        {"speedup": [1]},
        {"speedup": "1.2"},
        {"speedup": math.nan},
    ],
)
def test_a_sidecar_with_a_field_of_another_kind(tmp_path: Path, change: dict[str, object]) -> None:
    acf, sidecar = described(tmp_path)
    path = _sidecar.write(acf.source, sidecar)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(AcfError, match=r"sidecar .*cannot be read"):
        _sidecar.read(acf.source)
