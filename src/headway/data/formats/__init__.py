"""One module per family of formats; `readers.py` maps suffixes to readers."""
