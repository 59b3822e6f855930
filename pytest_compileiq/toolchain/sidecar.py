"""``x.acf.json`` beside ``x.acf``: for what, by what and when the ACF was made."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_compileiq.errors import AcfError
from pytest_compileiq.files import read_plain, write_whole
from pytest_compileiq.toolchain import acf as _acf
from pytest_compileiq.toolchain.acf import Acf

NOTICE = "(c) NVIDIA Corporation, 2026."
SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Sidecar:
    """What is known of an ACF. A field is None where nobody measured or recorded it.

    ``speedup`` is a ratio of times (above 1 is faster) and ``speedup_interval`` its lower and
    upper bound; ``score_ratio`` is that of an objective's deterministic score (above 1 is
    better). ``ptx_sha256`` is the hash of the normalised PTX.
    """

    sha256: str
    size_bytes: int
    ptxas: str | None = None
    arch: str | None = None
    ptx_sha256: str | None = None
    compileiq: str | None = None
    search_space_tag: str | None = None
    search_space_sha256: str | None = None
    gpu: str | None = None
    driver: str | None = None
    sm_mhz: int | None = None
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = None
    score_ratio: float | None = None
    date: str | None = None
    notice: str = NOTICE
    schema: int = SCHEMA

    @property
    def release(self) -> str | None:
        """major.minor of the ptxas that the ACF was made for."""
        return None if self.ptxas is None else ".".join(self.ptxas.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Committed:
    """An ACF as a test names it, with its sidecar when there is one."""

    acf: Acf
    sidecar: Sidecar | None


def load(path: Path, *, instead: str = "") -> Committed:
    """Read an ACF and its sidecar. Raises AcfError when either is there and unreadable.

    ``instead`` is that of ``acf.load``.
    """
    acf = _acf.load(path, instead=instead)
    return Committed(acf, read(path))


def path_of(acf: Path) -> Path:
    return acf.with_name(acf.name + ".json")


def read(acf: Path) -> Sidecar | None:
    """The sidecar of the ACF at ``acf``, or None. Raises AcfError when it is unreadable."""
    path = path_of(acf)
    try:
        text = read_plain(path).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    try:
        fields = json.loads(text)
        if (schema := fields.get("schema", SCHEMA)) != SCHEMA:
            raise _newer(path, schema)
        found = from_fields(fields)
        _check_types(found)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    return found


def from_fields(fields: Mapping[str, Any]) -> Sidecar:
    """A sidecar from what JSON makes of one. Raises TypeError or ValueError."""
    known = {name: fields[name] for name in Sidecar.__slots__ if name in fields}
    if known.get("speedup_interval") is not None:
        low, high = known["speedup_interval"]
        known["speedup_interval"] = (float(low), float(high))
    if lacking := [name for name in ("sha256", "size_bytes") if name not in known]:
        raise ValueError(f"it lacks {' and '.join(lacking)}")
    return Sidecar(**known)


def _check_types(found: Sidecar) -> None:
    """Raises TypeError or ValueError for a field that no version of this plugin wrote."""
    texts = ("ptxas", "arch", "ptx_sha256", "compileiq", "gpu", "driver", "date")
    if not isinstance(found.sha256, str) or not isinstance(found.size_bytes, int):
        raise TypeError("sha256 is a string and size_bytes a whole number")
    for name in texts:
        if not isinstance(getattr(found, name), str | None):
            raise TypeError(f"{name} is a string or null, not {getattr(found, name)!r}")
    for name in ("speedup", "score_ratio"):
        value = getattr(found, name)
        if value is None:
            continue
        if not isinstance(value, int | float) or not 0 < float(value) < math.inf:
            raise ValueError(f"{name} is a ratio above 0, not {value!r}")


def _newer(path: Path, schema: object) -> AcfError:
    return AcfError(
        f"the sidecar {path} has schema {schema!r}, and this version reads {SCHEMA}",
        remedy="update pytest-compileiq: a newer version has written the sidecar",
    )


def _unreadable(path: Path, why: str) -> AcfError:
    return AcfError(
        f"the sidecar {path} cannot be read: {why}",
        remedy="restore it from version control, or delete it and run with --ciq-accept",
    )


def altered(acf: Acf, sidecar: Sidecar) -> str | None:
    """How the ACF differs from the file that the sidecar describes, or None."""
    if acf.sha256 == sidecar.sha256:
        return None
    if len(acf.content) != sidecar.size_bytes:
        unix = acf.content.replace(b"\r\n", b"\n")
        ends = (
            "; git has changed its line ends: put `*.acf binary` into .gitattributes"
            if hashlib.sha256(unix).hexdigest() == sidecar.sha256
            else ""
        )
        return (
            f"{acf.name} is not the file that its sidecar describes: it has "
            f"{len(acf.content)} bytes, not {sidecar.size_bytes}{ends}"
        )
    return (
        f"{acf.name} is not the file that its sidecar describes: its SHA-256 begins "
        f"{acf.sha256[:12]}, not {sidecar.sha256[:12]} (same size)"
    )


def describe(acf: Acf, *, arch: str | None, numbers: Mapping[str, Any]) -> Sidecar:
    """A sidecar for ``acf`` as of today; ``numbers`` are those of the verdict that it won.

    Of no search space: only the search that found the ACF knows that.
    """
    try:
        compileiq = metadata.version("compileiq")
    except metadata.PackageNotFoundError:
        compileiq = None
    return Sidecar(
        sha256=acf.sha256,
        size_bytes=len(acf.content),
        ptxas=numbers.get("ptxas"),
        arch=arch,
        ptx_sha256=numbers.get("ptx_sha256"),
        gpu=numbers.get("gpu"),
        driver=numbers.get("driver"),
        sm_mhz=numbers.get("sm_mhz"),
        speedup=numbers.get("speedup"),
        speedup_interval=_whole(numbers.get("speedup_interval")),
        compileiq=compileiq,
        score_ratio=numbers.get("score_ratio"),
        date=datetime.date.today().isoformat(),
    )


def _whole(interval: Any) -> tuple[float, float] | None:
    """An interval of which both ends are known."""
    return None if interval is None or None in interval else (interval[0], interval[1])


#: For which kernel an ACF was made; with another one a check says kernel-changed.
_KERNEL = ("ptx_sha256", "arch")
#: For what an ACF was made: a win elsewhere is no win here.
_MADE_FOR = ("sha256", *_KERNEL, "ptxas")
#: Where an ACF was found: true of its bytes, whatever they are used for.
_FOUND_IN = ("search_space_tag", "search_space_sha256")
#: What stays together: the clock of an older measurement is not that of this one.
_MEASURED = ("gpu", "driver", "sm_mhz", "speedup", "speedup_interval")


def _first_other(one: Sidecar, other: Sidecar, names: Iterable[str]) -> str | None:
    """The first of the fields that both know and that differ."""
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in names)
    return next((name for name, a, b in pairs if None not in (a, b) and a != b), None)


def other_kernel(one: Sidecar, other: Sidecar) -> str | None:
    """In what the kernels of two sidecars differ, in words, or None."""
    name = _first_other(one, other, _KERNEL)
    if name is None:
        return None
    values = " and ".join(str(getattr(of, name))[:12] for of in (one, other))
    return f"PTX hashes {values}" if name == "ptx_sha256" else values


def refreshed(old: Sidecar | None, new: Sidecar) -> Sidecar:
    """``new``, with what only ``old`` knows of the very same ACF and kernel carried over.

    Where only the kernel is another, that is the search space. When nothing but the date would
    change, it is ``old`` itself: accepting twice is no diff.
    """
    if old is None or old.sha256 != new.sha256:
        return new
    names = _FOUND_IN if _first_other(old, new, _MADE_FOR) else Sidecar.__slots__
    missing = {
        name: value
        for name in names
        if (value := getattr(old, name)) is not None and getattr(new, name) is None
        if new.speedup is None or name not in _MEASURED
    }
    merged = replace(new, **missing)
    return old if replace(merged, date=old.date) == old else merged


def write(acf: Path, sidecar: Sidecar) -> Path:
    """Write the sidecar beside ``acf`` in one step; the old one stays whole on any failure.

    Raises OSError when the folder cannot be written.
    """
    path = path_of(acf)
    write_whole(path, json.dumps(asdict(sidecar), indent=2) + "\n")
    return path
