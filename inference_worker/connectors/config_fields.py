"""Fields of a model's configuration that shape no bytes of KV, whichever engine runs the model."""

from __future__ import annotations

HARMLESS_FIELDS = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "attention_dropout",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)
"""Names, files, defaults of calls and training. Each engine's connector adds what it knows to be harmless there."""
