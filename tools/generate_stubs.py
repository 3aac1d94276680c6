"""Generate the Python stubs of the contract, or check that the committed ones are up to date.

Runs in the environment of requirements/proto.lock: `make proto` writes each package of the contract into the
Python package of the same name, and `make proto-check` compares.
"""

import argparse
import filecmp
import os
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "proto"
WELL_KNOWN = Path(protoc.__file__).parent / "_proto"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a stub differs")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        _generate(fresh)
        stale = _differences(fresh)
        if check:
            for name in stale:
                print(f"{name} is not what proto/ says; run `make proto`")
            return 1 if stale else 0
        _replace(fresh, stale)
    print(f"{len(stale)} of {len(_stub_names(ROOT))} stubs changed")
    return 0


def _generate(out: Path) -> None:
    """Generate messages of every file, and client and server classes of the files that have a service."""
    files = sorted(CONTRACT.rglob("*.proto"))
    services = [path for path in files if "\nservice " in path.read_text(encoding="utf-8")]
    _protoc(files, f"--python_out={out}", f"--pyi_out={out}")
    _protoc(services, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}")


def _protoc(files: list[Path], *options: str) -> None:
    relative = [str(path.relative_to(CONTRACT)) for path in files]
    # protoc finds its plugin for typed gRPC stubs on the PATH; it lies beside this interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if protoc.main(["protoc", f"-I{CONTRACT}", f"-I{WELL_KNOWN}", *options, *relative]):
        sys.exit("protoc refused the contract")


def _stub_names(root: Path) -> set[str]:
    """Return the paths of the stubs below `root`, relative to it."""
    return {
        str(path.relative_to(root)) for path in (root / "baton").rglob("*_pb2*.py*") if path.suffix != ".pyc"
    }


def _differences(fresh: Path) -> list[str]:
    """Return the paths of the stubs that are new, changed, or no longer made."""
    names = _stub_names(fresh) | _stub_names(ROOT)
    same, _, _ = filecmp.cmpfiles(fresh, ROOT, names, shallow=False)
    return sorted(names - set(same))


def _replace(fresh: Path, names: list[str]) -> None:
    for name in names:
        source, target = fresh / name, ROOT / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
        else:
            target.unlink()


if __name__ == "__main__":
    sys.exit(main())
