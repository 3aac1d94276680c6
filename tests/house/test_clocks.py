"""Leases, deadlines and promises use clocks that nobody can set, and so outlive a jump."""

import ast

import pytest

from tests.house.walls import MAY_IMPORT
from tools.house.source_tree import module_name, modules

JUMPING = {("time", "time"), ("time", "time_ns"), ("time", "localtime"), ("time", "gmtime")}
JUMPING |= {(owner, name) for owner in ("datetime", "date") for name in ("now", "utcnow", "today")}
DATES = {
    "router.intake.helpers.chat_template": "the date that a template puts into a prompt",
    "runtime.security.settings": "whether a certificate is valid today",
    "runtime.process.clock": "whether a machine's clock is right",
    "runtime.tracing.exporter": "when spans began and ended, in Unix time, as the protocol has it",
    "baton.cli.commands.certs": "from when on a certificate is valid",
    "gateway.responses.draft": "when a response was created and completed, as gateway.openai.endpoints",
    "gateway.openai.endpoints": "when a response was created, in Unix seconds, as the API has it",
    "gateway.batches.files": "ids that sort by when a file or batch was created",
    "deploy.controller.writing": "when a condition of a pod changed",
    "baton.fleet.launcher": "as baton.cli.commands.certs",
}
SERVED = sorted(set(MAY_IMPORT) - {"benchmarks", "reporting", "tools", "workloads"})


@pytest.mark.parametrize("package", SERVED)
def test_nothing_is_timed_by_a_clock_that_jumps(package: str) -> None:
    offences = [
        f"{path}:{node.lineno}"
        for path in modules(package)
        if module_name(path) not in DATES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and (_last_name(node.value), node.attr) in JUMPING
    ]
    assert not offences, "\n".join(offences)


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
