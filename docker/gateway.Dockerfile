# The gateway: the HTTP APIs of a fleet. It has neither torch nor a tokenizer, and no model.
FROM python:3.11.14-slim-bookworm

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

COPY requirements/gateway.lock requirements/gateway.lock
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/gateway.lock

COPY baton baton
COPY chat_formats chat_formats
COPY gateway gateway
COPY scheduling scheduling
COPY services services
COPY state state

RUN useradd --uid 10001 --create-home baton
USER 10001

EXPOSE 8000
ENTRYPOINT ["python", "-m"]
CMD ["gateway", "--insecure-listen", "--listen", "0.0.0.0:8000", "--router", "router:50051"]
