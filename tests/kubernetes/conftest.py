"""One node, with the images of the checkout, for all tests of the folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.images import build_images
from tests.kubernetes.node import node


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A node that is ready, with both versions of each image."""
    with node():
        build_images()
        yield
