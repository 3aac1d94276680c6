"""One node, with the images of the checkout, for all tests of the folder.

Tests are limited in time, and what prepares them is not: on a busy machine, compiling Kubernetes and building
the images took longer than any test may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.kubernetes.images import build_images
from tests.kubernetes.load import Expected, undisturbed
from tests.kubernetes.node import node
from tests.kubernetes.release import Release


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A node that is ready, with both versions of each image."""
    with node():
        build_images()
        yield


@pytest.fixture(scope="module")
def expected(fleet: Release) -> Expected:
    """The streams of a module's `fleet` while nothing happens to it."""
    return asyncio.run(undisturbed(fleet.doors()))
