"""An executor's columns where a test has no executor."""

from engine.core.sequence import Choice


class NoRows:
    """Keeps nothing for any row."""

    def join(self, choice: Choice) -> None:
        pass

    def leave(self, choice: Choice, last: int) -> None:
        pass

    def set_blocks(self, choice: Choice) -> None:
        pass

    def add_block(self, choice: Choice) -> None:
        pass
