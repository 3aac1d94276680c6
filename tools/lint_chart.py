"""Render the Helm chart with each of its overlays and all options, and validate the objects strictly.

`python -m tools.lint_chart` is a part of `make lint`. `rendered` is for tests, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # ships no annotations
import yaml

from tools.house.source_tree import ROOT

CHART = ROOT / "deploy" / "helm" / "baton"
HELM = ROOT / ".venv-helm" / "bin" / "helm"
OVERLAYS = sorted(path.name for path in CHART.glob("values-*.yaml"))
OLDEST = "1.20"
"""The oldest Kubernetes on which the chart installs. There is no schema of it."""
VALIDATED = ("1.34", "1.35", "1.36", "1.37")
OPTIONS = "controller.enabled=true", "picker.enabled=true", "picker.inferencePool.enabled=true"
"""Parts that no overlay turns on."""
WITHOUT_SCHEMA = {
    "baton.dev", "cert-manager.io", "inference.networking.k8s.io", "keda.sh", "monitoring.coreos.com",
}  # fmt: skip
"""API groups whose objects are not part of Kubernetes' schemas."""


class Refused(Exception):
    """Helm refuses the values; the message is its own."""


def rendered(
    *overlays: str | Path,
    sets: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    kubernetes: str = VALIDATED[-1],
    release: str = "fleet",
) -> list[dict[str, Any]]:
    """Return the objects that Helm makes of the chart; raises `Refused`.

    Overlays are files of the chart or paths. `values` come after them, and `sets` last.
    """
    command = [
        str(HELM),
        "template",
        release,
        str(CHART),
        "--namespace",
        "serving",
        "--kube-version",
        kubernetes,
    ]
    for overlay in overlays:
        command += ["--values", str(CHART / overlay)]
    if values is not None:
        command += ["--values", "-"]
    for setting in sets:
        command += ["--set", setting]
    overrides = None if values is None else yaml.safe_dump(dict(values))
    ended = subprocess.run(command, input=overrides, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Refused(ended.stderr.strip())
    return [item for item in yaml.safe_load_all(ended.stdout) if item]


def problems(objects: Sequence[dict[str, Any]], version: str) -> Iterator[str]:
    """Yield what is wrong with these objects on this version of Kubernetes."""
    for item in objects:
        name = f"{item['kind']} {item['metadata']['name']}"
        if item["apiVersion"].partition("/")[0] in WITHOUT_SCHEMA:
            continue
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{name}: Kubernetes {version} has no {item['apiVersion']}"


def main() -> int:
    """Return 1, and print why, if Helm refuses an overlay or Kubernetes would refuse an object."""
    errors = []
    for overlay in OVERLAYS:
        linted = subprocess.run(
            [str(HELM), "lint", "--strict", "--quiet", "--values", str(CHART / overlay), str(CHART)],
            capture_output=True,
            text=True,
            check=False,
        )
        if linted.returncode != 0:
            errors.append(f"{overlay}: {linted.stdout}{linted.stderr}")
        rendered(overlay, kubernetes=OLDEST)
        for version in VALIDATED:
            for sets in ((), OPTIONS):
                objects = rendered(overlay, sets=sets, kubernetes=version)
                errors += [f"{overlay}: {problem}" for problem in problems(objects, version)]
    for problem in errors:
        print(problem, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
