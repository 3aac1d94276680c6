"""Which package may import what. A new package or arrow is drawn here first."""

# Routers, workers and gateways sit on engine, kvtransfer, runtime and scheduling; only engine, on kernels.
# `baton` is at the bottom: all but `SDK_USERS` take only its generated stubs.
MAY_IMPORT: dict[str, set[str]] = {
    "baton": set(),
    "kernels": set(),
    "scheduling": set(),
    "gguf_model": set(),
    "runtime": {"baton", "gguf_model", "scheduling"},
    "model_output": {"scheduling"},
    "engine": {"gguf_model", "kernels", "model_output", "scheduling"},
    "kvtransfer": {"baton", "runtime", "scheduling"},
    "worker": {"baton", "engine", "gguf_model", "kvtransfer", "model_output", "runtime", "scheduling"},
    "prefill_worker": {"engine", "worker"},
    "decode_worker": {"engine", "kvtransfer", "worker"},
    "router": {"baton", "gguf_model", "model_output", "runtime", "scheduling"},
    "gateway": {"baton", "runtime"},
    "deploy": {"baton", "runtime"},
    "sim": {"engine", "router", "runtime", "scheduling"},
    # Measurements look at every part.
    "benchmarks": {
        "baton",
        "engine",
        "gateway",
        "kernels",
        "router",
        "runtime",
        "scheduling",
        "sim",
        "worker",
    },
    "tools": {
        "baton",
        "benchmarks",
        "deploy",
        "engine",
        "gateway",
        "router",
        "runtime",
        "scheduling",
        "sim",
        "worker",
    },
}

# Parts of packages that are walled off from the rest of the project: who may import them, ...
USERS_OF_PART: dict[str, set[str]] = {
    "runtime.state": {"benchmarks", "gateway", "router", "runtime.state", "sim", "worker"},
}

# ... and all that they may import of it.
ALONE: dict[str, set[str]] = {
    "model_output.formats": set(),
    "runtime.state": {"scheduling"},
    "sim.reporting": {"runtime"},
    "sim.workloads": {"scheduling"},
}

# Parts of a package that needs torch which do without it, and what their users may import of that package.
TORCH_FREE_PARTS = {"engine.core"}

# Drawn above, not built yet.
PLANNED: set[str] = set()

# Those that use the whole SDK; everybody else takes no more of `baton` than its stubs.
SDK_USERS = {"baton", "benchmarks", "deploy", "gateway", "tools"}

_SERVICE = {
    "google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "prometheus_client", "structlog",
    "uvloop",
}  # fmt: skip

# All that these may import besides Python's own library: what the images of deploy/requirements/ hold.
THIRD_PARTY: dict[str, set[str]] = {
    "baton": {"cryptography", "google", "grpc", "grpc_health", "grpc_status", "rich"},
    "benchmarks": {
        "gguf",
        "grpc",
        "httpx",
        "nncf",
        "numpy",
        "openvino",
        "openvino_genai",
        "optimum",
        "prometheus_client",
        "rich",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
        "uvloop",
    },
    "decode_worker": {"structlog"},
    "deploy": {"aiohttp", "grpc", "kopf", "kubernetes_asyncio", "structlog"},
    "engine": {"numpy", "safetensors", "tokenizers", "torch", "transformers"},
    "gguf_model": set(),
    "gateway": {
        "fastapi",
        "google",
        "grpc",
        "httptools",
        "orjson",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "starlette",
        "structlog",
        "uvicorn",
        "uvloop",
    },
    "kernels": {"torch", "triton"},
    "kvtransfer": {
        "cryptography",
        "google",
        "grpc",
        "numpy",
        "prometheus_client",
        "structlog",
        "torch",
        "xxhash",
    },
    "model_output": {"llguidance", "tokenizers"},
    "prefill_worker": set(),
    "router": _SERVICE | {"jinja2", "jwt", "tokenizers"},
    "scheduling": set(),
    "runtime": {
        "cryptography",
        "filelock",
        "google",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "httpx",
        "huggingface_hub",
        "opentelemetry",
        "prometheus_client",
        "redis",
        "structlog",
    },
    "sim": {"matplotlib", "numpy", "rich"},
    "worker": _SERVICE | {"numpy", "torch"},
}

# Decisions that need arrays, kept apart so that whoever leaves these files alone does not load numpy.
NUMPY_ALLOWED: dict[str, str] = {
    "scheduling/cost/cost_fit.py": "least squares over measured steps, which only workers have",
}

# All that `scheduling` may import of Python's own library: nothing that waits, reads a clock, draws at
# random, logs, or touches anything outside. `json` turns text into values and back, no more.
PURE_LIBRARY = {
    "__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib",
    "heapq", "itertools", "json", "math", "operator", "statistics", "struct", "typing",
}  # fmt: skip

# What a decision must never reach, however many modules away.
IMPURE = {
    "asyncio",
    "datetime",
    "grpc",
    "logging",
    "random",
    "redis",
    "socket",
    "structlog",
    "threading",
    "time",
}

# Besides every __main__.py, *service.py and convert*.py: the files that speak a stub themselves.
CONTRACT_EDGES: dict[str, str] = {
    "benchmarks/costs/token_path.py": "times what is read from messages and written to them",
    "baton/async_client.py": "calls the public stubs",
    "baton/fleet/joining.py": "asks a started router whether all workers have joined",
    "baton/wire/many.py": "holds the GenerateMany calls that generations share",
    "baton/wire/rows.py": "reads the messages of GenerateMany",
    "baton/wire/status.py": "reads the error details of a status",
    "baton/stream.py": "holds one Generate call",
    "baton/wire/transport.py": "the seam: sends and receives messages of the contract",
    "kvtransfer/receiving/peers.py": "makes a stub for each peer",
    "kvtransfer/receiving/receiver.py": "holds one Open call",
    "kvtransfer/transports/grpc.py": "fetches blocks by the contract's own call",
    "router/api/many_call.py": "holds one GenerateMany call",
    "router/intake/sizes.py": "counts the entries of a message before it is converted",
    "router/api/status.py": "writes the error details of a status",
    "router/links/worker_link.py": "holds one Work stream to a worker, and probes it",
    "runtime/rpc/probe.py": "signs and checks datagrams of the contract",
    "worker/streams/probes.py": "receives and sends datagrams of the contract",
}

# Besides every __main__.py and config.py, and besides tools/, which are programs.
ENVIRONMENT_READERS: dict[str, str] = {
    "baton/security/kubernetes_secrets.py": "finds the API server where the kubelet says that it is",
    "baton/fleet/processes/process.py": "hands its own environment on to the processes that it starts",
    "engine/calibration/dtype.py": "asks to which instructions torch's libraries are limited",
    "runtime/caching.py": "finds the user's cache folder",
    "runtime/tracing/settings.py": "finds the collector that OpenTelemetry's own variables name",
    "worker/process/command.py": "says how threads of torch's libraries wait, unless that is set",
    "worker/startup/flags.py": "finds out whether a cluster starts this process as one of several",
    "benchmarks/peers/dynamo_arm.py": "hands its own environment on to the peer that it starts",
}
