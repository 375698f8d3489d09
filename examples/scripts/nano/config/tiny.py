# a run of a minute or less, on any machine
n_layer = 2
n_embd = 64
gradient_accumulation_steps = 3
max_iters = 120
