# Headway and all that it needs, in an image that has Python, pip and torch. `headway image build` writes the FROM above this.
USER 0:0
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_BREAK_SYSTEM_PACKAGES=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Pods run as 1000:1000 unless the target's pod.user and pod.group say otherwise. Some bases have that user.
RUN getent group 1000 || groupadd --gid 1000 headway; \
    getent passwd 1000 || useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp headway

# For `memory: {compile: true}`: inductor compiles what runs on CPUs, Triton its launchers. For InfiniBand and EFA: NCCL opens libibverbs.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ rdma-core libibverbs1 ibverbs-providers librdmacm1 \
 && rm -rf /var/lib/apt/lists/*

# Every package by version and hash. With bytecode: in a pod the image cannot be written, so Python would compile every module
# again at every start.
WORKDIR /opt/headway
COPY . .
RUN python3 -m pip install --compile --no-deps --only-binary=:all: --require-hashes -r requirements.txt \
 && python3 -m pip install --compile --no-deps ./headway-*.whl \
 && headway --version \
 && python3 -B finish.py

WORKDIR /
USER 1000:1000
