# Prefill and decode workers: one image with two commands. The target `cpu` has torch for CPUs; the default, `gpu`,
# has torch's default build, which includes CUDA.
FROM scratch AS app
WORKDIR /app
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

FROM python:3.11.14-slim-bookworm AS packages
WORKDIR /build
COPY requirements/sbom.lock .
RUN python -m venv /sbom && /sbom/bin/pip install --no-cache-dir --no-deps --require-hashes -r sbom.lock
COPY requirements/worker.lock .
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r worker.lock

# Torch for CPUs, without Triton and without the parts of torch that only its own tests and compilers use.
FROM packages AS minimal
COPY tools/minimal_root.py .
ARG TORCH_PIP_ARGS="--index-url https://download.pytorch.org/whl/cpu"
# hadolint ignore=DL3013,SC2086
RUN /venv/bin/pip install --no-cache-dir --no-deps torch==2.13.0 ${TORCH_PIP_ARGS} \
    && /venv/bin/pip uninstall --yes pip triton \
    && rm -rf /venv/lib/python3.11/site-packages/torch/test \
    && find /venv/lib/python3.11/site-packages/torch/bin -type f ! -name torch_shm_manager -delete \
    && python minimal_root.py /venv /root_of_image \
    && /sbom/bin/cyclonedx-py environment --output-file /root_of_image/sbom.cdx.json /venv/bin/python

FROM scratch AS cpu
COPY --from=minimal /root_of_image /
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY --from=app /app ./
USER 10001
EXPOSE 50061 50061/udp
ENTRYPOINT ["/venv/bin/python", "-m"]
CMD ["decode_worker", "--insecure-listen", "--listen", "0.0.0.0:50061", "--model", "/app/demo_model"]

# Torch's default build, which includes CUDA, and gcc, with which Triton compiles its launcher when the first kernel
# runs.
FROM packages AS gpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home baton
ARG TORCH_PIP_ARGS=""
# The version is pinned, but the linter misses that beside an argument; the argument may be several words.
# hadolint ignore=DL3013,SC2086
RUN /venv/bin/pip install --no-cache-dir torch==2.13.0 ${TORCH_PIP_ARGS} \
    && /sbom/bin/cyclonedx-py environment --output-file /sbom.cdx.json /venv/bin/python
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY --from=app /app ./
USER 10001
EXPOSE 50061 50061/udp
ENTRYPOINT ["/venv/bin/python", "-m"]
CMD ["decode_worker", "--insecure-listen", "--listen", "0.0.0.0:50061", "--model", "/app/demo_model"]
