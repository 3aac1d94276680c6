# The router. The image holds Python, the packages of requirements/router.lock and the libraries that they load:
# no shell, no package manager, no torch.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /build
COPY requirements/sbom.lock .
RUN python -m venv /sbom && /sbom/bin/pip install --no-cache-dir --no-deps --require-hashes -r sbom.lock
COPY requirements/router.lock .
COPY tools/minimal_root.py .
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r router.lock \
    && /venv/bin/pip uninstall --yes pip setuptools \
    && python minimal_root.py /venv /root_of_image \
    && /sbom/bin/cyclonedx-py environment --output-file /root_of_image/sbom.cdx.json /venv/bin/python

FROM scratch

COPY --from=build /root_of_image /
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY baton baton
COPY chat_formats chat_formats
COPY output_text output_text
COPY router router
COPY scheduling scheduling
COPY services services
COPY state state
# The tokenizer and the chat template. Mount another model over it.
COPY demo_model/*.json demo_model/*.jinja demo_model/

USER 10001
EXPOSE 50051
ENTRYPOINT ["/venv/bin/python", "-m"]
CMD ["router", "--insecure-listen", "--listen", "0.0.0.0:50051", "--model", "/app/demo_model"]
