"""Forced annotation: a taught model chooses among the annotations that the layout allows.

The text is forced and a tag stands only at a unit's boundary, so the text cannot change. Each
proposal is scored by one masked forward pass in its own visibility, as in training; what a model
would not decode, such as a block that needs its sibling, gets less likely. A block's topic and
length are left out of the score: there are many good ones, and an answer without blocks needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pasta_lm.errors import PastaError, RequestError, UsageError
from pasta_lm.interpreter.placement import Entries, Entry
from pasta_lm.interpreter.positions import Epoch
from pasta_lm.interpreter.visibility import PROMPT_OWNER, Row
from pasta_lm.language.document import Document
from pasta_lm.language.lexer import LexemeKind
from pasta_lm.learn.annotate.filters import FILTERS, FilterConfig, Marks
from pasta_lm.learn.annotate.layout_rule import document_of, proposals, rule_marks
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example

if TYPE_CHECKING:
    from pasta_lm.engines.local.loading import LoadedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How the log-probabilities of a proposal are summed.

    With ``text=1``, ``block_nats=0`` and ``rule_nats=0`` the score is the log-likelihood.
    """

    text: float = 0.1
    """Of the answer's text; decisions (promise, end of a block, sync, end) have 1."""
    block_nats: float = 2.0
    """Added for each block: the margin by which a promise may be less likely than text."""
    rule_nats: float = 0.0
    """Added to the proposal that the Markdown rule makes."""


class Score(NamedTuple):
    """The log-probability of an annotated answer in nats, in parts."""

    decisions: float
    """Opening pieces of promises, ends of blocks, syncs, and the end of the answer."""
    text: float
    promises: float
    """Topics and promised lengths."""


class Candidate(NamedTuple):
    """A proposal with its score; the score is None where nothing is left to choose."""

    document: Document
    is_rule: bool
    """Whether the Markdown rule makes it too."""
    score: Score | None = None

    def total(self, weights: Weights) -> float:
        """Return the figure that candidates are compared by."""
        if self.score is None:
            return 0.0
        nats = self.score.decisions + weights.text * self.score.text
        bonus = weights.block_nats * len(self.document.blocks) + weights.rule_nats * self.is_rule
        return nats + bonus


class ForcedAnnotator:
    """Annotates answers with a model that was taught PASTA-LANG."""

    def __init__(
        self, loaded: LoadedModel, weights: Weights | None = None, filters: FilterConfig = FILTERS
    ) -> None:
        """Use a loaded model.

        Raises:
            UsageError: the model has no tag pieces.
        """
        if not loaded.vocabulary.has_pieces:
            raise UsageError(
                f"{loaded.name} was not taught PASTA-LANG: it has no tag pieces",
                hint="name a model that pasta train sft has taught",
            )
        self._loaded = loaded
        self._weights = weights or Weights()
        self._filters = filters
        self._eos_id = min(loaded.eos_ids)

    def __call__(self, prompt: str, answer: str) -> Document:
        """Return the annotated answer, with the same plain text.

        An answer that the model cannot encode or hold stays without tags.
        """
        try:
            found = self.candidates(prompt, answer)
        except PastaError:  # it is too long, its prompt empty, or the tokenizer changes text
            return document_of(answer, Marks())
        return max(found, key=lambda one: one.total(self._weights)).document

    def candidates(self, prompt: str, answer: str) -> list[Candidate]:
        """Return the annotations that the layout allows and the filters accept, with their scores.

        Raises:
            InputError: the prompt is empty.
            RequestError: the answer needs positions that the model does not have.
            VocabularyError: the tokenizer changes the text.
        """
        favoured = rule_marks(prompt, answer)
        found = [
            Candidate(document_of(answer, marks, self._filters), marks == favoured)
            for marks in dict.fromkeys([*proposals(answer), favoured])
        ]
        kept = [found[0], *(one for one in found[1:] if one.document.blocks)]
        if len(kept) == 1:
            return kept
        return [one._replace(score=self.score(prompt, one.document)) for one in kept]

    def score(self, prompt: str, document: Document) -> Score:
        """Return the log-probability of an annotated answer, from one masked forward pass.

        Raises:
            VocabularyError: the tokenizer changes the text.
        """
        from pasta_lm.engines.local.naive import naive_logits

        example = self._encode(prompt, document)
        wanted = [slot for slot, label in enumerate(example.labels) if label != NO_LABEL]
        logits = naive_logits(self._loaded.model, entries_of(example), wanted=wanted)
        log_probs = logits.log_softmax(-1)
        sums = dict.fromkeys(("decisions", "text", "promises"), 0.0)
        parts = self._parts(example, wanted)
        for row, (slot, part) in enumerate(zip(wanted, parts, strict=True)):
            sums[part] += float(log_probs[row, example.labels[slot]])
        return Score(**sums)

    def _encode(self, prompt: str, document: Document) -> EncodedExample:
        loaded = self._loaded
        record = Record("", prompt, document)
        found = encode_example(
            record, loaded.vocabulary, self._eos_id, loaded.positions, join=loaded.join
        )
        last = loaded.max_position
        if last is not None and max(found.positions) > last:
            raise RequestError(f"the answer needs positions beyond {last}, the model's last")
        return found

    def _parts(self, example: EncodedExample, wanted: Sequence[int]) -> Iterator[str]:
        """Yield for each label which part of the score it belongs to."""
        of_main = {PROMPT_OWNER, *example.main_owners}
        in_promise = False
        for slot in wanted:
            lexeme = self._loaded.vocabulary.id_to_lexeme(example.labels[slot])
            is_main = example.rows is None or example.owners[slot] in of_main
            if lexeme is not None and lexeme.kind is LexemeKind.PROMISE_CLOSE:
                in_promise = False
                yield "promises"
            elif lexeme is not None or example.labels[slot] == self._eos_id:
                in_promise = lexeme is not None and lexeme.kind is LexemeKind.PROMISE_OPEN
                yield "decisions"
            else:
                yield "promises" if in_promise and is_main else "text"


def entries_of(example: EncodedExample) -> Entries:
    """Return an encoded answer as the entries that decoding it would make."""
    if example.rows is None:
        return Entries.of_prompt(example.token_ids)
    epoch, rows = Epoch(), [Row(dict(enumerate(row))) for row in example.rows]
    columns = (example.token_ids, example.owners, example.positions, example.row_of)
    items = [
        Entry(token, owner, position, rows[row], epoch)
        for token, owner, position, row in zip(*columns, strict=True)
    ]
    return Entries(items, num_owners=len(example.rows[0]))
