# The web service: no torch, no root, nothing but the installed wheel.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY moe_core ./moe_core
COPY mirage ./mirage
COPY detector ./detector
COPY service ./service
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir wheels .

FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HOME=/tmp ORT_DISABLE_TELEMETRY=1
COPY --from=build /src/wheels /wheels
RUN wheel=$(ls /wheels/omniaid-*.whl) && python -m pip install --no-cache-dir "omniaid[serve,cluster] @ file://$wheel"
COPY examples /examples
ENV OMNIAID_EXAMPLES=/examples
# What must survive the container: keys, jobs, reports, the audit log.
WORKDIR /state
RUN chown 10001:10001 /state
ENV OMNIAID_STATE=/state
VOLUME /state
# A number, so that a cluster can see that it is not root; no account is needed.
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
CMD ["omniaid", "serve", "--host", "0.0.0.0", "--port", "8000"]
