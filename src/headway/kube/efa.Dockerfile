# AWS' plugin for NCCL and its libfabric, from the image that has them. `headway image build --efa` adds this.
USER 0:0
COPY --from=efa /opt/amazon/efa /opt/amazon/efa
COPY --from=efa /opt/amazon/ofi-nccl /opt/amazon/ofi-nccl
ENV LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:${LD_LIBRARY_PATH}
RUN apt-get update \
 && apt-get install -y --no-install-recommends libhwloc15 libibverbs1 ibverbs-providers librdmacm1 libnl-3-200 libnl-route-3-200 \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -c 'import ctypes, torch; ctypes.CDLL("libnccl-net.so")'
