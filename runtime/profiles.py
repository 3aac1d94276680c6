"""Load a cost profile by its name, if it comes with Baton, or by the path of its file."""

from __future__ import annotations

from pathlib import Path

from scheduling.cost.profiles import Profile, parse

FOLDER = Path(__file__).with_name("profile_data")


def names() -> tuple[str, ...]:
    """Return the names of the profiles that come with Baton."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_profile(name_or_path: str) -> Profile:
    """Return a profile by name, or from a path: anything with a slash or ending in .json.

    Raises ValueError that says what would be accepted.
    """
    is_path = "/" in name_or_path or name_or_path.endswith(".json")
    if not is_path and name_or_path not in names():
        raise ValueError(
            f"profile is {name_or_path!r}; accepted: {', '.join(names())}, or the path of a .json file"
        )
    path = Path(name_or_path) if is_path else FOLDER / f"{name_or_path}.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"profile {name_or_path!r} cannot be read ({error}); accepted: a readable JSON file"
        ) from error
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"profile {name_or_path!r}: {error}") from error


def load_timed(name_or_path: str) -> Profile:
    """Load the profile that a service's --timed names; a ValueError names the flag as well."""
    try:
        return load_profile(name_or_path)
    except ValueError as error:
        raise ValueError(f"--timed: {error}") from error
