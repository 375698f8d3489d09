"""Headway from Python: what the commands do, as functions whose results can be looked at."""
