"""Asks the exported model a question, as any program would that uses transformers."""

import sys

from transformers import pipeline

chat = pipeline("text-generation", model="chat", max_new_tokens=40, do_sample=False)
messages = [{"role": "user", "content": " ".join(sys.argv[1:])}]
print(chat(messages)[0]["generated_text"][-1]["content"])
