"""The types that an editor shows for expressions of the README and the guides."""

import json
import re
import subprocess
import sys

import pytest
from repository import ROOT

HOVERS = ROOT / "tests/project/hovers.py"


def test_an_editor_shows_the_types():
    """One run of the type checker reads all expressions; its cost is that of the stubs of JAX."""
    pytest.importorskip("basedpyright")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, str(HOVERS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    found, errors = {}, []
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        line = one["range"]["start"]["line"]
        if one["severity"] == "error":
            errors.append(f"line {line + 1}: {one['message']}")
        elif shown := re.fullmatch(r'Type of ".*" is "(.*)"', one["message"], re.DOTALL):
            found[line] = shown[1]
    lines = HOVERS.read_text().splitlines()
    written = {i: text.split("  # ")[1] for i, text in enumerate(lines) if re.match(r" *reveal_type\(", text)}
    assert not errors, "\n".join(errors)
    assert len(written) >= 20 and not [kind for kind in written.values() if re.search(r"\b(Any|Unknown)\b", kind)]
    other = [f"{lines[i].strip()}: {found.get(i)}" for i, kind in written.items() if found.get(i) != kind]
    assert not other, "\n".join(other)
