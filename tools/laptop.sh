# What a machine does that only plans, launches and watches. Run in an empty folder, with the base install and
# the runs of tests/data/made_before.tar.xz: by a test, on Linux without what only Linux has, and by CI on macOS.
set -eux
headway --version
headway plan llama2-70b --on B200:8 --nodes 16
headway init tiny my-run
headway check my-run
cat >run.yaml <<'RUN'
version: 1
name: it
model: {type: gpt2}
data: {train: "claim:prepared/wiki", sequence_length: 128}
batch: {global: 4}
RUN
cat >targets.yaml <<TARGET
lab:
  kube: {context: lab, namespace: ml}
  image: registry.example/headway@sha256:$(printf %064d 0)
  storage: {claim: shared-fs}
  pod: {resources: {cpu: 4, memory: 8Gi}}
TARGET
headway check --on lab
headway run --on lab --dry-run >objects.yaml
grep 'kind: Job' objects.yaml
headway list
headway status replicated
mkdir runs/replicated/logs
echo hello >runs/replicated/logs/node-0.rank-0.log
headway logs replicated
headway watch replicated
headway report replicated --into report.html
test -s report.html
