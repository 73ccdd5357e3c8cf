"""`python -m tools.generate`: write completions/ and docs/man/ from the command tree; `--check` only compares.

The files are committed and a test compares them, so that users and packagers need not run anything.
"""

import json
import sys
from pathlib import Path

from accelctl.abi.rooms import BACKENDS, checksum
from accelctl.model.toml import loads
from tools import completions, manpages, tree

ROOT = Path(__file__).resolve().parents[1]


def outputs() -> dict[str, str]:
    """Path below the checkout -> text, for every generated file."""
    commands = tree.load()
    made = {
        "completions/accelctl.bash": completions.bash(commands),
        "completions/_accelctl": completions.zsh(commands),
        "completions/accelctl.fish": completions.fish(commands),
    }
    made["accelctl/data/rooms.json"] = rooms()
    return made | {f"docs/man/{name}": text for name, text in manpages.pages(commands).items()}


def rooms() -> str:
    """The chip rooms as JSON, one room a line, each with the checksum of the text it was made from."""
    lines = []
    for folder in sorted(path.parent for path in BACKENDS.glob("*/chip.toml")):
        text = (folder / "chip.toml").read_text(encoding="utf-8")
        entry = {"checksum": checksum(text), "document": loads(text)}
        lines.append(f"{json.dumps(folder.name)}: {json.dumps(entry, separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def stale(root: Path = ROOT) -> list[str]:
    """Generated files that differ from the tree, are missing, or belong to a command that is gone."""
    made = outputs()
    wrong = [path for path, text in made.items() if not _same(root / path, text)]
    there = {f"docs/man/{page.name}" for page in (root / "docs" / "man").glob("*.1")}
    return sorted({*wrong, *(there - made.keys())})


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write(root: Path = ROOT) -> list[str]:
    """Bring every generated file up to date; returns what changed."""
    changed, made = stale(root), outputs()
    for path in changed:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path in made:
            target.write_text(made[path], encoding="utf-8")
        else:
            target.unlink()
    return changed


def main() -> int:
    """Write, or with --check compare (exit 1 when something is stale)."""
    if "--check" in sys.argv[1:]:
        wrong = stale()
        print(
            "\n".join(f"stale: {path} (run: make generate)" for path in wrong)
            or "completions and man pages are current"
        )
        return 1 if wrong else 0
    print("\n".join(f"wrote {path}" for path in write()) or "completions and man pages were current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
