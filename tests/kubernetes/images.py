"""The checkout's images on the node's engine, in two versions, so that an upgrade has something to change."""

from __future__ import annotations

import os
import subprocess

from tests.compose.engine import ROOT, ensure_base_images, torch_arguments
from tests.kubernetes.build import timed
from tests.kubernetes.node import DOCKER_HOST

IMAGES = {
    "baton-router": "router",
    "baton-gateway": "gateway",
    "baton-worker": "worker",
    "baton-controller": "controller",
}
"""Each image with its target in deploy/docker/Dockerfile."""
FIRST, SECOND = "first", "second"


def build_images() -> None:
    """Build what the checkout says; layers that have not changed come from the engine's cache."""
    os.environ["DOCKER_HOST"] = DOCKER_HOST
    timed("Make or find the base images", ensure_base_images)
    with torch_arguments() as environment:
        torch = environment.get("TORCH_PIP_ARGS", "")
        for image, target in IMAGES.items():
            timed(f"Build {image}", _build, image, target, torch)


def _build(image: str, target: str, torch: str) -> None:
    arguments = ["--build-arg", f"TORCH_PIP_ARGS={torch}"] if torch and target == "worker" else []
    _docker_build(
        f"{image}:{FIRST}", "--network", "host", "--file", "deploy/docker/Dockerfile", "--target", target,
        *arguments, ".",
    )  # fmt: skip
    _docker_build(f"{image}:{SECOND}", "-", stdin=f"FROM {image}:{FIRST}\nLABEL version={SECOND}\n")


def _docker_build(tag: str, *arguments: str, stdin: str = "") -> None:
    # The classic builder needs no plugin.
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    ended = subprocess.run(
        ["docker", "build", "--quiet", "--tag", tag, *arguments],
        cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        raise RuntimeError(f"{tag} cannot be built: {(ended.stdout + ended.stderr)[-4000:]}")
