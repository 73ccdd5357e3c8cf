"""`python -m tools.protoc`: make the protocol's Python code again from umd.proto.

Generated code runs with the protobuf release that made it and newer ones, up to the end of the next major; gRPC's part
likewise. So the code is made by the *oldest* grpcio-tools that the ranges in pyproject.toml are to start from, in an
environment of its own. A test compares the committed code with what the installed grpcio-tools makes, whichever it is.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROTO = "accelctl/umd/proto/umd.proto"
TOOL = "1.76.0"
"""grpcio-tools. It has protobuf 6.31.1: pyproject.toml says "protobuf>=6.31.1,<8" and "grpcio>=1.76" for this."""
FILES = ("umd_pb2.py", "umd_pb2.pyi", "umd_pb2_grpc.py")

_SAME = (
    # The release that generated it, and the check for it.
    (re.compile(r"^# Protobuf Python Version: .*$", re.M), ""),
    (re.compile(r"(Domain\.PUBLIC,\n)    \d+,\n    \d+,\n    \d+,\n"), r"\1"),
    (re.compile(r"^GRPC_GENERATED_VERSION = .*$", re.M), ""),
    # Later releases write these differently and mean the same.
    (re.compile(r"^(class \w+)\(object\):$", re.M), r"\1:"),
    (re.compile(r"_Optional\[bool\] = \.\.\."), "bool = ..."),
)


def generate(python: Path | str, folder: Path) -> dict[str, str]:
    """File -> text, as that interpreter's grpcio-tools makes it. Raises CalledProcessError."""
    options = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([str(python), "-m", "grpc_tools.protoc", f"-I{ROOT}", *options, PROTO], cwd=ROOT, check=True)
    made = folder / Path(PROTO).parent
    return {name: (made / name).read_text(encoding="utf-8") for name in FILES}


def committed() -> dict[str, str]:
    """File -> text, as it is in the tree."""
    return {name: (ROOT / PROTO).with_name(name).read_text(encoding="utf-8") for name in FILES}


def meaning(text: str) -> str:
    """Without what differs between releases of the generator for one and the same protocol."""
    for pattern, instead in _SAME:
        text = pattern.sub(instead, text)
    return text


def main() -> int:
    """Generate into the tree."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "venv"
        venv.create(home, with_pip=True)
        python = home / "bin" / "python"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"grpcio-tools=={TOOL}"], check=True)
        made = generate(python, Path(folder))
    for name, text in made.items():
        (ROOT / PROTO).with_name(name).write_text(text, encoding="utf-8")
    print(f"wrote {', '.join(made)} below {Path(PROTO).parent}, with grpcio-tools {TOOL}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
