# docker build -t sluiceway .          CUDA kernels for all cards; --build-arg ARCHITECTURES=89 for one.
# docker run --rm --gpus all --ulimit memlock=-1 --security-opt seccomp=unconfined -v $PWD:/data sluiceway doctor
#
# The second stage has neither compiler nor checkout. docs/guide.md says what the flags are for.
FROM debian:12-slim AS build
ARG ARCHITECTURES=
RUN apt-get update && apt-get install -y --no-install-recommends git make ca-certificates
COPY . /sluiceway
RUN cd /sluiceway && make wheel ARCHITECTURES="$ARCHITECTURES"

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv ca-certificates \
  && rm -rf /var/lib/apt/lists/*
COPY --from=build /sluiceway/dist /tmp/dist
RUN python3 -m venv /opt/sluiceway \
  && /opt/sluiceway/bin/python -m pip install --no-cache-dir "$(echo /tmp/dist/*.whl)[train,report]" \
  && rm -r /tmp/dist
ENV PATH=/opt/sluiceway/bin:$PATH
WORKDIR /data
ENTRYPOINT ["sluiceway"]
