"""Objects of Kubernetes are decoded by several threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
from headway.kube.client import KubeClient
from lightkube.core.decoders import decode_list
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

sys.setswitchinterval(1e-6)
KubeClient(None, None, "default")
together = threading.Barrier(8)

def decode(number):
    together.wait()
    kind = (Pod, Job)[number % 2]
    if number % 4 < 2:
        decode_list(b'{"items": [{"metadata": {"name": "it"}}]}', kind)
    else:
        kind.from_dict({})

threads = [threading.Thread(target=decode, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.long("starts processes until one would crash")
def test_the_first_objects_of_several_threads_do_not_crash_the_process() -> None:
    """Without preparation, one start in three ended in a segmentation fault."""
    starts = [subprocess.Popen([sys.executable, "-c", SCRIPT]) for _ in range(8)]
    assert [start.wait(60) for start in starts] == [0] * 8
