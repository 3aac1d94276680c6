# The router. Without torch, the image is small and a process takes tens of megabytes.
FROM python:3.11.14-slim-bookworm

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

COPY requirements/router.lock requirements/router.lock
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/router.lock

COPY baton baton
COPY chat_formats chat_formats
COPY output_text output_text
COPY router router
COPY scheduling scheduling
COPY services services
COPY state state
# The tokenizer and the chat template. Mount another model over it.
COPY demo_model demo_model

RUN useradd --uid 10001 --create-home baton
USER 10001

EXPOSE 50051
ENTRYPOINT ["python", "-m"]
CMD ["router", "--insecure-listen", "--listen", "0.0.0.0:50051", "--model", "/app/demo_model"]
