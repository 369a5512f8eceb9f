"""A program written for mlx-lm: only the import is another (`from mlx_lm import …` before)."""

from headlong import generate, load, make_prompt_cache, make_sampler, stream_generate

model, tokenizer = load()  # or a folder, or "mlx-community/Qwen3-0.6B-4bit"
cache = make_prompt_cache(model)

for question in ("Name three colours.", "Which of them is the sky's?"):
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    generate(model, tokenizer, prompt, verbose=True, max_tokens=48, prompt_cache=cache)

sampler = make_sampler(temp=0.7, top_p=0.9)
for response in stream_generate(model, tokenizer, "Once", max_tokens=32, sampler=sampler, seed=1):
    print(response.text, end="", flush=True)
print(f"\n{response.generation_tps:.0f} tokens/s, ended with {response.finish_reason!r}")
