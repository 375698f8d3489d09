#!/bin/sh
# On each of up to 2 machines, beside a run.yaml whose `storage` all of them see: sh torchrun.sh node0
# node0 hosts the rendezvous. If it is lost, torchrun ends on all machines, and the loop starts it again.
headway check --launcher run.yaml || exit
trap 'exit 1' INT TERM
until torchrun --nnodes=1:2 --nproc-per-node=8 --max-restarts=100 \
  --rdzv-backend=c10d --rdzv-endpoint="$1:29400" --rdzv-id="$1" \
  -m headway.train run.yaml
do
  sleep 10
done
