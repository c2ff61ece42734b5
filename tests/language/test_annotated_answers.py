from __future__ import annotations

import gzip
import json
from pathlib import Path

from pasta_lm.language import check, fix, parse
from pasta_lm.language.parser import Form


def test_every_annotated_answer_goes_through_all_its_forms_byte_for_byte(shared_data: Path) -> None:
    path = shared_data / "annotated" / "gemma-7b-it.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    assert len(records) == 704
    for record in records:
        annotated = parse(record["annotated"], Form.ANNOTATOR)
        written = annotated.with_lengths(lambda text: len(text.split())).written()
        document = parse(written)
        assert document.written() == written
        assert document.annotator_form() == record["annotated"]
        assert document.plain_text == record["output"]
        assert not [fault for fault in check(written) if fault.severity == "error"]
        assert fix(written) == document.with_spaces_after_tags().written()
