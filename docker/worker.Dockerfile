# Prefill and decode workers: one image with two commands.
FROM python:3.11.14-slim-bookworm

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

# On a GPU, Triton compiles its launcher with gcc when the first kernel runs.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

COPY requirements/worker.lock requirements/worker.lock
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/worker.lock

# Without arguments this is torch's default build, which includes CUDA. For a small image of CPU workers, name
# the index of torch's CPU builds: --build-arg TORCH_PIP_ARGS="--index-url ..."
ARG TORCH_PIP_ARGS=""
# The version is pinned, but the linter misses that beside an argument; the argument may be several words.
# hadolint ignore=DL3013,SC2086
RUN pip install --no-cache-dir torch==2.13.0 ${TORCH_PIP_ARGS}

COPY baton baton
COPY chat_formats chat_formats
COPY decode_worker decode_worker
COPY engine engine
COPY kernels kernels
COPY kvtransfer kvtransfer
COPY output_text output_text
COPY prefill_worker prefill_worker
COPY scheduling scheduling
COPY services services
COPY state state
COPY worker worker
# The demo model's weights. Mount another model over them.
COPY demo_model demo_model

RUN useradd --uid 10001 --create-home baton
USER 10001

EXPOSE 50061 50061/udp
ENTRYPOINT ["python", "-m"]
CMD ["decode_worker", "--insecure-listen", "--listen", "0.0.0.0:50061", "--model", "/app/demo_model"]
