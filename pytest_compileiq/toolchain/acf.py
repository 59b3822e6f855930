"""ACF files: checked before use, staged by content, damaged on purpose, looked up in a pack."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_compileiq.errors import AcfError, CiqError
from pytest_compileiq.files import LARGEST, LfsPointerError, beside, no_pointer, read_plain
from pytest_compileiq.verdict import one_line


@dataclass(frozen=True, slots=True)
class Acf:
    """An ACF that was read whole. ``source`` is where the user keeps it, for messages."""

    source: Path
    content: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def name(self) -> str:
        return one_line(self.source.name)

    @property
    def hex(self) -> str:
        """The form in which CompileIQ hands an ACF to an objective."""
        return self.content.hex()

    def damaged(self) -> Acf:
        """The same ACF with 16 bytes in its middle inverted.

        Its length and its ends stay, so nothing but reading the payload can tell it from the
        real one. A build that takes it has not read it.
        """
        middle = len(self.content) // 2
        inverted = bytes(byte ^ 0xFF for byte in self.content[middle : middle + 16])
        content = self.content[:middle] + inverted + self.content[middle + len(inverted) :]
        return Acf(self.source.with_name(f"damaged-{self.source.name}"), content)


def load(path: Path, *, instead: str = "") -> Acf:
    """Read an ACF. Raises AcfError when it cannot be one: missing, empty, a git-lfs pointer.

    ``instead``: what would do without the file, where --ciq-retune does not search for one.
    """
    restore = (
        f"restore the file from version control, or "
        f"{instead or 'search for a new one: --ciq-retune'}"
    )
    try:
        content = read_plain(path)
    except FileNotFoundError:
        raise AcfError(
            f"the ACF {path} does not exist",
            looked_at=[beside(path, ".acf")],
            remedy="an ACF path is relative to the test file: correct it, or "
            + (
                f"restore the file; or {instead}"
                if instead
                else "commit the file; if there is none yet, --ciq-retune searches for one"
            ),
        ) from None
    except LfsPointerError as error:
        raise AcfError(
            f"the ACF {path} is not there: {error.strerror}",
            remedy="run `git lfs pull` before the tests (in CI: `lfs: true` at the checkout)",
        ) from None
    except OSError as error:
        raise AcfError(
            f"the ACF {path} cannot be read ({error.strerror})", remedy=restore
        ) from error
    if not content:
        raise AcfError(f"the ACF {path} is empty (0 bytes)", remedy=restore)
    return Acf(path, content)


def nonsense() -> Acf:
    """A file that no compiler can take for an ACF, for refusal tests without any real one."""
    return Acf(Path("nonsense.acf"), hashlib.sha256(b"not an ACF").digest() * 32)


class Staging:
    """A folder that holds ACFs as ``<sha256>.acf``.

    Compilers and their frameworks cache by path, so the name has to change with the content.
    Frameworks also split option strings at spaces, so the folder's path has none.
    """

    def __init__(self) -> None:
        self.folder = plain_folder()

    def path(self, acf: Acf) -> Path:
        """Where a copy of ``acf`` lies; written at the first call."""
        path = self.folder / f"{acf.sha256}.acf"
        if not path.exists():
            partial = path.with_suffix(".partial")  # a full disk must not leave half an ACF
            partial.write_bytes(acf.content)
            partial.replace(path)
        return path

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def is_plain(path: str) -> bool:
    """Whether no compiler or search misreads the path: no spaces, brackets, quotes and the like."""
    return path.isascii() and not set(path) & set(" \t\"'\\[](){}$;&|<>*?~,=")


def plain_folder() -> Path:
    """A new temporary folder with such a path. Raises CiqError."""
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if is_plain(base):
            try:
                return Path(tempfile.mkdtemp(prefix="ciq-", dir=base))
            except OSError:
                continue
    raise CiqError(
        "no writable temporary folder has a path without spaces or special characters",
        looked_at=[tempfile.gettempdir(), "/tmp", "/var/tmp"],
        remedy="set TMPDIR to such a folder: compilers split option strings at spaces",
    )


@dataclass(frozen=True, slots=True)
class DebugPack:
    """NVIDIA's pack of known ACFs: ``o0`` must make any kernel worse, ``o3`` must not."""

    source: Path
    o0: Acf | None
    o3: Acf | None


def open_debug_pack(source: Path) -> DebugPack:
    """Find O0.acf and O3.acf anywhere inside a folder or a zip file. Raises AcfError."""
    files = _read_pack(source)
    found: dict[str, Acf] = {}
    for wanted in ("o0.acf", "o3.acf"):
        names = sorted(name for name in files if PurePosixPath(name).name.lower() == wanted)
        if len(names) > 1 and len({files[name] for name in names}) > 1:
            raise AcfError(
                f"the debug pack {source} holds several different {wanted}: {', '.join(names)}",
                remedy="point --ciq-debug-pack at the folder of one ptxas version",
            )
        if not names:
            continue
        acf = Acf(source / names[0], files[names[0]])
        if not acf.content:
            raise AcfError(
                f"{names[0]} of the debug pack {source} is empty (0 bytes)",
                remedy="download the pack again",
            )
        found[wanted] = acf
    if not found:
        raise AcfError(
            f"the debug pack {source} holds neither O0.acf nor O3.acf",
            remedy="unpack the release asset and name its folder, or name the zip itself",
        )
    return DebugPack(source, found.get("o0.acf"), found.get("o3.acf"))


def _read_pack(source: Path) -> dict[str, bytes]:
    def relevant(name: str) -> bool:
        return not name.endswith("/") and PurePosixPath(name).name.lower() in ("o0.acf", "o3.acf")

    try:
        if source.is_dir():
            return {
                path.relative_to(source).as_posix(): read_plain(path)
                for path in sorted(source.rglob("*"))
                if path.is_file() and relevant(path.name)
            }
        with zipfile.ZipFile(io.BytesIO(read_plain(source))) as archive:
            wanted = [entry for entry in archive.infolist() if relevant(entry.filename)]
            if sum(entry.file_size for entry in wanted) > LARGEST:
                raise OSError(27, "it unpacks to more than any ACF has")
            return {entry.filename: no_pointer(archive.read(entry)) for entry in wanted}
    except LfsPointerError as error:
        raise AcfError(
            f"a file of the debug pack {source} is not there: {error.strerror}",
            remedy="run `git lfs pull` before the tests, or name the zip of the release asset",
        ) from None
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise AcfError(
            f"the debug pack {source} is neither a folder nor a zip file ({error})",
            remedy="give --ciq-debug-pack the folder or the zip of the release asset",
        ) from error
