"""Versions of the libraries below a training that the tests run with: `make test-oldest` has the
oldest, all other tiers the newest. Older ones are refused. Newer ones are warned of: whatever rests
on private parts of them proves itself when a worker starts, or ends it with a name
(tests/unit/train/test_private_parts.py)."""

TESTED = {"torch": ">=2.14,<2.16", "transformers": ">=5.9,<5.23"}
"""As in the extra `train` of pyproject.toml."""


def install_hint(name: str) -> str:
    return f"uv pip install '{name}{TESTED[name]}'"
