"""What `run` would refuse, from the run file and what it names: in a second, without torch."""
