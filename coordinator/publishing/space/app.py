"""A web demo of released models: filling masks, tagging words, and classifying or continuing texts.

The demo needs only the packages in `requirements.txt`. `models.json` lists the models, which are
loaded on first use. Run the demo with `uvicorn app:app`, or as a Docker Space.
"""

from __future__ import annotations

import json
import re
import threading
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from transformers import pipeline

HERE = Path(__file__).parent
MODELS: dict[str, dict[str, str]] = json.loads((HERE / "models.json").read_text(encoding="utf-8"))
MAX_CHARACTERS = 1000
MAX_RESULTS = 5
MASK = "[MASK]"
OUTSIDE = "O"
MARKS = ".,;:!?()\"'«»“”।…¿¡"
# `\w` does not match vowel signs, which occur inside words in some scripts.
WORD = re.compile(rf"[^\s{re.escape(MARKS)}]+|[{re.escape(MARKS)}]")
app = FastAPI(title="Try the model", docs_url=None, redoc_url=None)
_ONE_AT_A_TIME = threading.Lock()


class VisitorText(BaseModel):
    """A text typed by a visitor."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


@lru_cache(maxsize=8)
def load(name: str) -> Any:
    """Load a model's transformers pipeline; only safetensors weights are accepted."""
    about = MODELS[name]
    source = str(HERE / about["model"]) if about["model"].startswith(".") else about["model"]
    make: Any = pipeline  # `pipeline`'s type annotations accept only literal task names
    return make(about["task"], model=source, model_kwargs={"use_safetensors": True})


def answer(task: str, pipe: Any, text: str) -> list[dict[str, Any]]:
    """Return the model's predictions for a text: words or labels, with scores."""
    if task == "fill-mask":
        mask = pipe.tokenizer.mask_token
        if text.count(MASK) != 1:
            raise HTTPException(400, f"Write {MASK} once, where the model shall fill in a word.")
        found = pipe(text.replace(MASK, mask), top_k=MAX_RESULTS)
        return [{"text": each["token_str"].strip(), "label": "", "score": float(each["score"])} for each in found]
    if task == "token-classification":
        return tagged(pipe.model, pipe.tokenizer, text)
    if task == "text-generation":
        return [{"text": pipe(text, max_new_tokens=40)[0]["generated_text"], "label": "", "score": None}]
    found = pipe(text, top_k=MAX_RESULTS, truncation=True)
    return [{"text": "", "label": each["label"], "score": float(each["score"])} for each in found]


def tagged(model: Any, tokenizer: Any, text: str) -> list[dict[str, Any]]:
    """Return the tagged words; a word gets the tag of its first token, as in training.

    A word tagged `I-` is joined to the previous word if the labels are equal.
    """
    spans = [match.span() for match in WORD.finditer(text)]
    encoded = tokenizer(
        [text[start:end] for start, end in spans], is_split_into_words=True, truncation=True, return_tensors="pt"
    )
    shares = model(**encoded).logits[0].softmax(-1)  # (length, tags)
    found: list[dict[str, Any]] = []
    before, last_word = None, None
    for place, word in enumerate(encoded.word_ids()):
        if word is None or word == before:
            continue
        before = word
        score, number = shares[place].max(-1)
        tag = str(model.config.id2label[int(number)])
        label = tag.partition("-")[2] or tag
        if tag == OUTSIDE:
            continue
        start, end = spans[word]
        if found and tag.startswith("I-") and found[-1]["label"] == label and last_word == word - 1:
            found[-1] |= {"end": end, "score": min(found[-1]["score"], float(score))}
        else:
            found.append({"start": start, "end": end, "label": label, "score": float(score)})
        last_word = word
    return [
        {"text": text[each["start"] : each["end"]], "label": each["label"], "score": each["score"]} for each in found
    ]


@app.get("/")
def page() -> FileResponse:
    """Serve the demo page."""
    return FileResponse(HERE / "index.html", media_type="text/html")


@app.get("/models")
def models() -> dict[str, dict[str, str]]:
    """List the available models."""
    return {name: {"task": about["task"], "title": about["title"]} for name, about in MODELS.items()}


@app.post("/models/{name}")
def ask(name: str, asked: VisitorText) -> list[dict[str, Any]]:
    """Run a model on a text, one request at a time, because a free Space has only two cores."""
    if name not in MODELS:
        raise HTTPException(404, f"There is no model {name!r:.60}.")
    with _ONE_AT_A_TIME, torch.no_grad():
        return answer(MODELS[name]["task"], load(name), asked.text)
