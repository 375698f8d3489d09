"""`make memory-page`: writes the published figures of memory, beside what plan predicts, into
docs/concepts/plan-accuracy.md."""

from __future__ import annotations

from support.accuracy_page import write_section
from support.published_memory import accuracy_section

if __name__ == "__main__":
    write_section("memory", accuracy_section())
