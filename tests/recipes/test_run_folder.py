"""JSON as a run leaves it: the same content, in lines that a person and a diff can read."""

import json
from pathlib import Path

from bayesify.recipes.run_folder import write_json


def test_json_is_read_back_equal_with_one_line_for_each_innermost_list_and_object(
    tmp_path: Path,
) -> None:
    content = {
        "text": "brackets [ in } text,\n and a break",
        "rows": [{"epoch": 1, "nll": 0.5}, {"epoch": 2, "nll": 0.25}],
        "curve": list(range(50)),
        "nothing": [],
        "table": {"inner": {"a": None}},
    }
    path = tmp_path / "a.json"
    write_json(path, content)
    text = path.read_text()
    assert json.loads(text) == content
    assert '    { "epoch": 1, "nll": 0.5 },' in text.splitlines()
    assert len(text.splitlines()) < 15
