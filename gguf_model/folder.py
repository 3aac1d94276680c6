"""A folder that is to the rest of Baton what a checkpoint's is: its files, made of a GGUF file's keys.

Beside config.json and the tokenizer's files, which are those of transformers, it has a link to the file,
WEIGHTS. Every process that serves the file finds the folder by the file's place, size and time, or makes it:
all make the same. It may be lost at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from gguf_model.architectures import read_model
from gguf_model.errors import GgufUnusable
from gguf_model.header import read_header
from gguf_model.tokenizer import files_of

WEIGHTS = "model.gguf"
SUFFIX = ".gguf"
_HERE = Path(__file__).parent


def is_gguf(path: Path) -> bool:
    """Return whether a path is that of a GGUF file, there or not; a folder may have any name."""
    return path.suffix.lower() == SUFFIX and not path.is_dir()


def folder_of(path: Path, cache: Path) -> Path:
    """Return the folder of a file, below `cache`, under the file's name without its suffix.

    Raises `GgufUnusable` for a file that is not served. Where `cache` cannot be written, the folder is a
    temporary one of this process.
    """
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError) as error:
        raise GgufUnusable(path, f"cannot be read ({error})", "a GGUF file") from error
    identity = (str(real), status.st_size, status.st_mtime_ns, status.st_ino, _code())
    key = hashlib.blake2b(repr(identity).encode(), digest_size=12).hexdigest()
    folder = cache / "gguf" / key / path.stem
    if folder.is_dir():
        return folder
    header = read_header(real)
    files = files_of(header, read_model(header).config)
    try:
        parent = folder.parent
        parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=parent))
    except OSError:
        new = Path(tempfile.mkdtemp(prefix="baton-gguf-"))
        folder = new / path.stem
        new = Path(tempfile.mkdtemp(dir=new))
    try:
        for name, content in files.items():
            (new / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        (new / WEIGHTS).symlink_to(real)
        new.chmod(0o755)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        fault = f"cannot be opened in {new.parent} ({error.strerror})"
        raise GgufUnusable(path, fault, "a cache folder with room (XDG_CACHE_HOME)") from error
    with contextlib.suppress(OSError):  # another process was first, and made the same
        new.rename(folder)
    shutil.rmtree(new, ignore_errors=True)
    return folder


def _code() -> str:
    """Return a digest of what makes these folders."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()
