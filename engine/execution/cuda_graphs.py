"""Recording work on a GPU as CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.execution.decode_graphs import Run


class CudaGraphs:
    """Records work over fixed tensors; implements `engine.execution.decode_graphs.Record`.

    The work must not read from the device on the host, nor do anything that depends on values. All graphs
    share one pool of memory, since they run one after another: a result is valid until the next replay of any
    graph.
    """

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(device)
        self._pool = cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Run `run` once, which compiles its kernels and makes its libraries' workspaces; then record it.

        The function that is returned replays it in the stream that is current at that time.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        cuda: Any = torch.cuda
        graph = cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile, without any effect on this capture.
        mode = "thread_local"
        with cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            output = run()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay
