"""Measurements: each module is a `make` target and ends with one line of JSON."""
