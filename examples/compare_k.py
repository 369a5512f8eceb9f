"""The same prompt with every draft length: the text never changes, the number of passes does."""

from headlong import LLM

llm = LLM.load()
prompt = "Repeat this line three times: the quick brown fox jumps over the lazy dog.\n"
plain = llm.generate(prompt, mtp="off", max_tokens=64)
for num_draft_tokens in range(1, 7):
    out = llm.generate(prompt, mtp=num_draft_tokens, max_tokens=64)
    assert out.token_ids == plain.token_ids
    print(f"K={num_draft_tokens}: {out.stats.rounds} passes instead of {plain.stats.rounds}")
