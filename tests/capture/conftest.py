"""Helpers of these tests are plain modules beside them; the models are shared with all tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
