"""Where the repository's own files are, for tests that may be run from any folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLAIMS_FILE = ROOT / "config/claims.yaml"
PUBLISHED_FOLDER = ROOT / "config/published"
REPORTS = sorted(path.parent for path in (ROOT / "reports").glob("*/results.json"))
