# `coordinator.image` of a target: Headway without torch, and the wheels by which it comes into workers' images that
# have torch and no Headway. Pushed once per version, for the architectures of all nodes. From the folder of the clone:
#
#   docker buildx build --platform linux/amd64,linux/arm64 -f docker/core.Dockerfile \
#     --build-arg BASE=python:3.12-slim@sha256:... -t REGISTRY/headway-core --push .
#
# BASE, an image with Python 3.11 or later and pip, has no default: a tag can change under you.
ARG BASE
FROM ${BASE}
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_BREAK_SYSTEM_PACKAGES=1

# Pods run as 1000:1000 unless the target's pod.user and pod.group say otherwise. Home is /tmp: nothing else
# can be written.
RUN groupadd --gid 1000 headway \
 && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp headway

# Every package by version and hash. pip compiles what it installs: a pod cannot.
WORKDIR /opt/headway
COPY requirements/core.txt requirements/core.txt
RUN python3 -m pip install --compile --require-hashes --no-deps --only-binary=:all: -r requirements/core.txt

# For every Python and architecture that a release ships for, whatever those of this image are.
COPY docker/wheels.py docker/wheels.py
COPY src/headway/kube/wheels.json src/headway/kube/wheels.json
RUN python3 docker/wheels.py fetch "$(python3 -c 'import sys; print(sys.prefix)')/share/headway/wheels"

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python3 -m pip install --compile --no-deps --no-build-isolation . && headway --version

WORKDIR /
USER 1000:1000
