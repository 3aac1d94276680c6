"""Time calls on a device: medians of repeated calls, by the device's own clock if it has one."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

ROUNDS = 30
WARM_UP = 3

Call = Callable[[], object]


def median_s(calls: Sequence[Call], device: torch.device) -> float:
    """Return the median seconds of a call.

    `calls` do the same with different data and take turns, so that none finds its data in a cache. On a GPU
    each is a graph, so that the gaps before launches do not count.
    """
    if device.type != "cuda":
        return statistics.median(_on_host(call) for call in itertools.islice(itertools.cycle(calls), ROUNDS))
    cuda: Any = torch.cuda
    graphs = [_captured(call) for call in calls]
    events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
    for (start, ended), graph in zip(events, itertools.cycle(graphs), strict=False):
        start.record()
        graph.replay()
        ended.record()
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(ended)) for start, ended in events) / 1e3


def _on_host(call: Call) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def _captured(call: Call) -> torch.cuda.CUDAGraph:
    cuda: Any = torch.cuda
    side = cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph
