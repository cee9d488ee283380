"""What was measured, a line of JSON each, so that an interrupted search goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """A candidate on a device: its median time in milliseconds, or what was wrong with it."""

    device: str
    spec: str
    symbol: str
    median_ms: float | None
    fault: str | None = None


class Journal:
    """Entries in a file, each appended when it is known; a last line cut short is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, device: str) -> dict[str, Entry]:
        """Entries of a device by the candidate's YAML."""
        if not self.path.exists():
            return {}
        found = {}
        for line in self.path.read_text("utf-8").splitlines():
            try:
                entry = Entry(**json.loads(line))
            except (ValueError, TypeError):
                continue
            if entry.device == device:
                found[entry.spec] = entry
        return found

    def add(self, entry: Entry) -> None:
        """Appends an entry.

        Raises:
            OSError: the file can't be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")
