"""Headway: language-model training from one run file."""

__version__ = "0.1.0"
