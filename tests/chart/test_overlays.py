"""Every overlay renders to objects that Kubernetes accepts."""

import pytest

from tools.lint_chart import OLDEST, OVERLAYS, VALIDATED, problems, rendered

pytestmark = pytest.mark.helm


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", [VALIDATED[0], VALIDATED[-1]])
def test_an_overlay_renders_to_valid_objects(overlay: str, version: str) -> None:
    assert not list(problems(rendered(overlay, kubernetes=version), version))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_renders_without_what_the_oldest_kubernetes_lacks(overlay: str) -> None:
    objects = rendered(overlay, kubernetes=OLDEST)
    versions = {item["apiVersion"] for item in objects if item["kind"] == "PodDisruptionBudget"}
    assert versions == {"policy/v1beta1"}
    assert "'grpc': {'port'" not in str(objects)
