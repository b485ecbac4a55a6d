# A volunteer's machine in an image, for CPUs. Built from the repository's root:
#   docker build -f docker/peer.Dockerfile -t manyhands-peer .
# For NVIDIA's GPUs add `--build-arg TORCH_INDEX=https://pypi.org/simple`, and start it with `--gpus all`.
FROM debian:bookworm-slim AS build
# Debian's stable release changes for security only: its packages are taken as they are today.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv --without-pip /opt/manyhands
# Third parties first: this layer is built again only when they change.
COPY pyproject.toml constraints.txt ./
# Which optional parts of pyproject.toml, with commas between.
ARG EXTRAS=peer
# PyTorch's CPU wheel saves gigabytes of CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
optional = project['optional-dependencies']; \
print(*project['dependencies'], *sum((optional[name] for name in sys.argv[1].split(',')), []), sep='\n')" "$EXTRAS" \
        > requirements.txt \
    && python3 -m pip --python /opt/manyhands/bin/python install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        -c constraints.txt -r requirements.txt
COPY README.md LICENSE manyhands.py ./
COPY auth auth
COPY peer peer
# Without the operator's dependencies its commands only say what they need; the start-up check wants all packages.
COPY coordinator coordinator
COPY dashboards dashboards
COPY notebooks/join.ipynb notebooks/
RUN python3 -m pip --python /opt/manyhands/bin/python install --no-cache-dir --no-deps -c constraints.txt .
# Tests of others, and what one compiles against: an eighth of it all.
RUN find /opt/manyhands/lib -regextype egrep \
        -regex '.*/site-packages/(torch/(test|include|share)|pandas/tests|pyarrow/(tests|include))' -prune -exec rm -r {} + \
    && find /opt/manyhands/lib -path '*/torch/bin/*' -not -name torch_shm_manager -delete

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="manyhands peer" \
    org.opencontainers.image.description="Takes part in a run in which volunteers train one language model together." \
    org.opencontainers.image.licenses="Apache-2.0"
# tini is process 1: it reaps what hivemind's processes leave behind, and hands on signals.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home manyhands \
    && install -d -o manyhands -g manyhands -m 0700 /data
COPY --from=build /opt/manyhands /opt/manyhands
# The image is never written to: whatever a library keeps goes to the volume.
ENV PATH=/opt/manyhands/bin:$PATH PYTHONUNBUFFERED=1 MANYHANDS_IMAGE=manyhands-peer XDG_DATA_HOME=/data XDG_CACHE_HOME=/data/cache
USER 10001
WORKDIR /data
# The device's key and its place in the data, one directory for each run.
VOLUME /data
# The agent touches this file every few seconds from joining on, unless its worker is silent.
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m \
    CMD ["sh", "-c", "find /data -maxdepth 3 -name alive -newermt '-90 seconds' | grep -q ."]
ENTRYPOINT ["tini", "--", "manyhands"]
CMD ["join", "--help"]
