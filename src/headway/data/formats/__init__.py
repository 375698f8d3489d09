"""One file for each family of formats; `readers.py` knows which reads what."""
