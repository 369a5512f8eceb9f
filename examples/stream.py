"""Stream an answer; tokens that a drafter had guessed are put in brackets."""

from headlong import LLM

llm = LLM.load()
messages = [{"role": "user", "content": "Count from one to ten in words, separated by commas."}]
for chunk in llm.stream(messages, temperature=0.7, seed=1, max_tokens=64):
    print(f"[{chunk.text}]" if chunk.from_draft else chunk.text, end="", flush=True)
print()
