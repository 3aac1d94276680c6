# The gateway: the HTTP APIs of a fleet. It has neither torch nor a tokenizer, and no model. Like the router's image,
# it holds Python, its packages and the libraries that they load.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /build
COPY requirements/sbom.lock .
RUN python -m venv /sbom && /sbom/bin/pip install --no-cache-dir --no-deps --require-hashes -r sbom.lock
COPY requirements/gateway.lock .
COPY tools/minimal_root.py .
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r gateway.lock \
    && /venv/bin/pip uninstall --yes pip setuptools \
    && python minimal_root.py /venv /root_of_image \
    && /sbom/bin/cyclonedx-py environment --output-file /root_of_image/sbom.cdx.json /venv/bin/python

FROM scratch

COPY --from=build /root_of_image /
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY baton baton
COPY chat_formats chat_formats
COPY gateway gateway
COPY scheduling scheduling
COPY services services
COPY state state

USER 10001
EXPOSE 8000
ENTRYPOINT ["/venv/bin/python", "-m"]
CMD ["gateway", "--insecure-listen", "--listen", "0.0.0.0:8000", "--router", "router:50051"]
