"""An executor's columns where a test has no executor."""

from engine.core.sequence import Sequence


class NoRows:
    """Keeps nothing for any row."""

    def join(self, sequence: Sequence) -> None:
        pass

    def leave(self, sequence: Sequence, last: int) -> None:
        pass

    def set_blocks(self, sequence: Sequence) -> None:
        pass

    def add_block(self, sequence: Sequence) -> None:
        pass
