"""Read a cubin: which code it holds, and with which command line ptxas made it.

The proof of *arrival* is ptxas' own note in the cubin; the proof of *effect* is a different
``.text`` section. The whole file proves nothing: it holds the ACF's path, so the same code
under two ACF names has two hashes.
"""

from __future__ import annotations

import hashlib
import io
import shlex
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_compileiq.errors import CiqError

_TKINFO = ".note.nv.tkinfo"
#: The sections that are read: a ``.nv.global`` of gigabytes is one number in the file.
_READ = (".text", ".nv.constant", _TKINFO)
_CONTROLS = ("--apply-controls", "-apply-controls")


@dataclass(frozen=True, slots=True)
class Cubin:
    """The facts of one cubin.

    ``text`` maps the name of each code section (``.text.<function>``) to the SHA-256 of its
    bytes, ``code_bytes`` the same names to sizes in bytes, ``constants`` the sections of constant
    memory (parameters included) to theirs. ``command_line`` is None when the
    cubin holds no tool note (stripped, or made by a tool that writes none).
    """

    text: Mapping[str, str]
    code_bytes: Mapping[str, int]
    constants: Mapping[str, int]
    tool_version: str | None
    command_line: str | None

    def fingerprint(self, entry: str | None = None) -> str:
        """SHA-256 over the code of one ``entry`` function, or over all code of the cubin."""
        names = sorted(self.text)
        if entry is not None and f".text.{entry}" in self.text:
            names = [f".text.{entry}"]
        digest = hashlib.sha256()
        for name in names:
            digest.update(f"{name}\0{self.text[name]}\n".encode())
        return digest.hexdigest()

    def code_size(self, entry: str | None = None) -> int:
        """Bytes of machine code of ``entry``, or of the whole cubin."""
        if entry is not None and f".text.{entry}" in self.code_bytes:
            return self.code_bytes[f".text.{entry}"]
        return sum(self.code_bytes.values())

    def constant_size(self, entry: str | None = None) -> int:
        """Bytes of constant memory that ``entry`` sees: its own banks and the module's."""
        return sum(
            size
            for name, size in self.constants.items()
            if entry is None or name.count(".") == 2 or name.endswith(f".{entry}")
        )

    def controls(self) -> list[str] | None:
        """The paths given to ``--apply-controls``, in order; None without a tool note."""
        if self.command_line is None:
            return None
        try:
            words = shlex.split(self.command_line)
        except ValueError:  # ptxas does not quote: a path may hold a lone quotation mark
            words = self.command_line.split()
        paths = []
        for position, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name in _CONTROLS:
                follower = words[position + 1] if position + 1 < len(words) else ""
                paths.append(value if equals else follower)
        return paths


def read(data: bytes) -> Cubin:
    """Parse a cubin. Raises CiqError when ``data`` is no ELF file of CUDA's or holds no code."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(data))
        machine = elf["e_machine"]
        sections = {
            section.name: section.data() if section.name.startswith(_READ) else b""
            for section in elf.iter_sections()
        }
    except (ELFError, ValueError, OverflowError, MemoryError, struct.error) as error:
        raise CiqError(
            f"the build's cubin is not an ELF file ({error}; {len(data)} bytes, "
            f"first bytes {data[:8]!r})",
            remedy="let Build.cubin be the bytes of the .cubin that ptxas wrote",
        ) from error
    if machine != "EM_CUDA":
        raise CiqError(
            f"the build's cubin is an ELF file for another machine, {machine}, not for a GPU",
            remedy="let Build.cubin be the cubin of the kernel, not a host object file",
        )
    code = {name: body for name, body in sections.items() if name.startswith(".text")}
    if not any(code.values()):
        raise CiqError(
            f"the build's cubin holds no code; its sections are {', '.join(filter(None, sections))}",
            remedy="let Build.cubin be the cubin that holds the kernel",
        )
    version, command_line = _tool_note(sections.get(_TKINFO, b""))
    return Cubin(
        text={name: hashlib.sha256(body).hexdigest() for name, body in code.items()},
        code_bytes={name: len(body) for name, body in code.items()},
        constants={n: len(body) for n, body in sections.items() if n.startswith(".nv.constant")},
        tool_version=version,
        command_line=command_line,
    )


def _tool_note(section: bytes) -> tuple[str | None, str | None]:
    """Version text and command line of the last ptxas note in ``section``, or of the first note.

    An ELF note (name size, description size, type; name and description padded to four
    bytes) whose description is: two words, then four offsets into the string table behind
    them (tool, version, build, command line), all little-endian.
    """
    tool = version = command_line = None
    position = 0
    while position + 12 <= len(section):
        name_size, size, _ = struct.unpack_from("<III", section, position)
        start = position + 12 + (name_size + 3) // 4 * 4
        description = section[start : start + size]
        position = start + (size + 3) // 4 * 4
        if len(description) < 24:
            continue
        offsets = struct.unpack_from("<4I", description, 8)
        strings = description[24:]
        words = [_string(strings, offset) for offset in offsets]
        if words[0] == "ptxas" or tool is None:
            tool, version, command_line = words[0], words[1], words[3].strip()
    return version, command_line


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    return table[offset : end if end >= 0 else len(table)].decode(errors="replace")
