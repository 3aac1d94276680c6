"""The images: small, with a list of what they hold, and without what a service does not need."""

from __future__ import annotations

import json
import platform

import pytest

from tests.compose.engine import run

pytestmark = [pytest.mark.compose, pytest.mark.integration, pytest.mark.timeout(1800, func_only=True)]

BUDGETS_MB = {"baton-router": 150, "baton-gateway": 150, "baton-worker": 1200}
"""The largest size of each image, base image included."""


@pytest.mark.parametrize("image", sorted(BUDGETS_MB))
def test_images_are_small_and_list_what_they_hold(images: None, image: str) -> None:
    (found,) = json.loads(run("docker", "image", "inspect", image))
    assert found["Size"] / 1e6 <= BUDGETS_MB[image]
    listed = run_python(image, "import json; print(len(json.load(open('/sbom.cdx.json'))['components']))")
    assert int(listed) > 10
    debian = run_python(image, "import os; print(*os.listdir('/var/lib/dpkg/status.d'))")
    assert "libc6" in debian.split()


@pytest.mark.parametrize("image", sorted(BUDGETS_MB))
def test_an_image_has_no_shell_and_no_package_manager(images: None, image: str) -> None:
    program = "import os; print(*(os.path.exists(p) for p in ('/bin/sh', '/usr/bin/apt', '/venv/bin/pip')))"
    assert run_python(image, program).split() == ["False", "False", "False"]


@pytest.mark.parametrize("capability", [None, "avx2", "default"])
def test_the_worker_s_image_has_native_ops_for_each_kind_of_processor(
    images: None, capability: str | None
) -> None:
    if capability is not None and platform.machine() != "x86_64":
        pytest.skip("torch distinguishes these on x86-64")
    program = "from kernels.native.loader import library; print(library() is not None)"
    limits = () if capability is None else ("--env", f"ATEN_CPU_CAPABILITY={capability}")
    assert run_python("baton-worker", program, *limits).strip() == "True"


def run_python(image: str, program: str, *flags: str) -> str:
    return run("docker", "run", "--rm", *flags, "--entrypoint", "/venv/bin/python", image, "-c", program)
