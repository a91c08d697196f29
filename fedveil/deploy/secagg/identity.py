"""A node's long-term key, its pinned roster and its journal, as files in the node's folder.

| file | what |
|---|---|
| `secagg.key` | the node's Ed25519 key (PEM); it never leaves the node |
| `roster.txt` | the public keys of all nodes, one `CLIENT KEY` in each line, KEY in hexadecimal |
| `secagg.journal` | what the node has done in each session: one line for each step, on disk before the answer is sent |
| `secagg.json` | the last session, for `deploy status` |
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.errors import ConfigError
from fedveil.core.files import drop_cut_line, write_text
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.roster import Roster, new_key, public

KEY, ROSTER, JOURNAL, LAST = "secagg.key", "roster.txt", "secagg.journal", "secagg.json"
KEPT = 4096  # steps in a journal after the first of each session, which all stay: no session ever begins again
BEGUN = "advert"  # the first step


def make_keys(homes: Mapping[int, Path]) -> Roster:
    """A new key for each node's folder, and the roster of all in every folder."""
    keys = {client: new_key() for client in homes}
    roster = Roster({client: public(key) for client, key in keys.items()})
    for client, home in homes.items():
        text = keys[client].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_text(home / KEY, text.decode())
        write_roster(home, roster)
    return roster


def write_roster(folder: Path, roster: Roster) -> None:
    """Writes the roster into a folder."""
    write_text(folder / ROSTER, "".join(f"{client} {roster.keys[client].hex()}\n" for client in sorted(roster.keys)))


def read_roster(folder: Path) -> Roster:
    """The roster in a folder."""
    path = folder / ROSTER
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines() if line.strip()]
        keys = {int(client): bytes.fromhex(key) for client, key in lines}
        if len(keys) != len(lines):
            raise ValueError("a client is named twice")
        return Roster(keys)
    except FileNotFoundError:
        takes = "is missing: 'deploy init' writes it, or put one line 'CLIENT KEY' for each node into it"
        raise ConfigError("roster", str(path), takes) from None
    except (OSError, ValueError) as error:
        raise ConfigError("roster", str(path), f"cannot be read ({error}): takes lines 'CLIENT KEY'") from None


def read_key(home: Path) -> Ed25519PrivateKey:
    """The node's long-term key."""
    path = home / KEY
    try:
        found = serialization.load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise ConfigError("secagg key", str(path), "is missing: 'deploy init' makes it") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError("secagg key", str(path), f"cannot be read ({error})") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise ConfigError("secagg key", str(path), "is not an Ed25519 key")
    return found


class FileJournal:
    """The journal of a node. A step is on disk before `note` returns, and survives a crash of the process or machine."""

    def __init__(self, home: Path) -> None:
        self.path = home / JOURNAL
        self.steps, self.late = set[str](), 0  # `late`: those after the first of each session
        self.state = (0, 0)  # of the file when it was read or written last: its size and inode

    def note(self, context: bytes, step: str) -> None:
        """Writes a step of a session down; raises `Abort` if the session already has it.

        Two processes of one node share the journal, so a step is done by one of them.
        """
        line = f"{context.hex()} {step}"
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._state() != self.state:
                self._read()
            if line in self.steps:
                raise Abort(f"the step '{step}' of this session is done already")
            if self.late >= KEPT:
                self._shorten()
            self._add(line)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line.encode() + b"\n")
                os.fsync(handle)
            finally:
                os.close(handle)
            self.state = self._state()

    def _state(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_size, found.st_ino

    def _read(self) -> None:
        self.steps, self.late = set(), 0
        if self.path.exists():
            drop_cut_line(self.path)  # its step was not answered: the node was killed before
            for line in self.path.read_text(encoding="ascii").splitlines():
                self._add(line)

    def _add(self, line: str) -> None:
        if line not in self.steps:
            self.steps.add(line)
            self.late += not line.endswith(BEGUN)

    def _shorten(self) -> None:
        """Drops old steps. A session whose later steps are gone cannot continue: its secrets were never on disk."""
        lines = self.path.read_text(encoding="ascii").splitlines()
        late = {at for at in range(len(lines)) if not lines[at].endswith(BEGUN)}
        dropped = set(sorted(late)[: len(late) - KEPT // 2])
        kept = [line for at, line in enumerate(lines) if at not in dropped]
        write_text(self.path, "".join(line + "\n" for line in kept))
        self._read()


def write_last(home: Path, document: Mapping[str, Any]) -> None:
    """Keeps what is public of the last session, for `deploy status`."""
    write_text(home / LAST, json.dumps(dict(document)) + "\n")


def read_last(home: Path) -> dict[str, Any] | None:
    """What is known of the last session; None if there was none."""
    try:
        found = json.loads((home / LAST).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None
