"""Runs ops under Triton's interpreter, in a process of their own.

Triton decides between compiler and interpreter when it is first imported, for the whole process; the other
tests of this process need the compiler, or have imported triton already. So the ops run in a child, started
with TRITON_INTERPRET=1, to which arguments go and from which results come as pickles.

The interpreter computes `tl.dot` with the host's BLAS, which may add the terms of a row in another order when
its neighbours or its place change. The child adds them in one order, so results are the same on every host.
"""

import io
import os
import pickle
import subprocess
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

OPS = (
    "store_kv",
    "paged_decode",
    "chunked_prefill",
    "sample_rows",
    "top_logits",
    "add_rms_norm",
    "rope_store_kv",
    "gated_activation",
    "gather_blocks",
    "scatter_blocks",
    "checksum_blocks",
    "invariant_linear",
    "int8_linear",
)
PACKAGES = {"gather_blocks": "copy_blocks", "scatter_blocks": "copy_blocks"}  # the others' are called as they
REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = CALL_TIMEOUT_S = 240.0


class Interpreter:
    """`run(op, *args, **kwargs)` as the public wrapper `kernels.<package>.<op>`, but interpreted."""

    def __init__(self) -> None:
        self._connection, childs_end = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.interpreter", str(childs_end.fileno())],
            cwd=REPOSITORY,
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            pass_fds=[childs_end.fileno()],
        )
        childs_end.close()
        self._receive(START_TIMEOUT_S)

    def run(self, op: str, *args: object, **kwargs: object) -> Any:
        """The op's result; raises AssertionError with the child's traceback if it failed there."""
        return self.run_and_return_args(op, *args, **kwargs)[0]

    def run_and_return_args(self, op: str, *args: object, **kwargs: object) -> tuple[Any, tuple[Any, ...]]:
        """For an op that writes in place: its result, and its arguments as they are afterwards."""
        self._connection.send_bytes(_pickled((op, args, kwargs)))
        result, args_after, error = self._receive(CALL_TIMEOUT_S)
        assert error is None, error
        return result, args_after

    def close(self) -> None:
        self._connection.close()
        self._process.wait(timeout=START_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> Any:
        if not self._connection.poll(timeout_s):
            self._process.kill()
            raise TimeoutError(f"the interpreting process did not answer within {timeout_s:.0f} s")
        return pickle.loads(self._connection.recv_bytes())


class _Pickler(pickle.Pickler):
    """Sends fp8 as the view of bytes that it is: torch has no name for its storage that pickle could read."""

    def reducer_override(self, sent: object) -> Any:
        if isinstance(sent, torch.Tensor) and sent.dtype == torch.float8_e4m3fn:
            return torch.Tensor.view, (sent.view(torch.uint8), sent.dtype)
        return NotImplemented


def _pickled(message: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(message)
    return buffer.getvalue()


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    # Fills what torch.empty returns with NaN, so that output which no program writes shows.
    torch.use_deterministic_algorithms(True)
    InterpreterBuilder.create_dot = _dot
    packages = {op: f"kernels.{PACKAGES.get(op, op)}" for op in OPS}
    ops = {op: getattr(import_module(package), op) for op, package in packages.items()}
    for op, package in packages.items():
        setattr(import_module(f"{package}.kernel"), f"{op}_reference", _refuse_reference)
    connection.send_bytes(_pickled("ready"))
    while True:
        try:
            op, args, kwargs = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        result, error = None, None
        try:
            result = ops[op](*args, **kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, the test that asked shows it
            error = traceback.format_exc()
        connection.send_bytes(_pickled((result, args, error)))


def _dot(
    self: InterpreterBuilder,
    a: TensorHandle,
    b: TensorHandle,
    d: TensorHandle,
    input_precision: object,
    max_num_imprecise_acc: object,
) -> TensorHandle:
    """Return a @ b + d, each sum one term after the other, each rounded to the type of `d`."""
    # numpy has no bfloat16: what the interpreter keeps of it are bits, as integers.
    assert a.data.dtype.kind == b.data.dtype.kind == "f", f"tl.dot has no {a.dtype} and {b.dtype} here"
    left, right = a.data.astype(d.data.dtype), b.data.astype(d.data.dtype)
    product = np.zeros_like(d.data)
    for term in range(left.shape[-1]):
        product += left[..., :, term, None] * right[..., None, term, :]
    return TensorHandle(product + d.data, d.dtype.scalar)


def _refuse_reference(*args: object, **kwargs: object) -> NoReturn:
    raise AssertionError("the reference ran where the kernel should have")


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
