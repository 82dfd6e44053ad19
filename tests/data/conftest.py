import subprocess
import sys
from pathlib import Path

import pytest

UNPACK = Path(__file__).parents[2].parent / "shared" / "data" / "unpack.py"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """Return a function that unpacks real data sets once and gives their root."""
    root = tmp_path_factory.mktemp("unpacked")

    def unpack(*names):
        if not UNPACK.exists():
            pytest.skip("the real data sets are not here")
        subprocess.run([sys.executable, str(UNPACK), str(root), *names], check=True)
        return root

    return unpack
