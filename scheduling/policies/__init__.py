"""The policies by name: each says how a step is filled, and how its fleet queues requests and makes promises.

`policy` has the type, and each policy has a file: `static`, `dynamic`, `orca`, `prefill_first`, `chunked`,
`slos_serve`, `jitserve`, `qoserve` and `polyserve` are baselines that name their paper or origin; `slack` is
Baton's own. A policy may also let a worker wait before its next step (`wait_s` of
`scheduling.step.StepPlan`), as `dynamic` does. They may import only `scheduling`.
"""

from __future__ import annotations

from scheduling.policies.chunked import CHUNKED
from scheduling.policies.dynamic import DYNAMIC
from scheduling.policies.jitserve import JITSERVE
from scheduling.policies.orca import ORCA
from scheduling.policies.policy import Policy
from scheduling.policies.polyserve import POLYSERVE
from scheduling.policies.prefill_first import PREFILL_FIRST
from scheduling.policies.qoserve import QOSERVE
from scheduling.policies.slack import SLACK
from scheduling.policies.slos_serve import SLOS_SERVE
from scheduling.policies.static import STATIC

_BASELINES = (STATIC, DYNAMIC, ORCA, PREFILL_FIRST, CHUNKED)
_RIVALS = (SLOS_SERVE, JITSERVE, QOSERVE, POLYSERVE)
_ALL = {policy.name: policy for policy in (*_BASELINES, *_RIVALS, SLACK)}
NAMES = tuple(_ALL)
DEFAULT = SLACK.name


def by_name(name: str) -> Policy:
    """Return a policy; raise ValueError for a name that is not one of `NAMES`."""
    if name not in _ALL:
        raise ValueError(f"policy is {name!r}; accepted: {', '.join(NAMES)}")
    return _ALL[name]
