"""The words that a user sees first when a script has failed."""

from __future__ import annotations

from headway.script.last_words import last_traceback

ERROR = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "train.py", line 5, in main
    raise ValueError("a bad sample")
ValueError: a bad sample
"""


def test_what_trackers_print_afterwards_is_left_out() -> None:
    goodbye = "\n".join(["", *(f"wandb: line {number}" for number in range(60))])
    assert last_traceback(f"step 1\n{ERROR}{goodbye}") == ERROR.rstrip()


def test_torchs_prefix_is_left_out() -> None:
    text = "".join(f"[rank3]: {line}\n" for line in ERROR.splitlines())
    assert last_traceback(text + "[rank3]: after it\n").startswith(ERROR.rstrip())


def test_a_message_of_several_lines_is_kept() -> None:
    text = f"{ERROR.rstrip()}\nExpected 3\nGot 4\n"
    assert last_traceback(text).endswith("a bad sample\nExpected 3\nGot 4")


def test_the_last_of_several_counts() -> None:
    first = ERROR.replace("a bad sample", "the first")
    text = (
        f"{first}\nDuring handling of the above exception, another exception occurred:\n\n{ERROR}"
    )
    assert last_traceback(text) == ERROR.rstrip()


def test_long_tracebacks_keep_the_frames_next_to_the_error() -> None:
    frames = "".join(f'  File "{number}.py", line 1, in f\n    f()\n' for number in range(100))
    text = f"Traceback (most recent call last):\n{frames}RecursionError: too deep\n"
    shown = last_traceback(text).splitlines()
    assert shown[0].startswith("Traceback")
    assert shown[-1] == "RecursionError: too deep"
    assert '  File "99.py", line 1, in f' in shown
    assert len(shown) < 40


def test_without_a_traceback_there_are_none() -> None:
    assert last_traceback("usage: train.py [-h]\ntrain.py: error: --out is required") == ""
