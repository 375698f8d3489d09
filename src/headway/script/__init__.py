"""A script of the user's as a run: `command: [python, train.py, ...]` in the run file.

A script worker stands in the place of a training worker: it holds the session with the coordinator,
starts the command as its child with torchrun's variables, and exits with the codes of
`headway.errors.Exit`. The launchers start it, as they do training workers, through a fork server
(`python -m headway.script [RUN_DIRECTORY]`). Nothing here imports torch.

Besides the variables of `headway.train.__main__`, the launcher gives it

    HEADWAY_WORKDIR   working folder of the command: this node's writable copy of the code
    HEADWAY_OUTPUT    folder or URL that stays the same through every restart
    HEADWAY_SCRATCH   local folder of this node, which processes survive, and pods do not

and it gives the command the last two, torchrun's, and

    HEADWAY_HEARTBEAT   file in which the script may write its step

and PYTHONPATH begins with `stacks`, for the stacks of a script that stands still.

For its launcher it writes `FIRST LAST` to HEADWAY_STEPS once its child runs: `0 0`, and later the
step before its first heartbeat and that of the newest. A start whose child never ran leaves no such
file.

Rank 0's worker writes into the run directory the record of its generation
(`state.chain`, first step 0), records of steps from heartbeats (step,
generation, time, seconds, data_seconds 0; loss and tokens_per_second null), and these events:

    started    once its child runs: generation, workers, device, step; neutral values of what a
               script does not tell: resumed_from and total_steps null, and seconds
               {import: 0, build: 0, load: 0}
    stuck      it stands still, by any rank: as in training, and `idle` if it uses no processor time
    alive      after each ten minutes of the child's life
    cut_short  generation: a planned change ended it in its first minute, before any heartbeat
    finished   before it exits with 0
    stopped    before it exits with 6
"""
