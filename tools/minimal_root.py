"""Copy what one Python environment needs into an empty folder, which becomes an image.

    python minimal_root.py ENVIRONMENT ROOT

ROOT gets the environment without pip, its interpreter with the standard library, the shared libraries that
they need as `ldd` resolves them, certificates, time zones, the user `baton` (10001) and its `/hub`. It gets
no shell and no package manager. Its `sbom.cdx.json` lists the Python packages, its `/var/lib/dpkg/status.d`
Debian's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages")
"""Parts of the standard library that no service imports, and the base image's own packages."""
LEFT_OUT_PATTERNS = ("config-*", "dist-packages", "pip*", "setuptools*", "pkg_resources", "_distutils_hack")
DLOPENED = ("libgcc_s.so.1", "libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2")
"""Libraries that glibc loads by name; `ldd` does not list them."""
DATA = (
    "/etc/ssl/certs",
    "/etc/os-release",
    "/usr/lib/os-release",
    "/etc/nsswitch.conf",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/usr/share/zoneinfo",
)
USER_ID = 10001
SBOM = "/sbom/bin/cyclonedx-py"


def main(environment: Path, root: Path) -> None:
    """Fill `root`."""
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "uninstall", "--yes", "pip", "setuptools"], check=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if (Path("/") / name).is_symlink():
            root.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to((Path("/") / name).readlink())
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
    interpreter = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    _copy_folder(stdlib, root, shutil.ignore_patterns(*LEFT_OUT, *LEFT_OUT_PATTERNS))
    _copy_folder(environment, root, shutil.ignore_patterns("*.pyi", "*.pyx", "*.pxd", "include"))
    for path in (environment / "bin").glob("python*"):
        if path.is_symlink():
            _copy_file(path.parent / path.readlink(), root)
    libraries = list(_libraries(interpreter, root))
    for library in libraries:
        _copy_file(library, root)
    _name_packages([interpreter, *libraries], root)
    for data in map(Path, DATA):
        if data.is_dir():
            _copy_folder(data, root, None)
        elif data.exists():
            _copy_file(data, root)
    _add_user(root)
    subprocess.run(["ldconfig", "-r", root], check=True)
    subprocess.run([SBOM, "environment", "--output-file", root / "sbom.cdx.json", python], check=True)


def _libraries(interpreter: Path, root: Path) -> Iterator[Path]:
    """Yield the shared libraries outside `root` that files in it need, and those that glibc loads itself."""
    binaries = [interpreter, *(path for path in root.rglob("*.so*") if path.is_file())]
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    needed = {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}
    cached = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    needed |= {
        line.rpartition("=> ")[2] for line in cached.splitlines() if line.strip().split(" ")[0] in DLOPENED
    }
    for path in map(Path, sorted(needed)):
        if path.exists() and not path.is_relative_to(root):
            yield path


def _name_packages(paths: list[Path], root: Path) -> None:
    """Keep the Debian package of each path in /var/lib/dpkg/status.d, where scanners look for it."""
    known_as = {name for path in paths for name in (path, path.resolve(), path.parent / path.resolve().name)}
    output = subprocess.run(["dpkg", "-S", *known_as], capture_output=True, text=True, check=False).stdout
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True, exist_ok=True)
    for package in {line.split(":")[0] for line in output.splitlines()}:
        entry = subprocess.run(["dpkg", "-s", package], capture_output=True, text=True, check=True).stdout
        (status / package).write_text(entry, encoding="utf-8")


def _copy_file(path: Path, root: Path) -> None:
    """Copy `path` to its own place below `root`; if it is a link, the link and what it points at."""
    target = root / Path(os.path.realpath(path.parent)).relative_to("/") / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() or target.is_symlink():
        return
    shutil.copy2(path, target, follow_symlinks=False)
    if path.is_symlink():
        _copy_file(path.parent / path.readlink(), root)


def _copy_folder(path: Path, root: Path, ignore: object) -> None:
    shutil.copytree(path, root / path.relative_to("/"), symlinks=True, ignore=ignore, dirs_exist_ok=True)  # type: ignore[arg-type]


def _add_user(root: Path) -> None:
    for folder, mode in (("tmp", 0o1777), ("home/baton", 0o755), ("app", 0o755), ("hub", 0o755)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).chmod(mode)
    for folder in ("home/baton", "hub"):  # a volume that is mounted there is this user's too
        os.chown(root / folder, USER_ID, USER_ID)
    users = f"root:x:0:0:root:/:/sbin/nologin\nbaton:x:{USER_ID}:{USER_ID}:baton:/home/baton:/sbin/nologin\n"
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(users, encoding="utf-8")
    (root / "etc/group").write_text(f"root:x:0:\nbaton:x:{USER_ID}:\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
