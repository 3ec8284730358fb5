"""The tiny policy's vocabulary: one token a character, 32 in all, as an ordinary Hugging Face fast tokenizer."""

from __future__ import annotations

from pathlib import Path

PAD, EOS = "<pad>", "<eos>"
PAD_ID, EOS_ID = 0, 1
CHARACTERS = "0123456789+-*/%^=;?\n().,:<>|x "
VOCABULARY = (PAD, EOS, *CHARACTERS)
"""All 32 ids have a text, so that whatever the policy samples can be decoded."""

_IDS = {token: index for index, token in enumerate(VOCABULARY)}


def encode(text: str) -> list[int]:
    """Ids of a text, as the saved tokenizer gives them; KeyError for a character that is not in the vocabulary."""
    return [_IDS[character] for character in text]


def save_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    # Byte pairs without merges: each character stays a token of its own, with no rules for words or spaces.
    tokenizer = Tokenizer(BPE(vocab=_IDS, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, EOS])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    ).save_pretrained(folder)
