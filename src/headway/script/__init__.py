"""A script of the user's as a run: `command: [python, train.py, ...]` in the run file.

A script worker stands in the place of a training worker: it holds the session with the coordinator,
starts the command as its child with torchrun's variables, and exits with the codes of
`headway.errors.Exit`. The launchers start it, as they do training workers, through a fork server
(`python -m headway.script [RUN_DIRECTORY]`). Nothing here imports torch.

Besides the variables of `headway.train.__main__`, the launcher gives it

    HEADWAY_ADDRESS   address at which other nodes reach this one, by which rank 0 is found
    HEADWAY_WORKDIR   working folder of the command: this node's writable copy of the code
    HEADWAY_OUTPUT    folder or URL that stays the same through every restart
    HEADWAY_SCRATCH   local folder of this node, which processes survive, and pods do not

and it gives the command the last two, torchrun's, and

    HEADWAY_HEARTBEAT   file in which the script may write its step
"""
