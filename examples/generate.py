"""Answer one question and see what multi-token prediction did for it."""

from headlong import LLM

llm = LLM.load()  # the default model; LLM.load("path-or-name") for any other
out = llm.generate([{"role": "user", "content": "Write a Python function that reverses a string."}])

print(out.text)
print(f"{out.stats.rounds} rounds, {out.stats.acceptance_length:.2f} tokens each")
print(f"{out.timings.tokens_per_second:.0f} tokens/s, ended by {out.finish_reason}")
